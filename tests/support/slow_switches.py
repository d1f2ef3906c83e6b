"""Simulated switches, as slow as BMv2 switches: one CPU serves all switches one after another."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from tests.support.nic_client import STEP_NS, Nic, Wire

T1_USID = slice(46, 48)
"""The T1's uSID in a frame: in the outer destination, after 14 bytes of Ethernet and 24 of IPv6."""


@dataclass
class Switch:
    """A switch's input queue. For each frame, it has the NIC and the port that will receive the frame."""

    frames: deque[tuple[Nic, int, bytes]] = field(default_factory=deque)


class SlowWire(Wire):
    """Two hosts' NICs, and one CPU that runs all switches between them, each for ``turn_ns`` at a time.

    The CPU needs ``cost_ns`` for a full frame and a third of ``cost_ns`` for a control frame. ``dead`` names
    a T1 that drops all frames: its plane and the two bytes of its uSID.
    """

    def __init__(self, target: str, cost_ns: int, turn_ns: int) -> None:
        super().__init__(target)
        self._cost_ns, self._turn_ns = cost_ns, turn_ns
        self._switches: dict[tuple[int, bytes], Switch] = {}
        self._turns: deque[Switch] = deque()
        self._now: Switch | None = None
        self._left_ns = self._worked_ns = 0
        self.dead: tuple[int, bytes] | None = None
        self.events: Counter[str] = Counter()
        """The number of events of both NICs, by the names of their classes."""

    @property
    def switches(self) -> list[tuple[int, bytes]]:
        """The switches that frames have passed."""
        return list(self._switches)

    def run(self, steps: int = 30) -> None:
        for _ in range(steps):
            self.now_ns += STEP_NS
            for here, there in ((self.a, self.b), (self.b, self.a)):
                for port, frame in here.work(self.now_ns):
                    self._queue(there, port, frame)
                self.events.update(type(event).__name__ for event in here.seen)
                here.seen.clear()
            self._serve(STEP_NS)

    def _queue(self, there: Nic, port: int, frame: bytes) -> None:
        key = port, bytes(frame[T1_USID])
        switch = self._switches.setdefault(key, Switch())
        if key == self.dead:
            return
        if not switch.frames and switch is not self._now:
            self._turns.append(switch)
        switch.frames.append((there, port, frame))

    def _serve(self, budget_ns: int) -> None:
        while budget_ns > 0:
            switch = self._now
            if switch is None:
                if not self._turns:
                    return
                self._now, self._left_ns = self._turns.popleft(), self._turn_ns
                continue
            if not switch.frames or self._left_ns <= 0:
                if switch.frames:
                    self._turns.append(switch)
                self._now = None
                continue
            there, port, frame = switch.frames[0]
            cost_ns = self._cost_ns if len(frame) > 1000 else self._cost_ns // 3
            used_ns = min(budget_ns, cost_ns - self._worked_ns)
            self._worked_ns += used_ns
            self._left_ns -= used_ns
            budget_ns -= used_ns
            if self._worked_ns >= cost_ns:
                self._worked_ns = 0
                switch.frames.popleft()
                there.endpoint.receive(port, frame, self.now_ns)
