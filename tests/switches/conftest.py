"""Fixtures of the switch tests, and the reasons for which some are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from finsy.proto import p4i

from tests.switches.switch_kit import JSON, P4INFO, Namespace, read_p4info


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))
        if item.get_closest_marker("bmv2") and shutil.which("simple_switch_grpc") is None:
            item.add_marker(pytest.mark.skip(reason="simple_switch_grpc is not on PATH"))


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
