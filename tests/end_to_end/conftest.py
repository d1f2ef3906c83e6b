"""Fixtures that run mrclab's commands as a user does, on a testbed with a separate prefix."""

import os
from collections.abc import Iterator

import pytest

from mrclab.testbed.names import Names
from tests.support.command import Mrclab, snapshot


@pytest.fixture
def mrclab() -> Iterator[Mrclab]:
    """Yield a command line for a new testbed, which is not up yet. Afterwards, remove its leftovers."""
    runner = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))
    try:
        yield runner
    finally:
        runner("clean")


@pytest.fixture
def machine(mrclab: Mrclab) -> Iterator[None]:
    """Check that a test leaves the machine's namespaces, interfaces and processes as they were."""
    before = snapshot(mrclab.names)
    yield
    assert snapshot(mrclab.names) == before
