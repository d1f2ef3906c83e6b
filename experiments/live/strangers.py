"""Changes of a fabric, by others, while an experiment runs on it: of queues, links and switches' tables."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from mrclab.controller.fault_tables import TABLE_KINDS
from mrclab.linux import namespaces
from mrclab.linux.link_monitor import ChangeWatch
from mrclab.testbed.lab import Lab
from mrclab.testbed.running import RunningFabric

_MOST_NAMED = 3


class Strangers:
    """Looks for changes of a running fabric that the experiment did not make. A context manager."""

    def __init__(self, running: RunningFabric) -> None:
        self._lab = running if isinstance(running, Lab) else None
        self._watches: dict[str, ChangeWatch] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        if self._lab is not None:
            spaces = self._lab.network.names.of(self._lab.fabric)
            namespaces.in_thread(lambda: self._watch(spaces))
        return self

    def _watch(self, spaces: Iterable[str]) -> None:
        for space in spaces:
            namespaces.enter(space)
            self._watches[space] = ChangeWatch()
            self._closing.callback(self._watches[space].close)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def changes(self, kinds: Iterable[str]) -> tuple[str, ...]:
        """Return the changes in one line, or nothing.

        ``kinds`` are those of all faults so far. Only faults that are entries of a fault table leave queues,
        links and routes as they are: after others nothing is looked for.
        """
        if self._lab is None or not set(kinds) <= set(TABLE_KINDS):
            return ()
        found = [change for watch in self._watches.values() for change in watch.changes()]
        found += [
            f"a switch's tables are not as they were programmed, {d}" for d in self._lab.controller.verify()
        ]
        if not found:
            return ()
        more = f", and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return (f"others changed the fabric during the run: {'; '.join(found[:_MOST_NAMED])}{more}",)
