"""Random frames give the same result in a simulated switch and in the interpreter of `p4src`."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from mrclab.controller.ecmp import routing_of
from mrclab.controller.entries import switch_entries
from mrclab.controller.queues import QueuePolicy
from mrclab.p4src.contract import (
    MARKING_TABLE,
    MY_SID_TABLE,
    NEXT_HOP_TABLE,
    PORT_QUEUE_TABLE,
    TICKS_PER_US,
    TRAFFIC_CLASS_TABLE,
    Drop,
)
from mrclab.simulator.network import Network
from mrclab.simulator.port import Hop, Node, Packet
from mrclab.simulator.switch import ClassMap, destination, frame_of, packet_of
from mrclab.switches.p4_model import Exact, Interpreter, Prefix, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from mrclab.topologies import Fabric, Switch, build_fabric
from tests.support.routed_model import WAYS, routed_profile, routed_rules
from tests.support.switch_kit import JSON

FABRIC = """
name: differential
planes: 2
t0: 3
t1: 3
hosts: 6
classes: {"8": high, "33": trimmable}
links: {host: {rate: 1 Gbit/s}, fabric: {rate: 2 Gbit/s, delay: 3 us}}
"""
FRAMES = 10_000
NOW_US = 1 << 20
INGRESS = "MrcIngress."
HOP, QUEUE, MARKS = f"{INGRESS}micro_segment", f"{INGRESS}port_queue", f"{INGRESS}ecn_mark"
TABLES = {
    MY_SID_TABLE: (f"{HOP}.my_sid", f"{HOP}.un", ()),
    NEXT_HOP_TABLE: (f"{HOP}.next_hop", f"{HOP}.forward", ("port", "src_mac", "dst_mac")),
    PORT_QUEUE_TABLE: (
        f"{QUEUE}.port_queue",
        f"{QUEUE}.send_at",
        ("byte_time", "limit", "trim_from", "trim_limit", "trim_dscp"),
    ),
    MARKING_TABLE: (f"{MARKS}.marking", f"{MARKS}.red", ("from", "span")),
}
"""The program's table, action and arguments, by the contract's names."""


class FixedDraw(random.Random):
    """A generator with one draw: 16 bits for the program, a number from 0 to 1 for the simulator."""

    draw = 0

    def random(self) -> float:
        return self.draw / 65536


class Sink(Node):
    """A node that records the packets that leave a switch."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []

    def arrive(self, packet: Packet) -> None:
        self.packets.append(packet)


def model_of(fabric: Fabric, switch: Switch, draw: FixedDraw, structured: bool) -> Interpreter:
    """Return the interpreter with all entries that the controller writes, for segment lists and routes."""
    rules: dict[str, list[Rule]] = {}
    for entry in switch_entries(fabric, switch):
        if entry.table == TRAFFIC_CLASS_TABLE:
            name = f"{QUEUE}.traffic_class"
            rules.setdefault(name, []).append(Rule((Exact(int(entry.match)),), f"{QUEUE}.{entry.action}"))
        elif entry.table in TABLES:
            name, action, order = TABLES[entry.table]
            params = dict(entry.params)
            key = Prefix(_address(entry.match), 48) if "/" in entry.match else Exact(int(entry.match))
            rules.setdefault(name, []).append(Rule((key,), action, tuple(params[p] for p in order)))
    routing = routing_of(fabric, switch, structured=structured)
    rules |= routed_rules(routing)
    program = read_program(JSON.read_bytes())
    model = Interpreter(program, rules, random=lambda low, high: draw.draw, clock=lambda: NOW_US)
    model.profiles[WAYS] = routed_profile(routing)
    return model


def _address(prefix: str) -> int:
    from ipaddress import IPv6Network

    return int(IPv6Network(prefix).network_address)


class Bench:
    """The same switch in the simulator and in the interpreter."""

    def __init__(self, fabric: Fabric, switch: Switch, structured: bool) -> None:
        self.draw = FixedDraw()
        self.model = model_of(fabric, switch, self.draw, structured)
        network = Network(fabric, QueuePolicy())
        network.route(choice="ev" if structured else "hash")
        self.switch = network.switches[switch.name]
        self.clock = network.clock
        self.classes = ClassMap(dict(fabric.classes))
        self.sinks: dict[int, Sink] = {}
        for number, port in self.switch.ports.items():
            self.sinks[number] = port.peer = Sink()
            port._rng = self.draw

    def by_program(self, frame: bytes, waits: tuple[int, int], port: int) -> tuple[int, bytes] | int:
        """Return (port, frame) or the reason for a drop. ``waits`` are the queues' waiting times in ticks."""
        now = NOW_US * TICKS_PER_US
        for number in self.sinks:
            self.model.registers[f"{QUEUE}.idle_at", number] = now + waits[0]
            self.model.registers[f"{QUEUE}.trims_idle_at", number] = now + waits[1]
        self.model.counters.clear()
        out = self.model.run(port, frame)
        if out:
            return out[0]
        (reason,) = [index for name, index in self.model.counters if name == "MrcIngress.drops"]
        return reason

    def by_simulator(self, frame: bytes, waits: tuple[int, int]) -> tuple[int, bytes] | int:
        clock = self.clock
        clock.run(clock.now_ps + 10**11)
        for port in self.switch.ports.values():
            port._idle_ps = clock.now_ps + waits[0] * 10**6 // TICKS_PER_US
            port._cut_credit_ps = clock.now_ps + waits[1] * 10**6 // TICKS_PER_US
        self.switch.drops = [0] * len(self.switch.drops)
        self.switch.arrive(packet_of(frame, Hop(destination(frame), frame[21], None, 0, False), self.classes))
        clock.run(clock.now_ps + 10**11)
        if any(self.switch.drops):
            assert sum(self.switch.drops) == 1
            return self.switch.drops.index(1)
        ((number, packet),) = [(n, p) for n, sink in self.sinks.items() for p in sink.packets]
        self.sinks[number].packets.clear()
        return number, frame_of(packet)


class Frames:
    """Random frames. Most of them are valid for the fabric, and some have an error."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        self._fabric = fabric
        self._rng = random.Random(seed)
        self._paths = [
            path
            for a in fabric.hosts
            for b in fabric.hosts
            if a is not b
            for path in fabric.paths(a.name, b.name)
        ]

    def _destination(self, switch: Switch) -> bytes:
        rng, plan = self._rng, self._fabric.plan
        kind = rng.random()
        here = [path for path in self._paths if switch.usid in path.segments]
        if kind < 0.5:
            path = rng.choice(here)
            at = path.segments.index(switch.usid)
            return plan.container(path.segments[at:]).packed
        if kind < 0.6:
            segments = list(rng.choice(self._paths).segments)
            segments[rng.randrange(len(segments))] ^= 1 << rng.randrange(16)
            return plan.container(segments).packed
        if kind < 0.65:
            return plan.container([switch.usid]).packed
        if kind < 0.97:
            host = rng.choice(self._fabric.hosts)
            return rng.choice(host.ports).address.packed
        return rng.randbytes(16)

    def frame(self, switch: Switch) -> bytes:
        rng = self._rng
        inner, udp = rng.random() < 0.6, rng.random() < 0.9
        stamped = rng.random() < 0.3
        payload = rng.choice([0, 4, 32, 36, 40, 44, 100, 1000, 4096])
        data = rng.randbytes(payload)
        label = rng.getrandbits(20) & rng.choice(
            [0xFFFFF, 0xF00F]
        )  # the uplinks of structured EVs: any number, or 0 to 3
        if udp:
            bth = struct.pack("!BBHII", 0xC7, 0, 0xFFFF, rng.getrandbits(24), int(stamped) << 28)
            ports = rng.getrandbits(16), rng.choice([4791, 4971, rng.randrange(5000, 1 << 16)])
            data = struct.pack("!HHHH", *ports, 20 + payload, 0) + bth + data
        protocol = 17 if udp else 59
        if inner:
            head = 6 << 28 | rng.getrandbits(28)
            data = struct.pack("!IHBB", head, len(data), protocol, 60) + rng.randbytes(32) + data
            protocol = 41
        dscp = rng.choice([0, 4, 8, 12, 16, 33, 46, rng.randrange(64)])
        first = 6 << 28 | dscp << 22 | rng.randrange(4) << 20 | label
        limit = rng.choice([0, 1, 2, 63, 64])
        outer = struct.pack("!IHBB", first, len(data), protocol, limit)
        outer += rng.randbytes(16) + self._destination(switch)
        return rng.randbytes(12) + b"\x86\xdd" + outer + data


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return build_fabric(FABRIC, "differential")


def outcomes(fabric: Fabric, count: int, seed: int, structured: bool) -> Iterator[tuple[object, object]]:
    rng, frames = random.Random(seed), Frames(fabric, seed)
    benches = [Bench(fabric, fabric.switch(name), structured) for name in ("p0-t0-1", "p1-t1-2")]
    for number in range(count):
        bench = benches[number % 2]
        frame = frames.frame(fabric.switch(bench.switch.name))
        bench.draw.draw = rng.randrange(1 << 16)
        waits = rng.choice([0, rng.randrange(3_000_000)]), rng.choice([0, rng.randrange(2_000_000)])
        yield bench.by_program(frame, waits, 1), bench.by_simulator(frame, waits)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "structured"), [(1, False), (2, True)])
def test_every_outcome_is_the_same(fabric: Fabric, seed: int, structured: bool) -> None:
    seen: set[object] = set()
    for number, (wanted, found) in enumerate(outcomes(fabric, FRAMES // 2, seed, structured)):
        assert found == wanted, number
        seen.add(wanted[0] if isinstance(wanted, tuple) else Drop(wanted).name)
    # The test must have seen each port, and each reason for a drop that needs no fault or SRH.
    assert {"HOP_LIMIT", "NOT_OUR_SID", "NO_ROUTE", "LIST_ENDED", "QUEUE_FULL", "TRIM_LIMIT"} <= seen
    assert {1, 2, 3} <= seen
