"""What disturbs an experiment and is not one of its faults: changes by others, switches that end.

Others may change queues, links and switches' tables while an experiment runs; that is noticed. A switch that
ends by itself is noticed and started again.
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


DEATH_TIMEOUT_S = 5.0


def by_switch(running: RunningFabric) -> dict[str, int]:
    """Return the processes of the switches (on ebpf: the one that programs them) by name, with a prefix."""
    if not isinstance(running, Lab):
        return {}
    return {SWITCH_PREFIX + name: pid for name, pid in running.target.processes().items()}


class SwitchDeaths:
    """Watches the processes of a fabric's switches. A context manager."""

    def __init__(self, running: RunningFabric, recorder: Recorder) -> None:
        self._lab = running if isinstance(running, Lab) else None
        self._recorder = recorder
        self._watch = DeathWatch(by_switch(running))
        self._waiting: list[Death] = []
        self._reviving: list[Death] = []
        self.revive_ns: int | None = None
        """When switches that ended are to be started again; None while there are none."""

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
        """Return a death that no fault explains; ``broken`` returns whether a place has a fault."""
        while (death := self._waiting.pop(0) if self._waiting else self._watch.wait(0)) is not None:
            switch = self.switch(death)
            if not broken(switch) and not broken(switch.partition("-")[0]):
                return death
        return None

    def require_death(self) -> None:
        """Wait for the death that explains a lost connection. Raise SwitchError if there is none."""
        death = self._watch.wait(DEATH_TIMEOUT_S)
        if death is None:
            raise SwitchError("a switch does not answer, though it goes on running")
        self._waiting.append(death)

    def switch(self, death: Death) -> str:
        """Return the name of the switch that ended."""
        return death.name.removeprefix(SWITCH_PREFIX)

    def words(self, death: Death) -> str:
        """Return the message about a death. Raise SwitchError if the switch cannot be started again."""
        if self._lab is None or not self._lab.capabilities.process_per_switch:
            why = self._lab.target.ended() if self._lab is not None else None
            raise SwitchError(f"{why or death.name + ' ended'} in the middle of the run")
        switch = self.switch(death)
        last = self._lab.target.last_words(switch)
        return f"switch failure: {switch} {last}, by no fault, and was started again"

    @property
    def reviving(self) -> bool:
        """Return True if a switch that ended is not back yet."""
        return bool(self._reviving)

    def plan_revival(self, death: Death, at_ns: int) -> None:
        """Have the switch started again at a time."""
        self._reviving.append(death)
        self.revive_ns = at_ns

    def revive(self, clock: Callable[[], int]) -> Iterator[tuple[str, Death, Moment]]:
        """Start the switches again and program them; yield each with the moment in which it came back."""
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
