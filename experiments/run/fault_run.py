"""Make a repetition's faults: faults at given times, random faults, and sequences of faults.

In a sequence, each trial makes one fault and undoes it, and ends when all paths are in use again. The
functions do not wait: ``next_ns`` returns the time of the next action, and ``act`` performs this action.
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
    """Return gRPC's class of errors, or nothing if this process does not use gRPC (in virtual time)."""
    grpc = sys.modules.get("grpc")
    return () if grpc is None else (grpc.RpcError,)


class Paths(Protocol):
    """The interface to the paths of the senders."""

    def ask_restored(self, timeout_s: float) -> None:
        """Start a wait that ends after ``timeout_s``, or when the senders have no path marked as broken."""

    @property
    def restored(self) -> bool | None:
        """Return whether all paths are in use again; None while `ask_restored` still waits."""


class Pace(Protocol):
    """The interface to the workload's rate, which a driver implements."""

    @property
    def rehearses(self) -> bool:
        """Return True if trials that do not count must come first, to adapt the workload's rate."""

    def adapt(self, load: Load) -> bool:
        """Adapt the rate after a trial with this load; return True if the rate of this trial was right."""


class Marks(Protocol):
    """The part of `mrclab.experiments.live.captures.recorder.Recorder` that trials use."""

    def mark(self) -> None:
        """Mark the end of a trial and the start of the next."""

    def last_load(self) -> Load:
        """Return the load between the last two calls of `mark`."""

    def amend(self, load: Load) -> None:
        """Replace the load that was recorded between the last two calls of `mark` by ``load``."""

    def take_as_usual(self) -> None:
        """Use the load between the last two calls of `mark` as a normal load in later comparisons."""


class Deaths(Protocol):
    """The part of `mrclab.experiments.live.disturbances.SwitchDeaths` that trials use."""

    @property
    def reviving(self) -> bool:
        """Return True while a switch is being started again."""

    def require_death(self) -> None:
        """Wait until a switch ends. Raise an error if no switch ends within a time limit."""


class SequenceSource:
    """Make faults one after another: make a fault, hold it, undo it, and wait before the next fault.

    The wait lasts until all paths are used again, and then for ``settle``. If the machine was too slow in a
    trial, the trial is made again. This second attempt comes after all other trials, because the machine may
    be slow for some time. There are at most as many second attempts as trials. ``say`` gets one
    message, after the first slow trial. ``marks`` is the number of boundaries between trials so far.

    If the place of a trial is broken by another fault, a trial at a place that works comes first. If there is
    none, the trials that are left are not made.

    If a path is retired during ``settle``, the wait for paths is repeated once before the next fault.

    ``pace`` adapts the rate after each trial. If ``pace`` needs rehearsals, the first trials do not count.
    Rehearsals end when the rate of a rehearsal was right, and at the latest after three rehearsals.
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
        """The number of faults that were rehearsals. The rehearsals come before all other faults."""
        self._number = 0
        self._again = len(trials)
        self._state = "ready"
        self._made = 0
        self._settling_ns = 0
        """When the last wait for ``settle`` began."""
        self._between = False
        """True if a path was retired after the trial, so that the wait for paths is repeated."""
        self.marks = 0
        self.next_ns: int | None = 0
        self.notes: list[str] = []

    @property
    def over(self) -> bool:
        """Return True if all trials are done."""
        return self._number >= len(self._trials)

    @property
    def done(self) -> int:
        """Return the number of trials that are done."""
        return self._number

    @property
    def wanted(self) -> int:
        """Return the requested number of trials."""
        return len(self._trials)

    def act(self, clock: Clock) -> None:
        """Perform the next action of the trial if it is due."""
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
        self._take_possible()
        if self.over:
            return
        fault = self._trials[self._number]
        self._injector.prepare(fault)
        self._injector.wait_prepared(fault)
        self._made = self._injector.make(fault)
        assert fault.until_ns is not None
        self._state, self.next_ns = "held", clock() + fault.until_ns

    def _take_possible(self) -> None:
        """Take the first trial whose place works now. If there is none, leave out all further trials."""
        left = range(self._number, len(self._trials))
        number = next((n for n in left if self._injector.possible(self._trials[n])), None)
        if number is not None:
            self._trials.insert(self._number, self._trials.pop(number))
            return
        self.notes.append(f"{len(left)} trials were left out: their places were broken already")
        del self._trials[self._number :]
        for _ in left:
            self._step()

    def release(self) -> None:
        """Undo the present trial's fault. Raise SwitchError if this fails although no switch has ended."""
        if self._state != "held":
            return
        try:
            self._injector.undo(self._made)
        except _rpc_errors():
            # The switch ended and lost the fault's entry, so there is nothing to undo.
            if not self._deaths.reviving:
                self._deaths.require_death()
            self._injector.forget(self._made)
        self._wait_for_paths()

    def _wait_for_paths(self) -> None:
        self._state, self.next_ns = "waiting", None
        if not self._deaths.reviving:
            self._paths.ask_restored(RESTORE_TIMEOUT_S)

    def revived(self) -> None:
        """Continue the trial after an ended switch was started again."""
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
            # A path was retired after the trial, perhaps because the peer paused. The next trial needs all
            # paths.
            self._between = True
            self._wait_for_paths()

    def _judge(self, load: Load) -> None:
        """Decide by the load of the ended trial whether to make this trial again, and adapt the rate."""
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
        """Mark the end of a trial and the start of the next."""
        self._recorder.mark()
        self.marks += 1


REVIVE_AFTER_NS = 100_000_000
"""The time from the end of a switch until it is started again."""


class TimedSource:
    """Make planned faults, each at its time. The plan may be endless.

    A fault is prepared when the previous one has been made. The measurement starts at ``start_ns``.
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
        """The number of faults that were left out because their place was broken already."""

    @property
    def next_ns(self) -> int | None:
        """Return when the next fault must be made or undone, or None."""
        make = [] if self._coming is None else [self.start_ns + self._coming.at_ns]
        undo = [self.start_ns + until_ns for until_ns, _, _ in self._undoing[:1]]
        return min([*make, *undo], default=None)

    @property
    def over(self) -> bool:
        """Return True if no fault is left to make or to undo."""
        return self.next_ns is None

    def make_first(self) -> None:
        """Make the faults that are due at the start of the measurement, shortly before this start."""
        while self._coming is not None and self._coming.at_ns <= 0:
            self._make_coming()

    def act(self, clock: Clock) -> None:
        """Make and undo the faults that are due. If both are due at the same time, undo first."""
        while (due := self.next_ns) is not None and due <= clock():
            self.late_ns = max(self.late_ns, clock() - due)
            if self._undoing and self.start_ns + self._undoing[0][0] == due:
                self._injector.undo(heapq.heappop(self._undoing)[2])
            else:
                self._make_coming()

    def _make_coming(self) -> None:
        assert self._coming is not None
        fault, self._coming = self._coming, next(self._planned, None)
        if not self._injector.possible(fault):
            self.skipped += 1
        else:
            number = self._injector.make(fault)
            if fault.until_ns is not None:
                heapq.heappush(self._undoing, (fault.until_ns, next(self._order), number))
        if self._coming is not None:
            self._injector.prepare(self._coming)


class SwitchWatch(Deaths, Protocol):
    """The interface of an object that finds switches that ended without a fault, and starts them again."""

    @property
    def revive_ns(self) -> int | None:
        """Return when to start the ended switches again; None if no switch has ended."""

    def next_death(self, broken: Callable[[str], bool]) -> Death | None:
        """Return the next switch that ended without a fault, or None. ``broken`` tests a place for faults."""

    def switch(self, death: Death) -> str:
        """Return the name of the switch that has ended."""

    def words(self, death: Death) -> str:
        """Return a message that says how a switch ended. Raise SwitchError if it cannot be started again."""

    def plan_revival(self, death: Death, at_ns: int) -> None:
        """Plan to start the switch again at the given time."""

    def revive(self, clock: Clock) -> Iterator[tuple[str, Death, Moment]]:
        """Start the ended switches again. Yield each switch and when it was ready."""


class FaultRun:
    """All faults of a repetition, and the switches that end although no fault of the scenario ends them.

    If the target can start an ended switch again, the switch is started and programmed, and the run
    continues. The end is recorded as a separate fault (kind ``switch-death``). ``failures`` has a message for
    each ended switch.
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
        """Return the time of the next action, or None."""
        dues = [source.next_ns for source in self._sources if not source.over]
        revive_ns = None if self._deaths is None else self._deaths.revive_ns
        return min((due for due in (*dues, revive_ns) if due is not None), default=None)

    @property
    def waits_for_paths(self) -> bool:
        """Return True if a trial waits until all paths are in use again."""
        return any(sequence.next_ns is None and not sequence.over for sequence in self.sequences)

    def records(self) -> tuple[FaultRecord, ...]:
        """Return the records of all faults up to now, in the order in which they were made."""
        return self._injector.records()

    @property
    def over(self) -> bool:
        """Return True if all faults were made, and all faults that have an end were undone."""
        reviving = self._deaths is not None and self._deaths.reviving
        return all(source.over for source in self._sources) and not reviving

    @property
    def late_ns(self) -> int:
        """Return the longest delay of a timed fault: the time by which it was made or undone too late."""
        return max((source.late_ns for source in self._timed), default=0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the reader of the report."""
        skipped = sum(source.skipped for source in self._timed)
        found = [f"{skipped} faults were left out: their places were broken already"] if skipped else []
        return (*found, *(note for source in (*self.sequences, *self._profiles) for note in source.notes))

    @property
    def all_failures(self) -> tuple[str, ...]:
        """Return why measured values may be wrong: ended switches, and refused changes of profiles."""
        return (*self.failures, *(failure for source in self._profiles for failure in source.failures))

    def act(self, clock: Clock) -> None:
        """Perform all actions that are due. Raise SwitchError if an ended switch cannot be started again."""
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
            if sequence.marks <= len(self._injector):  # the trial's fault is recorded, so its load ends here
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
        """Add a message to ``failures`` for each switch that ended after the last trial."""
        deaths = self._deaths
        while deaths is not None and (death := deaths.next_death(self._injector.broken)) is not None:
            self.failures.append(
                f"switch failure: {deaths.switch(death)} ended by itself after the last trial"
            )
