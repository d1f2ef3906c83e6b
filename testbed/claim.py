"""A claim to a testbed's names: an experiment holds them between two of its fabrics, too.

The claim is a socket in Linux's abstract namespace: it ends with its process, however that ends, and leaves
no file. It names its process by the kernel's credentials.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.testbed.names import Names

CLAIM_VARIABLE = "MRCLAB_CLAIM"
"""The process whose claim this process may use: that of the experiment that it works for."""
UNIX_SOCKETS = Path("/proc/net/unix")
_CLAIM = "\0mrclab-claim-"
_CREDENTIALS = struct.Struct("=iII")  # struct ucred
_WAITING = 128  # askers are never answered: each takes a place, until the experiment's end


@contextlib.contextmanager
def claimed(names: Names) -> Iterator[None]:
    """Hold the names for this process and its children.

    Do nothing if a process for which this one works holds them already. Raise InputError if
    another holds them.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        try:
            held.bind(_address(names))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            refuse_claimed(names)
            yield
            return
        held.listen(_WAITING)
        before = os.environ.get(CLAIM_VARIABLE)
        os.environ[CLAIM_VARIABLE] = str(os.getpid())
        try:
            yield
        finally:
            if before is None:
                del os.environ[CLAIM_VARIABLE]
            else:
                os.environ[CLAIM_VARIABLE] = before


def refuse_claimed(names: Names) -> None:
    """Raise InputError if an experiment holds the names for which this process does not work."""
    held, pid = _holder(names)
    if held and str(pid) != os.environ.get(CLAIM_VARIABLE):
        raise InputError(_words(pid))


def take_claimed(names: Names) -> None:
    """Let this process use the names whoever holds them."""
    _, pid = _holder(names)
    if pid is not None:
        os.environ[CLAIM_VARIABLE] = str(pid)


def holders(table: Path = UNIX_SOCKETS) -> list[str]:
    """Return the prefixes of all testbeds that experiments hold on this machine.

    ``table`` lists the sockets of this network namespace; an unreadable one has none.
    """
    try:
        lines = table.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    mark = _CLAIM.replace("\0", "@")
    return sorted({line.rsplit(mark, 1)[1] for line in lines if f" {mark}" in line})


def _address(names: Names) -> str:
    return f"{_CLAIM}{names.prefix}"


def _holder(names: Names) -> tuple[bool, int | None]:
    """Return whether the names are held, and the process that holds them, where the kernel says it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(_address(names))
        except BlockingIOError:
            return True, None
        except OSError:
            return False, None
        found = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return True, _CREDENTIALS.unpack(found)[0]


def _words(pid: int | None) -> str:
    whose = "another process"
    if pid is not None:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            whose = f"'{' '.join(words).strip()[-60:]}'"
        whose += f" (process {pid})"
    return f"an experiment holds the testbed, {whose}: wait until it has ended, or take it with 'up --force'"
