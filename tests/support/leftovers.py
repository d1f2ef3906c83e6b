"""Find the leftovers of a testbed on this machine."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from mrclab.linux import namespaces
from mrclab.testbed.clean import testbed_processes
from mrclab.testbed.names import Names


def leftovers(names: Names) -> list[str]:
    """Return everything on this machine that has one of these names."""
    try:
        spaces = [name for name in os.listdir(namespaces.NETNS_DIR) if name.startswith(names.prefix)]
    except FileNotFoundError:
        spaces = []
    own = [identity for name in spaces if (identity := namespaces.identity(name)) is not None]
    running = [f"process {p.pid} {p.what}" for p in testbed_processes(names, own)]
    # `os.walk` skips folders that are removed while it reads them.
    files = [name for _, folders, names_here in os.walk(names.state_dir) for name in (*folders, *names_here)]
    links = [name for name in os.listdir("/sys/class/net") if name.startswith(("h0-", "p0-"))]
    watchdogs = [f"watchdog {pid}" for pid in watchdogs_of(names)]
    return [*spaces, *running, *watchdogs, *files, *links]


def watchdogs_of(names: Names) -> list[int]:
    """Return the processes that wait for the end of a testbed's owner, or clean up after it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"mrclab.testbed.after_owner" in words and names.prefix.encode() in words:
            found.append(int(path.parent.name))
    return found


def kill_with_watchdog(names: Names, owner: int) -> None:
    """Kill a testbed's owner and its watchdogs, so that nothing cleans up."""
    for pid in (*watchdogs_of(names), owner):
        os.kill(pid, signal.SIGKILL)


def left_in_the_end(names: Names, within_s: float = 60.0) -> list[str]:
    """Return the leftovers after the watchdog has had time to clean up."""
    deadline = time.monotonic() + within_s
    while (left := leftovers(names)) and time.monotonic() < deadline:
        signal.sigtimedwait([], 0.05)
    return left
