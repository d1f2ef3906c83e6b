"""The process on Linux: its rights, its end when its parent ends, its environment, its huge pages.

Features that only Linux has are here. On other systems mrclab can simulate, report and teach, but not run
a fabric.

A run in virtual time reads hundreds of megabytes in random order. With pages of 4 KiB, most of these reads
miss the processor's address cache (TLB). Huge pages of 2 MiB let the same cache cover 512 times as much.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from mrclab.linux.errors import MachineError

_PR_SET_PDEATHSIG = 1
_NAMES = {"win32": "Windows", "darwin": "macOS"}


def is_linux() -> bool:
    """Return whether this is Linux, so that a fabric can run here."""
    return sys.platform == "linux"


def is_root() -> bool:
    """Return True if this process runs as root. Return False on a system that has no root."""
    return os.name == "posix" and os.geteuid() == 0


def require_linux(what: str) -> None:
    """Raise MachineError on any system except Linux. The error names ``what``, which needs Linux."""
    if not is_linux():
        raise MachineError(
            f"{what} needs Linux, and this is {_NAMES.get(sys.platform, sys.platform)}",
            "use a virtual machine or Docker (docs/docker.md), or 'mrclab run --target sim', which runs here",
        )


@cache
def libc() -> ctypes.CDLL:
    """Return the C library, which sets errno, for system calls that Python does not offer."""
    return ctypes.CDLL(None, use_errno=True)


def end_with_parent(number: int | None = None) -> None:
    """Make the kernel send this process a signal when its parent process ends [prctl(2)].

    Without ``number``, the signal is SIGKILL. (Windows has no SIGKILL, so the default argument is None.)
    """
    libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if number is None else number, 0, 0, 0)


HUGE_BYTES: Final = 1 << 21
_MADV_COLLAPSE: Final = 25
"""The request for huge pages, from Linux 6.1 on [madvise(2)]."""
_MAPS: Final = Path("/proc/self/maps")


def own_memory(maps: str) -> list[tuple[int, int]]:
    """Return the huge pages that fit into a process's own memory, as (address, bytes), from its `maps` file.

    Only private, writable mappings that belong to no file count.
    """
    found = []
    for line in maps.splitlines():
        words = line.split()
        if words[1] != "rw-p" or words[4] != "0" or (len(words) > 5 and words[5] != "[heap]"):
            continue
        first, last = (int(address, 16) for address in words[0].split("-"))
        begin = -(-first // HUGE_BYTES) * HUGE_BYTES
        size = last // HUGE_BYTES * HUGE_BYTES - begin
        if size > 0:
            found.append((begin, size))
    return found


def use_huge_pages() -> bool:
    """Move the memory that this process uses now into huge pages. Return whether any was moved.

    This changes only the speed of the process. If the kernel cannot do it, nothing happens. Memory that the
    process gets later has pages of the usual size.
    """
    if not is_linux():
        return False
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    moved = False
    for address, size in own_memory(_MAPS.read_text(encoding="utf-8")):
        for page in range(address, address + size, HUGE_BYTES):
            moved |= madvise(page, HUGE_BYTES, _MADV_COLLAPSE) == 0
    return moved


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the ``with``, then restore their former values."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
