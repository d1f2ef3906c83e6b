"""Faults that come and go by themselves: the phases of a kind, made one after another in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mrclab.faults.kinds import kind_named, phase_fault
from mrclab.faults.mechanism import Mechanism, SimpleMechanism
from mrclab.faults.model import Fault, Moment, Phase, Transition
from mrclab.faults.registry import MakeMechanism

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    """A phase, the fault that it makes, and the mechanism for it."""

    phase: Phase
    fault: Fault
    mechanism: Mechanism


class Cycle(SimpleMechanism):
    """The phases of a kind: once, or again in every period if the kind has one. The first begins at once."""

    def __init__(self, mechanisms: Mapping[str, MakeMechanism], lock: threading.RLock) -> None:
        """Take the mechanisms of the kinds that phases may be of, and the lock of the registry."""
        self._mechanisms = mechanisms
        self._lock = lock
        self._steps: tuple[_Step, ...] = ()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._transitions: list[Transition] = []
        self._last: _Step | None = None

    def transitions(self) -> Sequence[Transition]:
        """Return the beginning and end of each phase so far."""
        return tuple(self._transitions)

    def prepare(self, fault: Fault) -> None:
        """Begin to prepare the phases."""
        for step in self._steps_of(fault):
            step.mechanism.prepare(step.fault)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until the first phase can begin at once."""
        for step in self._steps_of(fault):
            step.mechanism.wait_prepared(step.fault)

    def _steps_of(self, fault: Fault) -> tuple[_Step, ...]:
        phases = kind_named(fault.kind).phases
        assert phases is not None
        if not self._steps:
            self._steps = tuple(
                _Step(phase, phase_fault(fault, phase), self._mechanisms[phase.kind]())
                for phase in phases(fault)
            )
        return self._steps

    def renew(self, switch: str) -> None:
        """Write the switch's lost entries again, if the place is broken at the moment."""
        for step in self._steps:
            step.mechanism.renew(switch)

    def forget(self) -> None:
        """Regard the place as restored."""
        for step in self._steps:
            step.mechanism.forget()

    def apply(self, fault: Fault) -> Moment:
        """Begin the first phase and start the thread that makes the others."""
        steps = self._steps_of(fault)
        start_ns = time.monotonic_ns()
        moment = self._begin(steps[0])
        period_ns = fault.period_ns if "period_ns" in kind_named(fault.kind).takes else None

        def run_caught() -> None:
            try:
                self._go_on(steps, start_ns, period_ns)
            except Exception:  # the fabric is going down or a switch has ended: undoing will report it
                LOGGER.warning("%s of %s came to an end", fault.kind, fault.where, exc_info=True)

        name = f"{fault.kind} of {fault.where}"
        self._thread = threading.Thread(target=run_caught, name=name, daemon=True)
        self._thread.start()
        return moment

    def _begin(self, step: _Step) -> Moment:
        with self._lock:
            moment = step.mechanism.apply(step.fault)
            self._transitions.append(Transition(moment))
            self._last = step
        return moment

    def _end(self, step: _Step) -> Moment:
        with self._lock:
            moment = step.mechanism.undo(step.fault)
            self._transitions[-1] = replace(self._transitions[-1], up=moment)
        return moment

    def _go_on(self, steps: Sequence[_Step], start_ns: int, period_ns: int | None) -> None:
        first = True
        while True:
            for step in steps:
                if not first:
                    if self._wait_until(start_ns + step.phase.start_ns):
                        return
                    self._begin(step)
                first = False
                if self._wait_until(start_ns + step.phase.start_ns + step.phase.length_ns):
                    return
                self._end(step)
            if period_ns is None:
                return
            start_ns += period_ns

    def _wait_until(self, moment_ns: int) -> bool:
        return self._stop.wait(max(0, moment_ns - time.monotonic_ns()) / 1e9)

    def close(self) -> None:
        """Stop the thread and wait for its end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def undo(self, fault: Fault) -> Moment:
        """Stop, and restore the place if it is broken at the moment; return when it was last restored."""
        self.close()
        assert self._last is not None
        return self._transitions[-1].up or self._end(self._last)
