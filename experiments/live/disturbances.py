"""Disturbances of an experiment that are not its faults: changes by other programs, and ended switches.

If another program changes queues, links or tables of switches during an experiment, this is reported. If a
switch's process ends without a fault, this is reported, and the switch is started again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from mrclab.controller.fault_tables import TABLE_KINDS
from mrclab.experiments.live.captures.recorder import Recorder
from mrclab.experiments.measure.load import SWITCH_PREFIX
from mrclab.faults.kinds import Moment
from mrclab.linux import namespaces
from mrclab.linux.errors import SwitchError
from mrclab.linux.link_monitor import ChangeWatch
from mrclab.linux.process_watch import Death, DeathWatch
from mrclab.testbed.lab import Lab
from mrclab.testbed.running import RunningFabric

_MOST_NAMED = 3


class Strangers:
    """Find changes of a running fabric that the experiment did not make. A context manager."""

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
        """Return a tuple with one line about changes that other programs made to the fabric.

        The tuple is empty if there are no such changes. ``kinds`` are the kinds of all faults so far. If a
        kind is not in TABLE_KINDS, its faults change queues, links or routes. The tuple is then empty,
        because changes by other programs cannot be recognized.
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


DEATH_TIMEOUT_S = 5.0


def by_switch(running: RunningFabric) -> dict[str, int]:
    """Return the switches' process ids by name. On ebpf, one process writes the tables of all switches."""
    if not isinstance(running, Lab):
        return {}
    return {SWITCH_PREFIX + name: pid for name, pid in running.target.processes().items()}


class SwitchDeaths:
    """Watch the processes of a fabric's switches. A context manager."""

    def __init__(self, running: RunningFabric, recorder: Recorder) -> None:
        self._lab = running if isinstance(running, Lab) else None
        self._recorder = recorder
        self._watch = DeathWatch(by_switch(running))
        self._waiting: list[Death] = []
        self._reviving: list[Death] = []
        self.revive_ns: int | None = None
        """When to start the ended switches again; None if no switch has ended."""

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.__exit__(kind, error, trace)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a switch has ended."""
        return self._watch.fileno()

    def next_death(self, broken: Callable[[str], bool]) -> Death | None:
        """Return the next switch that ended without a fault, or None. ``broken`` tests a place for faults."""
        while (death := self._waiting.pop(0) if self._waiting else self._watch.wait(0)) is not None:
            switch = self.switch(death)
            if not broken(switch) and not broken(switch.partition("-")[0]):
                return death
        return None

    def require_death(self) -> None:
        """Wait for the end of a switch that does not answer any more. Raise SwitchError if no switch ends."""
        death = self._watch.wait(DEATH_TIMEOUT_S)
        if death is None:
            raise SwitchError("a switch does not answer, though it goes on running")
        self._waiting.append(death)

    def switch(self, death: Death) -> str:
        """Return the name of the switch that has ended."""
        return death.name.removeprefix(SWITCH_PREFIX)

    def words(self, death: Death) -> str:
        """Return a message about how a switch ended. Raise SwitchError if no restart is possible."""
        if self._lab is None or not self._lab.capabilities.process_per_switch:
            why = self._lab.target.ended() if self._lab is not None else None
            raise SwitchError(f"{why or death.name + ' ended'} in the middle of the run")
        switch = self.switch(death)
        last = self._lab.target.last_words(switch)
        return f"switch failure: {switch} {last}, by no fault, and was started again"

    @property
    def reviving(self) -> bool:
        """Return True if an ended switch has not been started again yet."""
        return bool(self._reviving)

    def plan_revival(self, death: Death, at_ns: int) -> None:
        """Plan to start the switch again at the given time."""
        self._reviving.append(death)
        self.revive_ns = at_ns

    def revive(self, clock: Callable[[], int]) -> Iterator[tuple[str, Death, Moment]]:
        """Start the ended switches again and program them. Yield each switch, its death and new start."""
        assert self._lab is not None
        while self._reviving:
            death = self._reviving.pop(0)
            switch, before = self.switch(death), clock()
            self._lab.revive(switch)
            self.watch_again()
            yield switch, death, Moment(before, clock(), "testbed")
        self.revive_ns = None

    def watch_again(self) -> None:
        """Watch the processes of switches that were started again."""
        if self._lab is None or not self._lab.capabilities.process_per_switch:
            return
        pids: Mapping[str, int] = by_switch(self._lab)
        for name, pid in pids.items():
            self._watch.add(name, pid)
        self._recorder.watch(pids)
