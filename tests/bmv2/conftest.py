"""A fabric on the reference switch, up for a module's tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Up, up
from tests.end_to_end.conftest import machine as machine
from tests.end_to_end.conftest import mrclab as mrclab

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory needs BMv2 and root."""
    missing = pytest.mark.skip(reason="simple_switch_grpc is not on PATH")
    for item in items:
        if item.path.is_relative_to(HERE):
            for mark in (pytest.mark.bmv2, pytest.mark.root, pytest.mark.slow):
                item.add_marker(mark)
            if shutil.which("simple_switch_grpc") is None:
                item.add_marker(missing)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Up]:
    """The topology `tiny`, up on BMv2. Takes the place of the fixture of that name for ebpf."""
    with up("tiny", "bmv2") as running:
        yield running
