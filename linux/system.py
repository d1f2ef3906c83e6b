"""Features that only Linux has. On other systems mrclab can simulate, report and teach, but run no fabric."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from functools import cache

from mrclab.linux.errors import MachineError

_PR_SET_PDEATHSIG = 1
_NAMES = {"win32": "Windows", "darwin": "macOS"}


def is_linux() -> bool:
    """Return whether this is Linux, so that a fabric can run here."""
    return sys.platform == "linux"


def is_root() -> bool:
    """Return True if this process runs as root; False on a system without that user."""
    return os.name == "posix" and os.geteuid() == 0


def require_linux(what: str) -> None:
    """Raise MachineError on any system but Linux; its text names ``what``, which needs Linux."""
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
    """Have the kernel send this process a signal once the one that started it has ended [prctl(2)].

    Without ``number`` it is SIGKILL, which Python has no name for on Windows.
    """
    libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if number is None else number, 0, 0, 0)
