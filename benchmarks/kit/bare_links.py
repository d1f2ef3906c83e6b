"""Links of the simulator without endpoints, for cases in which a formula gives the result.

A byte takes 1 ns on these links."""

from __future__ import annotations

import random

from mrclab.simulator.clock import Clock
from mrclab.simulator.flow_control import PfcInlet, headroom_bytes
from mrclab.simulator.lossless import Lossless, join
from mrclab.simulator.port import DATA, UNLIMITED, Depths, Hop, Node, Packet, Port
from mrclab.simulator.served import ServedPort

RATE_BPS = 8 * 10**9
NS = 1000
"""One nanosecond in ps, the unit of the simulator's clock."""
FRAME = 1000
FAR_PS = 10**12


def packet(
    size: int = FRAME, priority: int = DATA, trim: int = 0, *, markable: bool = False, item: object = None
) -> Packet:
    """Return a packet without a frame."""
    made = Packet(b"", size, Hop(b"", 64, None, 0, True), priority, trim, markable)
    made.item = item
    return made


class Crossing(Node):
    """A node that counts packets. If ``out`` has a port for a packet's item, the packet is sent on there."""

    def __init__(self, clock: Clock, out: dict[object, Port] | None = None) -> None:
        self._clock, self._out = clock, out or {}
        self.times_ns: list[int] = []
        self.count: dict[object, int] = {}

    def arrive(self, packet: Packet) -> None:
        """Count a packet and send it on."""
        self.times_ns.append(self._clock.now_ps // NS)
        self.count[packet.item] = self.count.get(packet.item, 0) + 1
        if packet.item in self._out:
            self._out[packet.item].put(packet)


def trimmed_share(overload: float, trimmed_bytes: int, frames: int) -> float:
    """Return the share of frames that a port trims under a steady overload, when 20 frames wait."""
    depths = Depths(FAR_PS, 20 * FRAME * NS, FAR_PS, 12, FAR_PS, 1)
    clock = Clock()
    port = Port(clock, "line", 1, RATE_BPS, 0, depths, random.Random(1))
    port.peer = Crossing(clock)
    fill = round(40 / (overload - 1) * overload)
    before = 0
    for number in range(fill + frames):
        clock.run(round(number * FRAME * NS / overload))
        if number == fill:
            before = port.trimmed
        port.put(packet(trim=trimmed_bytes))
    return (port.trimmed - before) / frames


def marked_share(part: float, draws: int, seed: int = 7) -> float:
    """Return the share of frames that are marked in a queue at ``part`` of the way between the thresholds."""
    low_ps, span_ps = 100 * FRAME * NS, 200 * FRAME * NS
    depths = Depths(FAR_PS, FAR_PS, 0, 12, low_ps, span_ps)
    rng, clock, marked = random.Random(seed), Clock(), 0
    for _ in range(draws):
        port = Port(clock, "line", 1, RATE_BPS, 0, depths, rng)
        port.put(packet(round((low_ps + part * span_ps) / NS)))
        behind = packet(markable=True)
        port.put(behind)
        marked += behind.marked
    return marked / draws


class LosslessLinks:
    """Sources, each with a lossless link to one node. The node sends on over two more lossless links."""

    def __init__(self, lossless: Lossless, sources: int = 1, delay_ns: int = 1000) -> None:
        self.clock, self._lossless = Clock(), lossless
        self.hot, self.cool = (self._port(0) for _ in range(2))
        self.node = Crossing(
            self.clock, {None: self.hot, "other": self.hot, "own": self.hot, "cool": self.cool}
        )
        self.sinks = [Crossing(self.clock) for _ in range(2)]
        self.last = []
        for out, sink in zip((self.hot, self.cool), self.sinks, strict=True):
            back = self._port(0)
            self.last.append(join(lossless, out, back, sink, FRAME, 0))
            join(lossless, back, out, self.node, FRAME, 0)
        pairs = [(self._port(delay_ns), self._port(delay_ns)) for _ in range(sources)]
        self.there, self.back = [a for a, _ in pairs], [b for _, b in pairs]
        onward = [self.hot, self.cool]
        self.inlets = [join(lossless, a, b, self.node, FRAME, 0, onward) for a, b in pairs]
        for there, back in pairs:
            join(lossless, back, there, Crossing(self.clock), FRAME, 0)

    def _port(self, delay_ns: int) -> ServedPort:
        args = (self.clock, "x", 1, RATE_BPS, delay_ns * NS, UNLIMITED, random.Random(1))
        return self._lossless.port_class(*args)

    def run_us(self, until_us: int) -> None:
        """Run the simulation until this time, in us."""
        self.clock.run(until_us * 10**6)


def headroom_used(delay_ns: int) -> tuple[int, int]:
    """Return the bytes that arrive after PFC's threshold in the worst case, and the computed headroom.

    In the worst case no frame leaves the node. The pause frame must wait, because a frame in the other
    direction has just begun when the threshold is passed. Raise ValueError if a frame is lost."""
    lossless = Lossless("pfc", 10 * FRAME)
    links = LosslessLinks(lossless, delay_ns=delay_ns)

    def begin() -> None:
        links.back[0].put(packet())

    links.clock.call_at((11 * FRAME - 1 + delay_ns) * NS, begin)
    links.last[0].refuse(True)
    for _ in range(400):
        links.there[0].put(packet())
    links.run_us(2000)
    inlet = links.inlets[0]
    assert isinstance(inlet, PfcInlet)
    if inlet.overflowed:
        raise ValueError(f"PFC lost {inlet.overflowed} frames")
    headroom = headroom_bytes(RATE_BPS, delay_ns * NS, FRAME, lossless.response_ns * NS)
    return inlet.most_bytes - inlet.xoff_bytes, headroom


def head_of_line(senders: int) -> tuple[float, float]:
    """Return the rates of a flow into an overloaded link and of its victim under PFC, as parts of a link.

    Flows of all ``senders`` go into the overloaded link. The victim goes into an idle link, but comes over
    the same first link as the flow."""
    links = LosslessLinks(Lossless("pfc", 10 * FRAME), senders, delay_ns=100)
    for number, port in enumerate(links.there):
        for _ in range(4000):
            port.put(packet(item="other" if number else "own"))
            if not number:
                port.put(packet(item="cool"))
    links.run_us(500)
    before = dict(links.node.count)
    links.run_us(2500)
    own, cool = ((links.node.count[name] - before[name]) * FRAME / 2_000_000 for name in ("own", "cool"))
    return own, cool


def credit_rate(frames: int, delay_ns: int, frame_bytes: int) -> float:
    """Return the rate under credits with a buffer of ``frames`` frames, as a part of the link's rate."""
    links = LosslessLinks(Lossless("credit", frames * frame_bytes), delay_ns=delay_ns)
    for _ in range(60 * frames):
        links.there[0].put(packet(frame_bytes))
    links.run_us(10**5)
    times = links.node.times_ns
    return 40 * frames * frame_bytes / (times[50 * frames] - times[10 * frames])
