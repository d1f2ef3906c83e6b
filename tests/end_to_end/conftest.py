"""A running testbed for a module's tests, brought up as a user does, under a separate prefix."""

import os
from collections.abc import Iterator

import pytest

from mrclab.testbed.names import Names
from tests.support.command import Mrclab, snapshot


@pytest.fixture
def mrclab() -> Iterator[Mrclab]:
    """Return the command line, with no testbed up. The leftovers of a test are removed."""
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
