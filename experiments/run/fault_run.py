"""Carrying out a repetition's faults: timed, in sequence and random entries, one executor for all.

It never waits: ``next_ns`` returns the next due time, and ``act`` does the work.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.run.sequence import SequenceSource
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.linux.process_deaths import Death

if TYPE_CHECKING:
    from mrclab.experiments.run.switch_deaths import SwitchDeaths

REVIVE_AFTER_NS = 100_000_000
"""How long a switch that ended by itself stays away."""

Clock = Callable[[], int]


class TimedSource:
    """Makes faults of a plan in order of time, each at its time. The plan may be endless.

    A fault is prepared when the one before it has been made. ``start_ns`` is when the measurement starts.
    """

    def __init__(self, injector: Injector, planned: Iterable[PlannedFault], start_ns: int) -> None:
        self._injector = injector
        self._planned: Iterator[PlannedFault] = iter(planned)
        self._coming = next(self._planned, None)
        self.start_ns = start_ns
        self._undoing: list[tuple[int, int, int]] = []
        self._order = count()
        self.late_ns = 0
        self.skipped = 0
        """Faults left out because their place was broken already."""

    @property
    def next_ns(self) -> int | None:
        """Return when the next fault is to be made or undone."""
        make = [] if self._coming is None else [self.start_ns + self._coming.at_ns]
        undo = [self.start_ns + until_ns for until_ns, _, _ in self._undoing[:1]]
        return min([*make, *undo], default=None)

    @property
    def over(self) -> bool:
        """Return True if nothing is left to make or undo."""
        return self.next_ns is None

    def make_first(self) -> None:
        """Make the faults that are due when the measurement starts, before it does."""
        while self._coming is not None and self._coming.at_ns <= 0:
            self._make_coming()

    def act(self, clock: Clock) -> None:
        """Make and undo the faults that are due. At the same time undoing comes first."""
        while (due := self.next_ns) is not None and due <= clock():
            self.late_ns = max(self.late_ns, clock() - due)
            if self._undoing and self.start_ns + self._undoing[0][0] == due:
                self._injector.undo(heapq.heappop(self._undoing)[2])
            else:
                self._make_coming()

    def _make_coming(self) -> None:
        assert self._coming is not None
        fault, self._coming = self._coming, next(self._planned, None)
        if self._injector.broken(fault.place):
            self.skipped += 1
        else:
            number = self._injector.make(fault)
            if fault.until_ns is not None:
                heapq.heappush(self._undoing, (fault.until_ns, next(self._order), number))
        if self._coming is not None:
            self._injector.prepare(self._coming)


class FaultRun:
    """All faults of a repetition, and the switches that end by themselves.

    Such a death is a separate fault in the records (kind ``switch-death``), if the target can start the
    switch again: it is started and programmed, and the run goes on. ``failures`` names each.
    """

    def __init__(
        self,
        injector: Injector,
        timed: Sequence[TimedSource],
        sequences: Sequence[SequenceSource],
        deaths: SwitchDeaths,
    ) -> None:
        self._injector = injector
        self._timed = tuple(timed)
        self._sources: tuple[TimedSource | SequenceSource, ...] = (*timed, *sequences)
        self.sequences = tuple(sequences)
        self._deaths = deaths
        self.failures: list[str] = []

    @property
    def next_ns(self) -> int | None:
        """Return when something is due; None while nothing is."""
        dues = [source.next_ns for source in self._sources if not source.over]
        return min((due for due in (*dues, self._deaths.revive_ns) if due is not None), default=None)

    @property
    def over(self) -> bool:
        """Return True if every fault with an end was made and undone."""
        return all(source.over for source in self._sources) and not self._deaths.reviving

    @property
    def late_ns(self) -> int:
        """Return by how much a timed fault was made or undone too late, at most."""
        return max((source.late_ns for source in self._timed), default=0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the reader."""
        skipped = sum(source.skipped for source in self._timed)
        found = [f"{skipped} faults were left out: their places were broken already"] if skipped else []
        return (*found, *(note for source in self.sequences for note in source.notes))

    def act(self, clock: Clock) -> None:
        """Do everything that is due. Raise SwitchError if a switch ended that cannot be started again."""
        while (death := self._deaths.next_death(self._injector.broken)) is not None:
            self._on_death(death, clock)
        if self._deaths.revive_ns is not None and self._deaths.revive_ns <= clock():
            self._revive(clock)
        for source in self._sources:
            source.act(clock)

    def _on_death(self, death: Death, clock: Clock) -> None:
        self.failures.append(self._deaths.words(death))
        self._deaths.plan_revival(death, clock() + REVIVE_AFTER_NS)
        for sequence in self.sequences:
            sequence.release()

    def _revive(self, clock: Clock) -> None:
        for sequence in self.sequences:
            if sequence.marks <= len(self._injector):  # else the trial it fell into has no separate record
                sequence.mark()
        for switch, death, moment in self._deaths.revive(clock):
            self._injector.add(
                FaultRecord(
                    kind="switch-death",
                    where=switch,
                    t_before_ns=death.t_before_ns,
                    t_after_ns=death.t_after_ns,
                    restore_before_ns=moment.t_before_ns,
                    restore_after_ns=moment.t_after_ns,
                )
            )
        for sequence in self.sequences:
            sequence.revived()

    def look_back(self) -> None:
        """Name the switches that ended after the last fault, when it was too late to measure them."""
        while (death := self._deaths.next_death(self._injector.broken)) is not None:
            self.failures.append(
                f"switch failure: {self._deaths.switch(death)} ended by itself after the last trial"
            )
