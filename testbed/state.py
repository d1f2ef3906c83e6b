"""The record of a running testbed for other processes: a file that is replaced atomically, and a lock."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mrclab.linux import namespaces
from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.namespaces import Markers
from mrclab.linux.processes import Process
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric, fabric_from_text

SCHEMA = 3
CONTROL_SOCKET = "control.sock"
DIRECTORY_MODE = 0o711  # non-root programs may open files in the directory, but not list it


@dataclass(frozen=True, slots=True)
class State:
    """The record of a testbed that is up, or that was up when its owner died.

    ``owner`` is the process that takes the testbed down before its own end. ``owner.what`` is its command.
    After ``detach``, there is no owner (None). ``fabric_text`` describes the fabric. ``target`` is the target
    of the switches, empty for routers. ``user`` is the user who started the testbed. If ``stays`` is true,
    other commands may use the testbed; otherwise it belongs to an experiment. ``taken`` names the process
    that is taking the testbed down.
    """

    run_id: str
    topology: str
    fabric_text: str
    since: str
    target: str = ""
    owner: Process | None = None
    processes: tuple[Process, ...] = ()
    user: str = ""
    stays: bool = False
    taken: str = ""

    def fabric(self) -> Fabric:
        """Return the fabric that is up."""
        return fabric_from_text(self.fabric_text)

    def with_process(self, process: Process) -> State:
        """Return a record with one more process and without the processes that have ended."""
        return replace(self, processes=(*(p for p in self.processes if p.alive), process))

    def alive(self, names: Names) -> bool:
        """Return True if the testbed is still up.

        If the testbed has an owner, the owner must run. Otherwise the switches' namespace must exist and, if
        processes were recorded, at least one of them must run.
        """
        if self.owner is not None:
            return self.owner.alive
        there = Markers(markers_dir(names)).ours(names.fabric) and namespaces.exists(names.fabric)
        return there and (not self.processes or any(process.alive for process in self.processes))


def now() -> str:
    """Return the present local time as text, to the second, as it is stored in the record."""
    return datetime.now(UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def markers_dir(names: Names) -> Path:
    """Return the directory of marker files, one for each namespace of this testbed."""
    return names.state_dir / "namespaces.d"


def work_dir(names: Names) -> Path:
    """Return the directory for programs' files. It is removed with the testbed."""
    return names.state_dir / "work.d"


def state_file(names: Names) -> Path:
    """Return the path of the state file."""
    return names.state_dir / "state.json"


def read(names: Names) -> State | None:
    """Return the recorded testbed, or None if there is none or its record is damaged.

    Raise MachineError if this process may not read the record, which belongs to root.
    """
    try:
        data: Any = json.loads(state_file(names).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.pop("schema") != SCHEMA:
            return None
        owner = data.pop("owner")
        processes = tuple(Process(**process) for process in data.pop("processes"))
        return State(owner=Process(**owner) if owner else None, processes=processes, **data)
    except PermissionError:
        raise MachineError(f"{state_file(names)} is root's", "run it as root (sudo)") from None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def require(names: Names) -> State:
    """Return the running testbed. If no testbed is up, raise InputError with a note on the last testbed."""
    state = read(names)
    if state is None:
        taken = read_taken(names)
        raise InputError("no testbed is up: run 'mrclab up' first" + (f" ({taken})" if taken else ""))
    if not state.alive(names):
        raise InputError(
            f"no testbed is up: the owner of the last (topology {state.topology}, since {state.since}) has "
            "ended; 'mrclab clean' lists and removes what is left of it"
        )
    return state


def taken_file(names: Names) -> Path:
    """Return the path of the note that says who took the last testbed from its owner.

    The note stays when that testbed ends. The next start or clean removes it.
    """
    return names.state_dir.with_name(f"{names.state_dir.name}.taken")


def read_taken(names: Names) -> str:
    """Return who took the last testbed from its owner, or "" if nobody did."""
    try:
        return taken_file(names).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def control_socket(names: Names) -> Path:
    """Return the path of the socket on which the testbed's daemon listens."""
    return names.state_dir / CONTROL_SOCKET


def write(names: Names, state: State) -> None:
    """Replace the record atomically, so that a reader sees either the old or the new record."""
    names.state_dir.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    target = state_file(names)
    draft = target.with_suffix(f".{os.getpid()}.new")
    draft.write_text(json.dumps({"schema": SCHEMA, **asdict(state)}, indent=1) + "\n", encoding="utf-8")
    draft.replace(target)


@contextmanager
def locked(names: Names) -> Iterator[None]:
    """Hold the lock of these names within the ``with``. Wait first if another process holds the lock."""
    import fcntl  # exists on Unix only

    path = names.state_dir / "lock"
    while True:
        try:
            names.state_dir.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # another process has just removed the directory
        except FileExistsError:
            if names.state_dir.is_file():  # a file has the directory's name; otherwise try again
                raise
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            held, named = os.fstat(fd), None
            with suppress(FileNotFoundError):
                named = os.stat(path)
            if named is None or (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
                continue  # the lock file was removed: lock the new lock file
            yield
            return
        finally:
            os.close(fd)


def forget(names: Names, *, keep_lock: bool = False) -> list[str]:
    """Remove the testbed's files from the state directory, and the directory if it is then empty.

    The caller must hold the lock. With ``keep_lock``, the lock file stays. Return the removed paths.
    """
    files = [
        state_file(names),
        control_socket(names),
        *names.state_dir.glob("state*.new"),
        *names.state_dir.glob("denylist.*"),
        *names.state_dir.glob("live.json"),
    ]
    removed = [str(path) for path in (*files, work_dir(names)) if path.exists()]
    for path in files:
        path.unlink(missing_ok=True)
    shutil.rmtree(work_dir(names), ignore_errors=True)
    markers = Markers(markers_dir(names))
    for name in markers.names():
        if not markers.ours(name):
            markers.remove(name)
    with suppress(OSError):
        markers_dir(names).rmdir()
    if not keep_lock:
        (names.state_dir / "lock").unlink(missing_ok=True)
        with suppress(OSError):
            names.state_dir.rmdir()
    return removed
