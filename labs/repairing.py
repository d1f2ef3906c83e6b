"""A sender, a receiver and a network that follows a schedule, for a student's loss detection (lab 5).

The sender sends ``packets`` packets, one every ``GAP_NS``. The schedule is a list of delays for transmissions
and a list of delays for SACKs, in the order of sending. If a delay is None, the packet or SACK is lost. The
detector decides which packets are sent again. All times are simulated.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

GAP_NS = 1_000
ONE_WAY_NS = 5_000
WINDOW_NS = 8_000
"""The reordering window: a packet may be overtaken by packets that were sent up to this time later."""
TIMEOUT_NS = 50_000
_LAST_NS = 10_000_000
LOST = None


class Detector(Protocol):
    """The interface of a loss detector, which finds the sender's lost packets."""

    def on_sent(self, psn: int, now_ns: int) -> None:
        """Record a transmission: the first of a packet, or a repeat."""

    def on_sack(self, cumulative: int, above: AbstractSet[int], now_ns: int) -> Sequence[int]:
        """Process a SACK. Return the packets to send again now."""

    def timer_ns(self) -> int | None:
        """Return the time at which to call `on_timer`, or None if no timer is needed."""

    def on_timer(self, now_ns: int) -> Sequence[int]:
        """Return the packets to send again now."""


@dataclass(frozen=True)
class Schedule:
    """The behaviour of the network: the extra delay of each transmission and each SACK in ns.

    None means that the packet or SACK is lost. Transmissions and SACKs after the end of a list arrive without
    extra delay.
    """

    packets: int
    data: tuple[int | None, ...] = ()
    sacks: tuple[int | None, ...] = ()

    def words(self) -> str:
        """Describe the schedule in one line."""
        parts = [f"{self.packets} packets"]
        for what, fates in (("transmission", self.data), ("SACK", self.sacks)):
            for number, fate in enumerate(fates):
                if fate is LOST:
                    parts.append(f"{what} {number} is lost")
                elif fate:
                    parts.append(f"{what} {number} is {fate / 1000:g} us late")
        return ", ".join(parts)


@dataclass(frozen=True)
class Repeat:
    """A packet that was sent again although an earlier copy had arrived or was on its way."""

    psn: int
    t_ns: int
    arrives_ns: int
    """The time at which the earlier copy arrives."""
    sent_ns: int
    """The time at which the earlier copy was sent."""
    nth: int
    """The number of this repeat among the repeats of the packet: 1 for the first."""


@dataclass
class Story:
    """The result of a run with a schedule."""

    delivered: bool = False
    delivered_ns: int = 0
    """The time at which the last missing packet arrived."""
    known: bool = False
    """True if SACKs have confirmed to the sender that everything was delivered."""
    missing: tuple[int, ...] = ()
    sent: int = 0
    """The number of transmissions, including repeats."""
    needless: list[Repeat] = field(default_factory=list)
    repeats: list[tuple[int, int]] = field(default_factory=list)
    """The time and PSN of each repeat."""
    endless: bool = False
    """True if the run was stopped because far too many packets were sent."""
    lines: list[tuple[int | None, str]] = field(default_factory=list)
    """Descriptions of events, each with the packet that it concerns, or None if it concerns all packets."""

    def text(self, most: int = 24, about: int | None = None) -> str:
        """Return one line for each event. With ``about``, omit the events that concern only other packets."""
        shown = [line for psn, line in self.lines if about is None or psn in (None, about)]
        return "\n".join(shown if len(shown) <= most else [*shown[:most], "..."])


def tell(detector: Detector, schedule: Schedule) -> Story:
    """Run a schedule with a detector and return the result."""
    return _Run(detector, schedule).story()


_DATA, _SACK, _SEND = range(3)


class _Run:
    def __init__(self, detector: Detector, schedule: Schedule) -> None:
        self._detector = detector
        self._schedule = schedule
        self._events: list[tuple[int, int, int, int, int, frozenset[int]]] = []
        self._number = self._sacks = 0
        self._arrived: set[int] = set()
        self._cumulative = 0
        self._copies: dict[int, list[tuple[int, int | None]]] = {}
        self._acked: set[int] = set()
        self._told = Story()

    def story(self) -> Story:
        schedule, told = self._schedule, self._told
        most = 20 * schedule.packets + 10 * (len(schedule.data) + len(schedule.sacks)) + 50
        for psn in range(schedule.packets):
            self._push(psn * GAP_NS, _SEND, psn)
        now_ns = 0
        while told.sent < most:
            timer_ns = self._detector.timer_ns() if len(self._acked) < schedule.packets else None
            next_ns = self._events[0][0] if self._events else None
            if timer_ns is not None and (next_ns is None or max(timer_ns, now_ns) < next_ns):
                if timer_ns > _LAST_NS:
                    break
                now_ns = max(timer_ns, now_ns + 1)
                told.lines.append((None, f"{now_ns / 1000:8.1f} us  timer"))
                self._repeat(self._detector.on_timer(now_ns), now_ns)
            elif next_ns is None:
                break
            else:
                now_ns, _, kind, psn, cumulative, above = heapq.heappop(self._events)
                self._happen(now_ns, kind, psn, cumulative, above)
        told.endless = told.sent >= most
        told.delivered = self._cumulative == schedule.packets
        told.known = len(self._acked) == schedule.packets
        told.missing = tuple(n for n in range(schedule.packets) if n not in self._arrived)
        return told

    def _push(
        self, t_ns: int, kind: int, psn: int = 0, cumulative: int = 0, above: frozenset[int] = frozenset()
    ) -> None:
        self._number += 1
        heapq.heappush(self._events, (t_ns, self._number, kind, psn, cumulative, above))

    def _happen(self, now_ns: int, kind: int, psn: int, cumulative: int, above: frozenset[int]) -> None:
        if kind == _SEND:
            self._send(psn, now_ns)
        elif kind == _DATA:
            self._arrive(psn, now_ns)
        else:
            self._acked |= set(range(cumulative)) | above
            more = f" and {sorted(above)}" if above else ""
            self._told.lines.append((None, f"{now_ns / 1000:8.1f} us  SACK: all below {cumulative}{more}"))
            self._repeat(self._detector.on_sack(cumulative, above, now_ns), now_ns)

    def _send(self, psn: int, now_ns: int, words: str = "sent") -> None:
        fates, number = self._schedule.data, self._told.sent
        fate = fates[number] if number < len(fates) else 0
        self._told.sent += 1
        arrives_ns = None if fate is LOST else now_ns + ONE_WAY_NS + fate
        self._copies.setdefault(psn, []).append((now_ns, arrives_ns))
        note = " (lost)" if fate is LOST else f" ({fate / 1000:g} us late)" if fate else ""
        self._told.lines.append((psn, f"{now_ns / 1000:8.1f} us  {psn} {words}{note}"))
        self._detector.on_sent(psn, now_ns)
        if arrives_ns is not None:
            self._push(arrives_ns, _DATA, psn)

    def _arrive(self, psn: int, now_ns: int) -> None:
        if psn not in self._arrived:
            self._told.delivered_ns = now_ns
        self._arrived.add(psn)
        while self._cumulative in self._arrived:
            self._cumulative += 1
        fates, number = self._schedule.sacks, self._sacks
        self._sacks += 1
        fate = fates[number] if number < len(fates) else 0
        if fate is not LOST:
            above = frozenset(n for n in self._arrived if n > self._cumulative)
            self._push(now_ns + ONE_WAY_NS + fate, _SACK, 0, self._cumulative, above)
        else:
            self._told.lines.append((psn, f"{now_ns / 1000:8.1f} us  {psn} arrives; its SACK is lost"))

    def _repeat(self, psns: Sequence[int], now_ns: int) -> None:
        for psn in psns:
            if psn not in self._copies:
                raise ValueError(f"packet {psn} is to be sent again, but was never sent")
            copies = self._copies[psn]
            there = [(sent, arrives) for sent, arrives in copies if arrives is not None]
            if there:
                sent_ns, arrives_ns = min(there, key=lambda copy: copy[1])
                self._told.needless.append(Repeat(psn, now_ns, arrives_ns, sent_ns, len(copies)))
            self._told.repeats.append((now_ns, psn))
            self._send(psn, now_ns, "is sent again")
