"""The owner of a testbed: who may take it down, who has claimed its names, and its watchdog process.

An experiment claims a testbed's names until the experiment ends, even while none of its fabrics is up. The
claim is a listening socket in Linux's abstract namespace. The socket is no file, and disappears when its
process ends, even after a crash.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.linux.processes import Process, environment
from mrclab.testbed import state
from mrclab.testbed.names import RUN_VARIABLE, Names
from mrclab.testbed.state import State

MOST_CHARACTERS = 60


def user() -> str:
    """Return the name of the user who called sudo or, without sudo, of the process's user."""
    if name := os.environ.get("SUDO_USER"):
        return name
    import pwd  # exists on Unix only

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def command() -> str:
    """Return the command line of this process, shortened."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    words = " ".join([name or "python", *sys.argv[1:]])
    return words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}..."


def whose(found: State) -> str:
    """Return a few words that name the owner of a testbed."""
    owner = found.owner
    by = (
        f"'{owner.what}' of {found.user} (process {owner.pid})"
        if owner is not None
        else found.user or "nobody"
    )
    return f"the testbed that is up (topology {found.topology}, since {found.since}) belongs to {by}"


def require_ours(names: Names, *, force: bool) -> State:
    """Return the running testbed, for a command that would disturb its owner.

    Raise InputError if no testbed is up. Without ``force``, also raise InputError if an experiment or another
    user owns the testbed.
    """
    found = state.require(names)
    if not force and not (found.stays and found.user == user()):
        raise InputError(f"{whose(found)}: wait until it is free, or take it with --force")
    return found


def take(names: Names, found: State) -> None:
    """Record that this process takes a testbed from its owner, so that the owner can report this."""
    by = f"taken down by '{command()}' of {user()} (process {os.getpid()}) at {state.now()}"
    with state.locked(names):
        now = state.read(names)
        if now is None or now.run_id != found.run_id:
            return
        state.write(names, replace(now, taken=by))
        if found.stays and found.user != user():
            state.taken_file(names).write_text(f"that of {found.user} was {by}\n", encoding="utf-8")


def taken(names: Names, run_id: str) -> str:
    """Return the process that is taking a testbed from its owner, or "" if there is none."""
    found = state.read(names)
    return found.taken if found is not None and found.run_id == run_id else ""


class Watchdog:
    """A process that waits for the end of a testbed's owner and runs ``module`` if the owner was killed.

    The watchdog's environment has no run id, so clean-up does not end the watchdog as a process of the run.
    """

    def __init__(
        self, names: Names, run_id: str, owner: Process, module: str = "mrclab.testbed.after_owner"
    ) -> None:
        env = environment()
        env.pop(RUN_VARIABLE, None)
        clean_up = [
            sys.executable,
            "-m",
            module,
            names.prefix,
            str(names.state_dir.resolve()),
            run_id,
        ]
        wait = [sys.executable, "-S", "-m", "mrclab.linux.life.after_death", str(owner.pid), str(owner.start)]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [*wait, *clean_up],
            env=env,
            cwd="/",
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )

    def stop(self) -> None:
        """End the watchdog, because the testbed was removed or must stay up without an owner."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()


CLAIM_VARIABLE = "MRCLAB_CLAIM"
"""The environment variable with the pid of an experiment whose claim this process may use."""
UNIX_SOCKETS = Path("/proc/net/unix")
_CLAIM = "\0mrclab-claim-"
_CREDENTIALS = struct.Struct("=iII")  # struct ucred
_WAITING = 128  # connections are not accepted, so all of them wait in this queue


@contextmanager
def claimed(names: Names) -> Iterator[None]:
    """Claim the names for this process and its children.

    If this process belongs to an experiment that has claimed the names already, do nothing. Raise InputError
    if another process has claimed the names.
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
    """Raise InputError if another experiment has claimed the names."""
    held, pid = _holder(names)
    if held and str(pid) != os.environ.get(CLAIM_VARIABLE):
        raise InputError(_words(pid))


def take_claimed(names: Names) -> None:
    """Allow this process to use the names, even if another process has claimed them."""
    _, pid = _holder(names)
    if pid is not None:
        os.environ[CLAIM_VARIABLE] = str(pid)


def holders(table: Path = UNIX_SOCKETS) -> list[str]:
    """Return the prefixes of all testbeds on this machine that experiments have claimed.

    ``table`` is the kernel's list of sockets. If the list cannot be read, return an empty list.
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
    """Return whether the names are claimed, and the pid of the process that claims them, None if unknown."""
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
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            whose = f"'{' '.join(words).strip()[-60:]}'"
        whose += f" (process {pid})"
    return f"an experiment holds the testbed, {whose}: wait until it has ended, or take it with 'up --force'"
