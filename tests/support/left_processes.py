"""Find processes that a killed program may have left behind, and wait until they end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_with(name: str, value: str) -> list[int]:
    """Return the pids of processes with this environment variable, except Python's own resource trackers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if f"{name}={value}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found += [] if b"resource_tracker" in words else [int(process.name)]
    return found
