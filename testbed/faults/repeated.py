"""Faults that go on in the testbed's own time: flaps and reboots."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mrclab.controller.fault_kinds import Fault, Moment
from mrclab.testbed.faults.mechanism import Mechanism, SimpleMechanism, Transition

LOGGER = logging.getLogger(__name__)


class _Repeated(SimpleMechanism):
    """Base of what goes on in a thread of its own until it is stopped."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._transitions: list[Transition] = []

    def transitions(self) -> Sequence[Transition]:
        """Return the times down and up so far."""
        return tuple(self._transitions)

    def _start(self, what: str, work: Callable[[], None]) -> None:
        def run_caught() -> None:
            try:
                work()
            except Exception:  # the fabric is going down or a switch has ended: undoing will report it
                LOGGER.warning("%s came to an end", what, exc_info=True)

        self._thread = threading.Thread(target=run_caught, name=what, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop it and wait for its thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


class Reboot(_Repeated):
    """A switch's end, and its start a while later."""

    def __init__(self, power: Mechanism, lock: threading.RLock) -> None:
        super().__init__(lock)
        self._power = power

    def apply(self, fault: Fault) -> Moment:
        """End the switch and boot it in due time."""
        moment = self._power.apply(fault)
        self._transitions.append(Transition(moment))

        def later() -> None:
            if not self._stop.wait(fault.down_ns / 1e9):
                self._boot(fault)

        self._start(f"reboot of {fault.where}", later)
        return moment

    def undo(self, fault: Fault) -> Moment:
        """Boot the switch now where it is still down; return when it was back."""
        self.close()
        return self._transitions[-1].up or self._boot(fault)

    def _boot(self, fault: Fault) -> Moment:
        with self._lock:
            moment = self._power.undo(fault)
            self._transitions[-1] = replace(self._transitions[-1], up=moment)
        return moment


class Flap(_Repeated):
    """Another kind, made and undone in every period. Down first."""

    def __init__(self, kinds: Mapping[str, Callable[[], Mechanism]], lock: threading.RLock) -> None:
        """Take the mechanisms of the kinds that a flap may be of."""
        super().__init__(lock)
        self._kinds = kinds
        self._made: Mechanism | None = None

    def _inner(self, fault: Fault) -> tuple[Mechanism, Fault]:
        if self._made is None:
            self._made = self._kinds[fault.of]()
        return self._made, replace(fault, kind=fault.of)

    def prepare(self, fault: Fault) -> None:
        """Begin to get ready what the first time down will need."""
        mechanism, inner = self._inner(fault)
        mechanism.prepare(inner)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until the first time down can begin at once."""
        mechanism, inner = self._inner(fault)
        mechanism.wait_prepared(inner)

    def renew(self, switch: str) -> None:
        """Write again what the switch lost, where the link is down at the moment."""
        if self._made is not None:
            self._made.renew(switch)

    def forget(self) -> None:
        """Take the link as restored."""
        if self._made is not None:
            self._made.forget()

    def apply(self, fault: Fault) -> Moment:
        """Break the link for the first time and start the thread that goes on."""
        mechanism, inner = self._inner(fault)
        moment = mechanism.apply(inner)
        self._transitions.append(Transition(moment))
        self._start(f"flap of {fault.where}", lambda: self._go_on(mechanism, inner))
        return moment

    def _go_on(self, mechanism: Mechanism, fault: Fault) -> None:
        start = time.monotonic_ns()
        while True:
            if self._wait_until(start + fault.down_ns):
                return
            self._restore(mechanism, fault)
            start += fault.period_ns
            if self._wait_until(start):
                return
            with self._lock:
                self._transitions.append(Transition(mechanism.apply(fault)))

    def _restore(self, mechanism: Mechanism, fault: Fault) -> Moment:
        with self._lock:
            moment = mechanism.undo(fault)
            self._transitions[-1] = replace(self._transitions[-1], up=moment)
        return moment

    def _wait_until(self, moment_ns: int) -> bool:
        return self._stop.wait(max(0, moment_ns - time.monotonic_ns()) / 1e9)

    def undo(self, fault: Fault) -> Moment:
        """Stop and restore the link where it is down at the moment; return when it was last restored."""
        self.close()
        mechanism, inner = self._inner(fault)
        return self._transitions[-1].up or self._restore(mechanism, inner)
