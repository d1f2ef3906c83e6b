from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrclab.testbed.clean import clean
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric, load_fabric
from tests.support.leftovers import left_in_the_end


@pytest.fixture
def tiny() -> Fabric:
    return load_fabric("tiny")


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    """Yield names that no other testbed on this machine has. Check at the end that nothing is left."""
    names = Names(f"t{os.urandom(4).hex()}", tmp_path / "state")
    yield names
    left = left_in_the_end(names, within_s=10)  # a watchdog needs a moment to end
    if os.geteuid() == 0:
        clean(names)
    assert left == []
