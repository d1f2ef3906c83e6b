from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from linux import namespaces
from testbed.clean import clean, testbed_processes
from testbed.names import Names
from topologies import Fabric, load_fabric


@pytest.fixture
def tiny() -> Fabric:
    return load_fabric("tiny")


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    """Names that no other testbed on this machine has, and a check that nothing under them is left."""
    names = Names(f"t{os.urandom(4).hex()}", tmp_path / "state")
    yield names
    left = leftovers(names)
    if os.geteuid() == 0:
        clean(names)
    assert left == []


def leftovers(names: Names) -> list[str]:
    """Whatever there is on this machine under these names."""
    try:
        spaces = [name for name in os.listdir(namespaces.NETNS_DIR) if name.startswith(names.prefix)]
    except FileNotFoundError:
        spaces = []
    own = [identity for name in spaces if (identity := namespaces.identity(name)) is not None]
    running = [f"process {p.pid} {p.what}" for p in testbed_processes(names, own)]
    files = [str(path) for path in names.state_dir.glob("**/*")] if names.state_dir.exists() else []
    links = [name for name in os.listdir("/sys/class/net") if name.startswith(("h0-", "p0-"))]
    return [*spaces, *running, *files, *links]
