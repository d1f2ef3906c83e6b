"""Fixtures of the tests of switches and of the switch program."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from finsy.proto import p4i

from tests.support.switch_kit import JSON, P4INFO, Namespace, read_p4info

TARGETS = ["ebpf", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.slow])]
"""The targets on which a parametrised test runs."""


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


def mark_bmv2(directory: Path, items: list[pytest.Item]) -> None:
    """Mark every test in a directory as a test that needs BMv2 and root."""
    missing = pytest.mark.skip(reason="simple_switch_grpc is not on PATH")
    for item in items:
        if item.path.is_relative_to(directory):
            for mark in (pytest.mark.bmv2, pytest.mark.root, pytest.mark.slow):
                item.add_marker(mark)
            if shutil.which("simple_switch_grpc") is None:
                item.add_marker(missing)
