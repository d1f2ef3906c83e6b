"""The state of a running testbed for later processes: one file, replaced as a whole, and one lock."""

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
DIRECTORY_MODE = 0o711  # programs of the testbed that are not root may pass through, but not look around


@dataclass(frozen=True, slots=True)
class State:
    """A testbed that is up, or was when its process died.

    ``owner`` is the process that will take it down when it ends (its ``what`` is the command), or None if it
    was detached from its maker. ``fabric_text`` makes the fabric again. ``target`` is the switches' target,
    or empty without one. ``user`` is its user. ``stays``: other commands may use it, not an experiment alone.
    ``taken`` names the process that is taking it down.
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
        """With one more process, and without the ended ones."""
        return replace(self, processes=(*(p for p in self.processes if p.alive), process))

    def alive(self, names: Names) -> bool:
        """Return true if it is still there.

        With an owner: the owner runs. Without: the switches' namespace is in place and, where processes were
        recorded, one of them runs.
        """
        if self.owner is not None:
            return self.owner.alive
        there = Markers(markers_dir(names)).ours(names.fabric) and namespaces.exists(names.fabric)
        return there and (not self.processes or any(process.alive for process in self.processes))


def now() -> str:
    """Return the time of day as the state has it, to the second."""
    return datetime.now(UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def markers_dir(names: Names) -> Path:
    """Return the directory of our namespaces' markers."""
    return names.state_dir / "namespaces.d"


def work_dir(names: Names) -> Path:
    """Return the directory of programs' files, which are removed with the testbed."""
    return names.state_dir / "work.d"


def state_file(names: Names) -> Path:
    """Return the path of the state file."""
    return names.state_dir / "state.json"


def read(names: Names) -> State | None:
    """Return the recorded testbed, or None if there is none or its record makes no sense.

    Raise MachineError without root, the owner of the record.
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
    """Return the testbed that is up. Raise InputError if no testbed is up, with the fate of the last one."""
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
    """Return the path of the note on who took the last testbed from its owner. It outlives the testbed."""
    return names.state_dir.with_name(f"{names.state_dir.name}.taken")


def read_taken(names: Names) -> str:
    """Return who took the last testbed from its owner, or nothing."""
    try:
        return taken_file(names).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def control_socket(names: Names) -> Path:
    """Return where the daemon of a testbed that stays listens."""
    return names.state_dir / CONTROL_SOCKET


def write(names: Names, state: State) -> None:
    """Replace the record in one step, so that a reader sees the old one or the new one."""
    names.state_dir.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    target = state_file(names)
    draft = target.with_suffix(f".{os.getpid()}.new")
    draft.write_text(json.dumps({"schema": SCHEMA, **asdict(state)}, indent=1) + "\n", encoding="utf-8")
    draft.replace(target)


@contextmanager
def locked(names: Names) -> Iterator[None]:
    """Wait for the lock, under which no other testbed of these names comes up, goes down or is cleaned."""
    import fcntl  # Unix has it alone

    path = names.state_dir / "lock"
    while True:
        try:
            names.state_dir.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the directory was just cleaned away
        except FileExistsError:
            if names.state_dir.is_file():  # looked at once: others may be removing it and making it again
                raise
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            held, named = os.fstat(fd), None
            with suppress(FileNotFoundError):
                named = os.stat(path)
            if named is None or (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
                continue  # the last holder cleaned the file away: lock the new one
            yield
            return
        finally:
            os.close(fd)


def forget(names: Names, *, keep_lock: bool = False) -> list[str]:
    """Remove everything of ours from the state directory, and the directory if that leaves it empty.

    The caller holds the lock, and with ``keep_lock`` goes on holding it. Return the removed paths.
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
