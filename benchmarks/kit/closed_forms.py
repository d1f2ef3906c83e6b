"""The fourteen cases in which a formula gives the result that the simulator must find (docs/validation.md).

Each form is a function that yields points. A point has the expected value, the simulated value and the bound
of their difference. Bounds were set before the first run: 0.1 % for exact values, five standard deviations
for random values, some percent for control loops.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

from benchmarks.kit.bare_links import credit_rate, head_of_line, headroom_used, marked_share, trimmed_share
from benchmarks.kit.loads import MTU, REACTION_NS, Load, fabric_of, frame_bytes
from benchmarks.virtual_time import World, recovery_times
from mrclab.hosts.options import idle_rtt_ns
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.port import Node, Packet

STILL: dict[str, Any] = {"ev_health": False}
"""Options that keep every EV in use, because the formulas have no EV state SKIP (docs/validation.md)."""


@dataclass(frozen=True, slots=True)
class Point:
    """One comparison. ``bound`` and deviation are relative to ``expected``, or absolute for a ``share``."""

    what: str
    expected: float
    found: float
    bound: float
    share: bool = False

    @property
    def deviation(self) -> float:
        """The difference of the simulation from theory."""
        difference = self.found - self.expected
        return difference if self.share else difference / self.expected

    @property
    def holds(self) -> bool:
        """True if the deviation is within the bound."""
        return abs(self.deviation) <= self.bound + 1e-9


class _First(Node):
    """Records when the first full packet arrives over a link."""

    def __init__(self, load: Load, near: str, far: str) -> None:
        port = load.network.links[near, far]
        self._clock, self._on, self.at_ns = load.network.clock, port.peer, 0.0
        port.peer = self

    def arrive(self, packet: Packet) -> None:
        """Record the time of the first full packet, and pass every packet on."""
        if not self.at_ns and packet.size_bytes >= MTU:
            self.at_ns = self._clock.now_ps / PS_PER_NS
        assert self._on is not None
        self._on.arrive(packet)


def one_packet() -> Iterator[Point]:
    """Check the time of one packet: four serialisations and four delays."""
    for gigabits in (100, 400, 800):
        load = Load(fabric_of(1, 2, 1, 2, gigabits), {}, 1)
        seen = _First(load, "p0-t0-1", "h1")
        load.flow("h0", "h1")
        load.run_ns(10_000)
        expected = 4 * frame_bytes() * 8 / gigabits + 2 * (500 + 725)
        yield Point(f"{gigabits} Gbit/s, ns", expected, seen.at_ns, 0.001)


def one_uplink() -> Iterator[Point]:
    """Check that flows under NSCC fill the uplink that they share."""
    for flows in (2, 4, 8, 16):
        load = Load(fabric_of(1, 2, 1, 2 * flows), {}, 1)
        for number in range(flows):
            load.flow(f"h{number}", f"h{flows + number}")
        rates, _, _ = load.measure(2_000_000)
        yield Point(f"{flows} flows, of capacity", 1.0, sum(rates) / payload_rate(100), 0.02)


def fixed_windows() -> Iterator[Point]:
    """Check the last hop's queue: packets of two fixed windows that do not fit on the links wait there."""
    window = 16
    fabric = fabric_of(1, 2, 4, 6)
    load = Load(fabric, {"congestion": "fixed", "cwnd_bytes": window * MTU, **STILL}, 1)
    for src in ("h0", "h1"):
        load.flow(src, "h3")
    port = load.network.links["p0-t0-1", "h3"]
    load.run_ns(200_000)
    port.longest_wait_ps = 0
    load.run_ns(400_000)
    frame_ns = frame_bytes() * 8 / 100
    expected = 2 * window - (idle_rtt_ns(fabric, "h0") + REACTION_NS) / frame_ns
    found = port.longest_wait_ps / PS_PER_NS / frame_ns
    yield Point("frames that wait at most", expected, found, 1 / expected)


def trims() -> Iterator[Point]:
    """Check that overload k trims a share (k - 1) F / (k (F - T)) of frames of F bytes to T bytes."""
    for overload in (1.1, 1.5, 2.0, 4.0, 7.0):
        expected = (overload - 1) * 1000 / (overload * (1000 - 70))
        yield Point(f"{overload:g} times the rate", expected, trimmed_share(overload, 70, 4000), 0.001, True)


def marks() -> Iterator[Point]:
    """Check that the probability of a mark rises linearly between two depths of the queue."""
    draws = 2000
    for part in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        bound = 5 * sqrt(part * (1 - part) / draws)
        yield Point(f"{part:.0%} of the way", part, marked_share(part, draws), bound, True)


def incast() -> Iterator[Point]:
    """Check an incast of seven senders under NSCC: the last link is full after half a round trip."""
    fabric = fabric_of(1, 2, 8, 16, 400)
    load = Load(fabric, {}, 1)
    for number in range(7):
        load.flow(f"h{number}", "h8")
    took_ns = 1_000_000
    load.run_ns(took_ns)
    full_ns = took_ns - idle_rtt_ns(fabric, "h0") / 2
    yield Point("of the last link", 1.0, sum(load.placed()) * 8 / full_ns / payload_rate(400), 0.03)


def pfc_headroom() -> Iterator[Point]:
    """Check the bytes that arrive after PFC's threshold: at most the computed headroom.

    The headroom is twice the delay, the response time, 64 bytes and three frames. Up to one frame less may
    arrive, because frames are whole. So the expected value is half a frame less, with a bound of half a
    frame.
    """
    for delay_ns in (0, 500, 725, 5000):
        used, headroom = headroom_used(delay_ns)
        yield Point(f"{delay_ns} ns, bytes", headroom - 500, used, 501 / (headroom - 500))


def pfc_victims() -> Iterator[Point]:
    """Check a victim of PFC: a flow to an idle port is as slow as a flow to a full port on the same link.

    If k flows go to the full port, both get 1/k of the link, and a little less because a link resumes only
    two frames below its threshold.
    """
    for senders in (2, 4, 8):
        own, victim = head_of_line(senders)
        yield Point(f"k = {senders}: victim over flow", 1.0, victim / own, 0.005)
        yield Point(f"k = {senders}: of the link", 1 / senders, victim, 0.2)


def credits() -> Iterator[Point]:
    """Check a link with credits: in each round, it carries as many frames as the buffer has room for.

    A round lasts for two frames, a credit update and two delays.
    """
    size = 960
    for delay_ns in (1000, 10_000):
        for frames in (4, 5, 7, 10, 14, 30):
            expected = min(1.0, frames * size / (2 * size + 8 + 2 * delay_ns))
            found = credit_rate(frames, delay_ns, size)
            yield Point(f"{frames} frames, {delay_ns} ns", expected, found, 0.0075)


def spray() -> Iterator[Point]:
    """Check the mean queue (in frames) of sixteen flows that spray over sixteen uplinks in shuffled rounds.

    The flows use a part of the uplinks' rate. A model of the rotation alone gives the expected queue."""
    for part in (0.5, 0.9):
        found = statistics.mean(_sprayed(part, seed) for seed in (1, 2))
        yield Point(f"load {part:g}, frames", _rotation_model(part), found, 0.15)


def _sprayed(part: float, seed: int) -> float:
    """Return the mean queue of the uplinks in frames."""
    flows, slots = 16, 1500
    options = {"congestion": "fixed", "cwnd_bytes": 1 << 20, **STILL}
    load = Load(fabric_of(1, 2, flows, 2 * flows), options, seed)
    rng, clock = random.Random(seed), load.network.clock
    slot_ps = frame_bytes() * 8 * 10  # at 100 Gbit/s
    for number in range(flows):
        load.paced(f"h{number}", f"h{flows + number}", rng.randrange(slot_ps), slot_ps, slots, part, rng)
    ports = [load.network.links["p0-t0-0", f"p0-t1-{number}"] for number in range(flows)]
    seen: list[int] = []
    for number in range(200, slots):
        clock.run(number * slot_ps + rng.randrange(slot_ps))
        seen += (max(0, port.load_ps() - clock.now_ps) for port in ports)
    return statistics.mean(seen) / slot_ps


def _rotation_model(part: float, flows: int = 16, slots: int = 20_000) -> float:
    """Return the mean length of a queue, in slots, by a model of the rotation.

    In each slot, a flow sends at most one frame, always at the same phase of the slot. It takes the next
    uplink of its round, and shuffles the uplinks for each new round."""
    rng = random.Random(1)
    phases = sorted((rng.random(), flow) for flow in range(flows))
    rounds: list[list[int]] = [[] for _ in range(flows)]
    full_at = [0.0] * flows
    total = 0.0
    for slot in range(slots):
        for phase, flow in phases:
            if rng.random() >= part:
                continue
            if not rounds[flow]:
                rounds[flow] = rng.sample(range(flows), flows)
            link = rounds[flow].pop()
            full_at[link] = max(full_at[link], slot + phase) + 1
        at = slot + 1
        total += sum(max(0.0, full - at) for full in full_at) / flows
    return total / slots


def full_rotation() -> Iterator[Point]:
    """Check that the rotation keeps every uplink full under NSCC."""
    found = []
    for seed in (1, 2):
        load = Load(fabric_of(1, 2, 16, 32), STILL, seed)
        for number in range(16):
            load.flow(f"h{number}", f"h{16 + number}")
        rates, _, _ = load.measure(600_000)
        found.append(sum(rates) / 16 / payload_rate(100))
    yield Point("of the uplinks", 1.0, statistics.mean(found), 0.005)


def lossy_link() -> Iterator[Point]:
    """Check goodput on a link that loses a share p: it is 1 - p, because MRC resends without slowing down."""
    for loss in (0.0, 0.001, 0.01, 0.05):
        load = Load(fabric_of(1, 2, 64, 2), {"max_active_evs": 64}, 1)
        load.network.links["p0-t0-1", "h1"].set_loss(loss)
        load.flow("h0", "h1")
        rates, _, _ = load.measure(3_000_000)
        yield Point(f"p = {loss:g}", 1 - loss, rates[0] / payload_rate(100), 0.015)


def cuts() -> Iterator[Point]:
    """Check the times after a silent cut: the loss is detected two round trips after the first lost packet.

    Detection takes a round trip and a reordering window of the same length. Recovery takes another window
    and half a round trip.
    """
    times, rtt_ns = recovery_times(evs=64, cuts=30, seed=1, options={})
    rtt_us = rtt_ns / 1000
    yield Point("detected, us", 2 * rtt_us, statistics.median(times["detected"]), 0.1)
    yield Point("recovered, us", 3.5 * rtt_us, statistics.median(times["recovered"]), 0.15)


def permutation() -> Iterator[Point]:
    """Check that each flow of a permutation ends after the time of its bytes and a round trip.

    No link is oversubscribed. The bound is a tenth, because random rounds of several flows cause queues.
    """
    hosts, size = 64, 2_000_000
    for gigabits in (400, 800):
        fabric = fabric_of(1, 8, 8, hosts, gigabits)
        world = World(fabric, {}, 1)
        world.post_permutation(size)
        slowest_us = world.run_until_done()
        rtt_us = idle_rtt_ns(fabric, "h0") / 1000
        expected = size * 8 / payload_rate(gigabits) / 1000 + rtt_us
        yield Point(f"64 x {gigabits} Gbit/s, us", expected, slowest_us, 0.1)


def payload_rate(gigabits: int) -> float:
    """Return the Gbit/s of payload that a link carries."""
    return gigabits * MTU / frame_bytes()


FORMS: tuple[tuple[str, Callable[[], Iterator[Point]]], ...] = (
    ("one packet over four links", one_packet),
    ("flows over one uplink, NSCC", one_uplink),
    ("incast of two fixed windows", fixed_windows),
    ("share trimmed under overload", trims),
    ("marking curve", marks),
    ("incast of seven, NSCC", incast),
    ("headroom of PFC", pfc_headroom),
    ("head-of-line blocking under PFC", pfc_victims),
    ("credits over a long link", credits),
    ("spraying at a part of the load", spray),
    ("spraying at full load", full_rotation),
    ("lossy link", lossy_link),
    ("recovery from a silent cut", cuts),
    ("permutation over full links", permutation),
)
"""The name and the function of each form, in the order of docs/validation.md."""
