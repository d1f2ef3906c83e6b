"""Carrying out a repetition's faults: timed, in sequence and random entries, one executor for all.

In a sequence, faults are made one after another: each trial holds one, undoes it, and waits until all is
settled. Nothing here waits: ``next_ns`` returns the next due time, and ``act`` does the work.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Protocol

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.load import Load, in_trial
from mrclab.experiments.measure.validity import kept_up
from mrclab.experiments.run.injection import Injector, ProfileSource
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.faults.kinds import Moment
from mrclab.linux.process_watch import Death

RESTORE_TIMEOUT_S = 5.0
MOST_REHEARSALS = 3

Clock = Callable[[], int]


def _rpc_errors() -> tuple[type[Exception], ...]:
    """Return gRPC's class of errors if this process uses gRPC: virtual time has no switches to call."""
    grpc = sys.modules.get("grpc")
    return () if grpc is None else (grpc.RpcError,)


class Paths(Protocol):
    """The interface to the senders' paths."""

    def ask_restored(self, timeout_s: float) -> None:
        """Begin to wait until no path is considered broken, at most ``timeout_s``."""

    @property
    def restored(self) -> bool | None:
        """Return the answer: None while there is none yet."""


class Pace(Protocol):
    """The interface of the workload's rate: a driver's."""

    @property
    def rehearses(self) -> bool:
        """Return True if a trial that does not count is to come before the others, to settle the rate."""

    def adapt(self, load: Load) -> bool:
        """Adapt the rate after a trial of this load; return True if that trial's rate was right."""


class Marks(Protocol):
    """The interface of `mrclab.experiments.live.captures.recorder.Recorder` to trials."""

    def mark(self) -> None:
        """Mark a boundary."""

    def last_load(self) -> Load:
        """Return the load between the last two marks."""

    def amend(self, load: Load) -> None:
        """Replace the load between the last two marks by an amended one."""

    def take_as_usual(self) -> None:
        """Compare later loads with the one between the last two marks."""


class Deaths(Protocol):
    """The interface of `mrclab.experiments.live.disturbances.SwitchDeaths` to trials."""

    @property
    def reviving(self) -> bool:
        """Return True while a switch is being started again."""

    def require_death(self) -> None:
        """Raise if no switch has ended."""


class SequenceSource:
    """Makes faults one after another: hold, undo, wait for all paths, settle, next.

    A trial in which the machine did not keep up is made again after all others, as many times in all as there
    are trials: a shared machine has such moments, and whether one falls into a trial does not depend on how
    the trial goes. At once it would often meet the same moment, and one place would get most of the trials.
    ``say`` gets a line at the first of them. ``marks`` counts the boundaries between trials.

    If a path was retired in the time to settle, that wait is repeated before the next fault, once.

    ``pace`` adapts the rate at each boundary. On its request, the first trials are rehearsals, which do not
    count: they end when the rate was right in one of them, after three at the latest.
    """

    def __init__(
        self,
        injector: Injector,
        trials: Sequence[PlannedFault],
        settle_ns: int,
        paths: Paths,
        recorder: Marks,
        deaths: Deaths,
        step: Callable[[], None],
        say: Callable[[str], None] = lambda line: None,
        pace: Pace | None = None,
    ) -> None:
        self._injector = injector
        self._trials = list(trials)
        self._settle_ns = settle_ns
        self._paths = paths
        self._recorder = recorder
        self._deaths = deaths
        self._step = step
        self._say = say
        self._pace = pace
        self._rehearsing = pace is not None and pace.rehearses and bool(trials)
        self.rehearsals = 0
        """How many of the faults that were made were rehearsals: the first."""
        self._number = 0
        self._again = len(trials)
        self._state = "ready"
        self._made = 0
        self._settling_ns = 0
        """When the last wait for all to settle began."""
        self._between = False
        """That wait comes after a trial, not at its end."""
        self.marks = 0
        self.next_ns: int | None = 0
        self.notes: list[str] = []

    @property
    def over(self) -> bool:
        """Return True if all trials are done."""
        return self._number >= len(self._trials)

    @property
    def done(self) -> int:
        """Return how many trials are done."""
        return self._number

    @property
    def wanted(self) -> int:
        """Return the requested number of trials."""
        return len(self._trials)

    def act(self, clock: Clock) -> None:
        """Take the next step if it is due."""
        if self._state == "waiting":
            self._look_for_paths(clock)
        while not self.over and self.next_ns is not None and self.next_ns <= clock():
            if self._state == "ready":
                self._begin(clock)
            elif self._state == "held":
                self.release()
            elif self._between:
                self._between = False
                self._state, self.next_ns = "ready", 0
            else:
                self._end()

    def _begin(self, clock: Clock) -> None:
        if not self.marks:
            self.mark()
        fault = self._trials[self._number]
        self._injector.prepare(fault)
        self._injector.wait_prepared(fault)
        self._made = self._injector.make(fault)
        assert fault.until_ns is not None
        self._state, self.next_ns = "held", clock() + fault.until_ns

    def release(self) -> None:
        """Undo the fault that is held. Raise grpc.RpcError if the switch lost it by ending."""
        if self._state != "held":
            return
        try:
            self._injector.undo(self._made)
        except _rpc_errors():
            # The switch died with its fault entries: there is nothing to undo in it any more.
            if not self._deaths.reviving:
                self._deaths.require_death()
            self._injector.forget(self._made)
        self._wait_for_paths()

    def _wait_for_paths(self) -> None:
        self._state, self.next_ns = "waiting", None
        if not self._deaths.reviving:
            self._paths.ask_restored(RESTORE_TIMEOUT_S)

    def revived(self) -> None:
        """Go on after a switch that ended by itself is back."""
        if self._state in ("waiting", "settling"):
            self._wait_for_paths()

    def _look_for_paths(self, clock: Clock) -> None:
        restored = self._paths.restored
        if restored is None or self._deaths.reviving:
            return
        if not restored:
            self.notes.append(
                f"trial {self._number}: not every path came back within {RESTORE_TIMEOUT_S:g} s"
            )
        self._settling_ns = clock()
        self._state, self.next_ns = "settling", self._settling_ns + self._settle_ns

    def _end(self) -> None:
        self.mark()
        self._state, self.next_ns = "ready", 0
        load = self._recorder.last_load()
        self._judge(in_trial(load, self._injector.records()[-1]))
        if not self.over and any(t_ns >= self._settling_ns for t_ns in load.retired_ns):
            # It was no fault of ours, but a pause of the peer, say: the next trial would begin without paths.
            self._between = True
            self._wait_for_paths()

    def _judge(self, load: Load) -> None:
        """Take in the load of the trial that ended: does it count, is it made again, at which rate."""
        self._recorder.amend(load)
        if kept_up(load) or self._rehearsing:
            self._recorder.take_as_usual()
        right = self._pace is None or self._pace.adapt(load)
        if self._rehearsing:
            self.rehearsals += 1
            self._rehearsing = not (right and kept_up(load)) and self.rehearsals < MOST_REHEARSALS
            return
        if not kept_up(load) and self._again:
            if self._again == len(self._trials):
                self._say("the machine did not keep up in a trial, which is made again after the others")
            self._again -= 1
            self._trials.append(self._trials.pop(self._number))
            return
        self._number += 1
        self._step()

    def mark(self) -> None:
        """Mark a boundary between trials."""
        self._recorder.mark()
        self.marks += 1


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
