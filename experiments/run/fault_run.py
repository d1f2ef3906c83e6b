"""Carrying out a repetition's faults: timed, in sequence and random entries, one executor for all.

It never waits: ``next_ns`` returns the next due time, and ``act`` does the work.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Protocol

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.run.profile_changes import ProfileSource
from mrclab.experiments.run.sequence import Deaths, SequenceSource
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.faults.model import Moment
from mrclab.linux.process_deaths import Death

REVIVE_AFTER_NS = 100_000_000
"""How long a switch that ended by itself stays away."""



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


class SwitchWatch(Deaths, Protocol):
    """The interface of a watch over switches that end by themselves."""

    @property
    def revive_ns(self) -> int | None:
        """Return when switches that ended are to be started again; None while there are none."""

    def next_death(self, broken: Callable[[str], bool]) -> Death | None:
        """Return a death that no fault explains; ``broken`` returns whether a place has a fault."""

    def switch(self, death: Death) -> str:
        """Return the name of the switch that ended."""

    def words(self, death: Death) -> str:
        """Return the message about a death. Raise SwitchError if the switch cannot be started again."""

    def plan_revival(self, death: Death, at_ns: int) -> None:
        """Have the switch started again at a time."""

    def revive(self, clock: Clock) -> Iterator[tuple[str, Death, Moment]]:
        """Start the switches again; yield each with the moment in which it came back."""


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
        deaths: SwitchWatch | None,
        profiles: ProfileSource | None = None,
    ) -> None:
        self._injector = injector
        self._timed = tuple(timed)
        self._profiles = () if profiles is None else (profiles,)
        self._sources: tuple[TimedSource | SequenceSource | ProfileSource, ...] = (
            *timed,
            *sequences,
            *self._profiles,
        )
        self.sequences = tuple(sequences)
        self._deaths = deaths
        self.failures: list[str] = []

    @property
    def next_ns(self) -> int | None:
        """Return when something is due; None while nothing is."""
        dues = [source.next_ns for source in self._sources if not source.over]
        revive_ns = None if self._deaths is None else self._deaths.revive_ns
        return min((due for due in (*dues, revive_ns) if due is not None), default=None)

    @property
    def waits_for_paths(self) -> bool:
        """Return True if a trial waits until all paths are back."""
        return any(sequence.next_ns is None and not sequence.over for sequence in self.sequences)

    def records(self) -> tuple[FaultRecord, ...]:
        """Return the records of all faults so far, in order."""
        return self._injector.records()

    @property
    def over(self) -> bool:
        """Return True if every fault with an end was made and undone."""
        reviving = self._deaths is not None and self._deaths.reviving
        return all(source.over for source in self._sources) and not reviving

    @property
    def late_ns(self) -> int:
        """Return by how much a timed fault was made or undone too late, at most."""
        return max((source.late_ns for source in self._timed), default=0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the reader."""
        skipped = sum(source.skipped for source in self._timed)
        found = [f"{skipped} faults were left out: their places were broken already"] if skipped else []
        return (*found, *(note for source in (*self.sequences, *self._profiles) for note in source.notes))

    @property
    def all_failures(self) -> tuple[str, ...]:
        """Return why the figures are not to be trusted: deaths of switches, refused changes of profiles."""
        return (*self.failures, *(failure for source in self._profiles for failure in source.failures))

    def act(self, clock: Clock) -> None:
        """Do everything that is due. Raise SwitchError if a switch ended that cannot be started again."""
        if self._deaths is not None:
            self._look_for_deaths(self._deaths, clock)
        for source in self._sources:
            source.act(clock)

    def _look_for_deaths(self, deaths: SwitchWatch, clock: Clock) -> None:
        while (death := deaths.next_death(self._injector.broken)) is not None:
            self._on_death(deaths, death, clock)
        if deaths.revive_ns is not None and deaths.revive_ns <= clock():
            self._revive(deaths, clock)

    def _on_death(self, deaths: SwitchWatch, death: Death, clock: Clock) -> None:
        self.failures.append(deaths.words(death))
        deaths.plan_revival(death, clock() + REVIVE_AFTER_NS)
        for sequence in self.sequences:
            sequence.release()

    def _revive(self, deaths: SwitchWatch, clock: Clock) -> None:
        for sequence in self.sequences:
            if sequence.marks <= len(self._injector):  # else the trial it fell into has no separate record
                sequence.mark()
        for switch, death, moment in deaths.revive(clock):
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
        deaths = self._deaths
        while deaths is not None and (death := deaths.next_death(self._injector.broken)) is not None:
            self.failures.append(
                f"switch failure: {deaths.switch(death)} ended by itself after the last trial"
            )
