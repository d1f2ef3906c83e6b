"""What a testbed has left on this machine."""

from __future__ import annotations

import os

from linux import namespaces
from testbed.clean import testbed_processes
from testbed.names import Names


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
