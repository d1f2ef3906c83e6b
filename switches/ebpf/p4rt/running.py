"""A program at work on one switch: what the kernel runs, and the server's view of what its maps hold."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from switches.ebpf.changes import Change, Transaction
from switches.ebpf.compiled import Compiled
from switches.ebpf.datapath import Datapath
from switches.ebpf.entries import TableState
from switches.ebpf.p4rt.cells import CounterCells
from switches.ebpf.p4rt.status import Code, P4RuntimeError
from switches.ebpf.profiles import ProfileState


class Running:
    """The state of a loaded program. Making it fills the maps with what the program says."""

    def __init__(self, compiled: Compiled, datapath: Datapath, is_up: Callable[[int], bool]) -> None:
        plan = compiled.plan
        self.compiled = compiled
        self.datapath = datapath
        self.tables = {t.name: TableState(t, plan.tables[t.name]) for t in compiled.program.tables()}
        self.profiles = {name: ProfileState(layout, is_up) for name, layout in plan.profiles.items()}
        self.counters = CounterCells(datapath)
        first = Transaction()
        for state in self.tables.values():
            state.setup(first)
        self.apply(first)

    def touch(self, change: Change) -> None:
        """Look a key up, so that the caches are warm for an update whose moment is to be known."""
        self.datapath.maps[change.map].lookup(change.key)

    def apply(self, tx: Transaction, undo_first: Sequence[Transaction] = ()) -> None:
        """Make the map updates of a transaction.

        When one fails, all of it is undone, and before it those that were planned behind it. Then raises
        P4RuntimeError.
        """
        maps = self.datapath.maps
        done = 0
        try:
            for change in tx.changes:
                if change.value is None:
                    maps[change.map].delete(change.key)
                else:
                    maps[change.map].update(change.key, change.value)
                done += 1
        except OSError as exc:
            for later in reversed(undo_first):
                later.undo()
            self.revert(tx, done)
            if exc.errno in (errno.E2BIG, errno.ENOSPC, errno.ENOMEM):
                raise P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"map update: {exc.strerror}") from exc
            raise P4RuntimeError(Code.INTERNAL, f"map update: {exc.strerror}") from exc

    def revert(self, tx: Transaction, done: int | None = None) -> None:
        """Take back a transaction of which `done` map updates (None: all) were made."""
        tx.undo()
        maps = self.datapath.maps
        for change in reversed(tx.changes[:done]):
            value = change.current()
            if value is not None:
                maps[change.map].update(change.key, value)
            elif maps[change.map].lookup(change.key) is not None:
                maps[change.map].delete(change.key)

    def link_changed(self, port: int) -> None:
        """Take into account that a port has got or lost its link."""
        tx = Transaction()
        for profile in self.profiles.values():
            profile.link_changed(port, tx)
        self.apply(tx)
