"""Fixtures of the switch tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from finsy.proto import p4i

from tests.support.switch_kit import JSON, P4INFO, Namespace, read_p4info

TARGETS = ["ebpf", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.slow])]
"""The choices of a test that runs on each target."""


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    ns = Namespace()
    try:
        yield ns
    finally:
        ns.delete()


@pytest.fixture(scope="session")
def mrc_json() -> bytes:
    return JSON.read_bytes()


@pytest.fixture(scope="session")
def mrc_info() -> p4i.P4Info:
    return read_p4info(P4INFO)
