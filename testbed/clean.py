"""Remove a testbed, whether its owner runs or has crashed. Nothing else is removed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from mrclab.linux import namespaces, processes
from mrclab.linux.namespaces import Identity, Markers
from mrclab.linux.processes import Process
from mrclab.testbed import state
from mrclab.testbed.names import RUN_VARIABLE, Names

KEEPER_GRACE_S = 30.0  # a process that keeps the testbed up may still save measurements
ROUNDS = 3  # repeat, because an ended process may have started another one


@dataclass(frozen=True, slots=True)
class Removed:
    """The removed processes, namespaces and files, and whether the record of a testbed was removed."""

    processes: tuple[Process, ...] = ()
    namespaces: tuple[str, ...] = ()
    record: bool = False
    files: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.namespaces or self.record or self.files)

    def __str__(self) -> str:
        if not self:
            return "nothing to clean"
        found = f"{len(self.processes)} processes, {len(self.namespaces)} namespaces"
        return f"removed {found}" + (" and the record of a testbed" if self.record else "")

    def lines(self) -> list[str]:
        """Return a line for each thing that was removed."""
        return [
            *(f"process {process.pid}: {process.what}" for process in self.processes),
            *(f"network namespace {name}" for name in self.namespaces),
            *(f"file {name}" for name in self.files),
        ]


def testbed_processes(names: Names, spaces: Iterable[Identity]) -> Iterator[Process]:
    """Return the processes of a testbed: they have a run id of the testbed, or run in one of its namespaces.

    The calling process and its ancestors are never included.
    """
    return processes.find(RUN_VARIABLE, names.owns_run, spaces)


def clean(names: Names) -> Removed:
    """Remove all parts of a testbed: its processes, its namespaces with their contents, its record.

    This works after any crash and can be repeated. Nothing of another testbed or program is changed.
    """
    if not names.state_dir.exists() and not any(testbed_processes(names, ())):
        return Removed()
    keepers = end_keepers(names)
    with state.locked(names):
        removed = remove(names)
    return replace(removed, processes=(*keepers, *removed.processes))


def end_keepers(names: Names) -> list[Process]:
    """End the processes that keep a testbed up: its owner or, without an owner, the recorded processes.

    The caller and its ancestors are never ended. The caller must not hold the lock, because a process that
    gets SIGTERM may need the lock to take the testbed down.
    """
    found = state.read(names)
    if found is None:
        return []
    spared = processes.ancestors(os.getpid())
    keepers = map(processes.seen_here, found.processes if found.owner is None else (found.owner,))
    return processes.end([keeper for keeper in keepers if keeper.pid not in spared], KEEPER_GRACE_S)


def remove(names: Names, *, keep_lock: bool = False) -> Removed:
    """Do the work of ``clean``. The caller must hold the lock. With ``keep_lock``, the lock file stays."""
    markers = Markers(state.markers_dir(names))
    ended: list[Process] = []
    for _ in range(ROUNDS):
        found = processes.end(testbed_processes(names, markers.identities()))
        if not found:
            break
        ended += found
    removed = [name for name in markers.names() if _delete(name, names, markers)]
    files = state.forget(names, keep_lock=keep_lock)
    record = str(state.state_file(names)) in files
    return Removed(tuple(ended), tuple(removed), record, tuple(files))


def _delete(name: str, names: Names, markers: Markers) -> bool:
    if name == names.fabric and markers.ours(name) and namespaces.exists(name):
        from mrclab.testbed import links

        # Delete the links now, all at once. Otherwise the kernel deletes them while the next testbed starts.
        with suppress(OSError):
            links.cut(name)
    return namespaces.delete(name, markers)


@contextmanager
def removed_on_error(names: Names) -> Iterator[None]:
    """Remove the testbed if the body of the ``with`` raises any exception."""
    try:
        yield
    except BaseException:
        remove(names)
        raise
