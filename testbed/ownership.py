"""Whose testbed it is, who may take it down, who claims its names, and cleaning up after a dead owner.

An experiment claims a testbed's names: it holds them between two of its fabrics, too. The claim is a socket
in Linux's abstract namespace: it ends with its process, however that ends, and leaves no file. It names its
process by the kernel's credentials.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.linux.processes import Process, environment
from mrclab.testbed import state
from mrclab.testbed.names import RUN_VARIABLE, Names
from mrclab.testbed.state import State

MOST_CHARACTERS = 60


def user() -> str:
    """Return who runs this process: who called sudo, or the process's own user."""
    if name := os.environ.get("SUDO_USER"):
        return name
    import pwd  # Unix has it alone

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def command() -> str:
    """Return the command that this process carries out, shortened."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    words = " ".join([name or "python", *sys.argv[1:]])
    return words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}..."


def whose(found: State) -> str:
    """Return a few words on whose testbed it is."""
    owner = found.owner
    by = (
        f"'{owner.what}' of {found.user} (process {owner.pid})"
        if owner is not None
        else found.user or "nobody"
    )
    return f"the testbed that is up (topology {found.topology}, since {found.since}) belongs to {by}"


def require_ours(names: Names, *, force: bool) -> State:
    """Return the testbed that is up, for a command that would disturb its owner.

    Raise InputError if no testbed is up, or if it is an experiment's or another user's, unless ``force``.
    """
    found = state.require(names)
    if not force and not (found.stays and found.user == user()):
        raise InputError(f"{whose(found)}: wait until it is free, or take it with --force")
    return found


def take(names: Names, found: State) -> None:
    """Record the process that is about to take a testbed from its owner, for the owner's message."""
    by = f"taken down by '{command()}' of {user()} (process {os.getpid()}) at {state.now()}"
    with state.locked(names):
        now = state.read(names)
        if now is None or now.run_id != found.run_id:
            return
        state.write(names, replace(now, taken=by))
        if found.stays and found.user != user():
            state.taken_file(names).write_text(f"that of {found.user} was {by}\n", encoding="utf-8")


def taken(names: Names, run_id: str) -> str:
    """Return by whom a testbed is being taken down, or nothing where nobody but its owner does."""
    found = state.read(names)
    return found.taken if found is not None and found.run_id == run_id else ""


class Watchdog:
    """A process next to a testbed that runs a module, to clean up, if the owner is killed.

    It is no child of the run by name, so that ending all processes of the run spares it.
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
        """End it: the testbed is gone, or left running on purpose."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()


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
