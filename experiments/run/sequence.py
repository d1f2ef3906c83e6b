"""Faults that are made one after another: each trial holds one, undoes it, and waits until all is settled.

It never waits: ``next_ns`` is when something is due, and ``act`` does it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from mrclab.experiments.measure.load import Load, in_trial
from mrclab.experiments.measure.validity import kept_up
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.spec.fault_schedule import PlannedFault

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
    """The interface of `mrclab.experiments.live.switch_deaths.SwitchDeaths` to trials."""

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
