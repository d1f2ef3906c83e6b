"""Lossless links: PFC and credits, on a single link and in a fabric."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.controller.queues import QueuePolicy
from mrclab.hosts.nic.routes import nic_addresses, remote_paths
from mrclab.hosts.rdma.events import Event, ReceiveCompleted
from mrclab.hosts.roce import Endpoint, RoceConfig
from mrclab.simulator.clock import Clock
from mrclab.simulator.faults import NetworkFaults
from mrclab.simulator.flow_control import BLOCK_BYTES, PAUSE_BYTES, UPDATE_BYTES, PfcInlet, headroom_bytes
from mrclab.simulator.lossless import Lossless, Mode, join
from mrclab.simulator.network import Network, routes_of
from mrclab.simulator.port import CONTROL, DATA, UNLIMITED, Hop, Node, Packet, Port
from mrclab.simulator.served import ServedPort
from mrclab.topologies import Fabric, build_fabric

NS = 1000
US = 10**6
"""A microsecond in picoseconds."""
RATE = 8 * 10**9
"""At this rate a byte takes a nanosecond."""
FRAME = 1000
MODES: tuple[Mode, ...] = ("pfc", "credit")


class Reservoir(Node):
    """A node that records packets, and sends them on if it has an outgoing port."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.out: Port | None = None
        self.seen: list[tuple[int, Packet]] = []

    def arrive(self, packet: Packet) -> None:
        self.seen.append((self.clock.now_ps // NS, packet))
        if self.out is not None:
            self.out.put(packet)


class Wire:
    """A source, a lossless link, and a node from which a second link leads to a sink."""

    def __init__(self, lossless: Lossless, delay_ns: int = 1000, out_rate_bps: int = RATE) -> None:
        self.clock = Clock()
        self.middle, self.sink = Reservoir(self.clock), Reservoir(self.clock)
        self.there, self.back = (self._port(lossless, RATE, delay_ns) for _ in range(2))
        self.out, self.out_back = (self._port(lossless, out_rate_bps, 0) for _ in range(2))
        self.middle.out = self.out
        self.inlet = join(lossless, self.there, self.back, self.middle, FRAME, 0, [self.out])
        self.last = join(lossless, self.out, self.out_back, self.sink, FRAME, 0)
        join(lossless, self.back, self.there, Reservoir(self.clock), FRAME, 0)
        join(lossless, self.out_back, self.out, self.middle, FRAME, 0)

    def _port(self, lossless: Lossless, rate_bps: int, delay_ns: int) -> ServedPort:
        rng = random.Random(1)
        return lossless.port_class(self.clock, "x", 1, rate_bps, delay_ns * NS, UNLIMITED, rng)

    def send(self, count: int, priority: int = DATA, size: int = FRAME) -> None:
        for _ in range(count):
            self.there.put(Packet(b"", size, Hop(b"", 0, None, 0, True), priority, 0, False))


def test_headroom_is_what_the_standard_adds_up() -> None:
    """At 100 Gbit/s, 18,750 bytes arrive in 1.5 us: two delays and the sender's response, 500 ns each."""
    assert headroom_bytes(10**11, 500 * NS, 4200, 500 * NS) == 18_750 + PAUSE_BYTES + 3 * 4200
    assert headroom_bytes(10**11, 0, 4200, 0) == PAUSE_BYTES + 3 * 4200


@pytest.mark.parametrize("delay_ns", [0, 100, 1500, 20_000])
def test_headroom_is_enough_and_hardly_more(delay_ns: int) -> None:
    """In the worst case, the sender of the pause has just begun to send a frame. So the pause must wait."""
    lossless = Lossless("pfc", 10 * FRAME)
    wire = Wire(lossless, delay_ns)
    in_the_way = Packet(b"", FRAME, Hop(b"", 0, None, 0, True), DATA, 0, False)

    def begin() -> None:
        wire.back.put(in_the_way)

    wire.clock.call_at((11 * FRAME - 1 + delay_ns) * NS, begin)
    wire.last.refuse(True)
    wire.send(200)
    wire.clock.run(1000 * US)
    assert isinstance(wire.inlet, PfcInlet)
    headroom = headroom_bytes(RATE, delay_ns * NS, FRAME, lossless.response_ns * NS)
    assert wire.inlet.overflowed == 0
    assert headroom - FRAME - 1 <= wire.inlet.most_bytes - wire.inlet.xoff_bytes <= headroom
    assert (wire.inlet.pauses, wire.inlet.resumes) == (1, 0)
    wire.last.refuse(False)
    wire.clock.run(3000 * US)
    assert len(wire.sink.seen) == 200
    assert wire.inlet.pauses == wire.inlet.resumes


def test_a_smaller_buffer_than_the_headroom_would_lose_frames() -> None:
    wire = Wire(Lossless("pfc", 10 * FRAME), 5000)
    wire.inlet.capacity_bytes = wire.there.inlet.capacity_bytes - 6 * FRAME  # type: ignore[union-attr]
    wire.last.refuse(True)
    wire.send(200)
    wire.clock.run(1000 * US)
    assert wire.inlet.overflowed > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_stopped_class_does_not_stop_another(mode: Mode) -> None:
    wire = Wire(Lossless(mode, 10 * FRAME))
    wire.last.refuse(True)
    wire.send(100)
    wire.clock.run(200 * US)
    wire.send(3, CONTROL, 100)
    wire.clock.run(400 * US)
    assert [packet.priority for _, packet in wire.sink.seen if packet.priority == CONTROL] == [CONTROL] * 3
    assert wire.there.stopped == [True, False, False]


@pytest.mark.parametrize("mode", MODES)
def test_a_slower_link_behind_is_kept_full_and_nothing_is_lost(mode: Mode) -> None:
    wire = Wire(Lossless(mode, 20 * FRAME), out_rate_bps=RATE // 4)
    wire.send(400)
    wire.clock.run(3000 * US)
    arrived = [at for at, _ in wire.sink.seen]
    assert len(arrived) == 400
    # Each frame takes 4 us. The first frame also needed 1 us and the delay of 1 us to arrive.
    assert arrived[-1] == 1000 + 1000 + 400 * 4 * 1000
    assert wire.inlet.most_bytes <= wire.inlet.capacity_bytes
    assert wire.there.stops > 0


@pytest.mark.parametrize("frames", [4, 5, 7, 30])
def test_credits_below_the_product_of_bandwidth_and_delay_limit_the_rate(frames: int) -> None:
    """In each round trip, as many frames are sent as the buffer holds."""
    delay_ns, size = 10_000, 15 * BLOCK_BYTES
    wire = Wire(Lossless("credit", frames * size), delay_ns)
    count = 40 * frames
    wire.send(count, size=size)
    wire.clock.run(10**6 * US)
    arrived = [at for at, _ in wire.middle.seen]
    assert len(arrived) == count
    # A round is a frame's arrival, its time on the next link, and the way back of its credit.
    loop_ns = size + delay_ns + size + UPDATE_BYTES + delay_ns
    rounds = [arrived[i + frames] - arrived[i] for i in range(0, count - 2 * frames, frames)]
    assert set(rounds) == {max(loop_ns, frames * size)}


FLAT = {"name": "flat", "planes": 1, "t0": 2, "t1": 1, "hosts": 8}


def fabric_of(rate: str = "100 Gbit/s", **values: Any) -> Fabric:
    links = {"rate": rate, "delay": "500 ns"}
    topology = {**FLAT, **values}
    return build_fabric(json.dumps({**topology, "links": {"host": links, "fabric": links}}), "flat")


class Flows:
    """Flows of RoCEv2 over a fabric, with the bytes that each flow has delivered."""

    def __init__(self, fabric: Fabric, mode: Mode, seed: int = 1, **options: Any) -> None:
        self.fabric = fabric
        self.network = Network(fabric, QueuePolicy(base_rtt_us=6), seed, Lossless(mode))
        self.network.route(choice="hash" if mode == "pfc" else "destination")
        config = RoceConfig(**{"encapsulation": "plain", "dcqcn": None, "window_bytes": 1 << 30, **options})
        self.events: list[Event] = []
        self.delivered: dict[int, int] = {}
        """The arrived bytes, by the number of the receiving connection."""
        for host in fabric.hosts:
            endpoint = Endpoint(nic_addresses(fabric, host.name), config, random.Random(seed + host.index))
            self.network.attach(host.name, endpoint, reaction_ns=200)
            self.network.nics[host.name].programs.append(self)

    def tick(self, now_ns: int) -> int | None:
        return None

    def take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, ReceiveCompleted):
            self.delivered[event.qpn] = self.delivered.get(event.qpn, 0) + event.length_bytes

    def add(self, src: str, dst: str, messages: int, size: int = 16_384) -> int:
        """Post all messages of a flow. Return the number of the receiver's queue pair."""
        near: Any = self.network.nics[src].endpoint
        far: Any = self.network.nics[dst].endpoint
        a, b = near.create_qp(), far.create_qp()
        near.connect(a, far.local_attributes(b), remote_paths(self.fabric, src, dst))
        far.connect(b, near.local_attributes(a), remote_paths(self.fabric, dst, src))
        region = far.register_memory(bytearray(size))
        for number in range(messages):
            near.post_write(a, number, bytes(size), region.address, region.rkey, imm=1)
        self.network.nics[src].wake_now()
        return int(b)

    def run(self, us: int) -> None:
        self.network.clock.run(self.network.clock.now_ps + us * US)

    @property
    def ports(self) -> list[ServedPort]:
        return [port for port in self.network.links.values() if isinstance(port, ServedPort)]

    def require_lossless(self) -> None:
        for port in self.ports:
            assert port.dropped == port.trimmed == port.lost == 0
            assert port.inlet is not None
            assert port.inlet.overflowed == 0
            assert port.inlet.most_bytes <= port.inlet.capacity_bytes
        for nic in self.network.nics.values():
            endpoint: Any = nic.endpoint
            for qp in endpoint.qps.values():
                assert qp.requester.packets_lost == qp.responder.naks_sent == 0

    def require_idle(self) -> None:
        for port in self.ports:
            assert port.inlet is not None
            assert port.inlet.held_bytes == [0, 0, 0]
            if isinstance(port.inlet, PfcInlet):
                assert port.inlet.pauses == port.inlet.resumes
                assert port.stopped == [False] * 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("senders", [2, 5])
def test_an_incast_runs_at_line_rate_without_drops(mode: Mode, senders: int) -> None:
    flows = Flows(fabric_of(), mode)
    names = [f"h{number}" for number in range(senders)]
    numbers = [flows.add(name, "h7", 60) for name in names]
    flows.run(30)
    before = sum(flows.delivered.values())
    flows.run(200)
    rate = (sum(flows.delivered.values()) - before) * 8 / 200e-6
    if senders == 5:  # two flows end earlier
        frame = 4096 + 14 + 40 + 8 + 12 + 16 + 4
        assert rate == pytest.approx(10**11 * 4096 / frame, rel=0.03)
    flows.run(5000)
    assert [flows.delivered[number] for number in numbers] == [60 * 16_384] * senders
    flows.require_lossless()
    flows.require_idle()
    assert sum(port.stops for port in flows.ports) > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("locals_", [1, 2, 3])
def test_a_victim_gets_what_the_hot_flow_gets_that_it_shares_a_link_with(mode: Mode, locals_: int) -> None:
    """Each of n flows into a hot port gets 1/n of the port's rate.

    One of these flows shares a link with a flow to an idle port. The shared link is stopped while the hot
    port is full, and the link's queue alternates between the two flows. So the flow to the idle port also
    gets only 1/n, although it could have 1 - 1/n of the link.
    """
    flows = Flows(fabric_of(hosts=12), mode)
    hot = flows.add("h0", "h6", 400)
    victim = flows.add("h1", "h7", 400)
    others = [flows.add(f"h{8 + number}", "h6", 400) for number in range(locals_)]
    flows.run(100)
    before = dict(flows.delivered)
    flows.run(300)
    rates = {n: (flows.delivered[n] - before.get(n, 0)) * 8 / 300e-6 / 10**11 for n in flows.delivered}
    share = 1 / (1 + locals_)
    assert [rates[number] for number in (hot, victim, *others)] == pytest.approx(
        [share] * (2 + locals_), abs=0.05
    )
    flows.require_lossless()
    link = flows.network.links["p0-t1-0", "p0-t0-1"]
    assert isinstance(link, ServedPort)
    assert link.blocked > 0
    # The victim's own port has no queue: frames never wait there.
    assert flows.network.links["p0-t0-1", "h7"].longest_wait_ps < 100 * NS


def test_pauses_spread_hop_by_hop_up_to_the_senders() -> None:
    flows = Flows(fabric_of(), "pfc")
    for number in range(4):
        flows.add(f"h{number}", "h7", 100)
    flows.add("h4", "h7", 100)
    flows.run(150)
    found = {}
    for ends in (("p0-t1-0", "p0-t0-1"), ("p0-t0-0", "p0-t1-0"), ("h0", "p0-t0-0")):
        port = flows.network.links[ends]
        assert isinstance(port, ServedPort)
        found[ends] = port.deepest
    assert list(found.values()) == [1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
def test_a_storm_stops_a_flow_to_another_host_and_ends(mode: Mode) -> None:
    flows = Flows(fabric_of(), mode)
    faults = NetworkFaults(flows.network)
    struck, victim = flows.add("h0", "h7", 40), flows.add("h1", "h6", 40)
    flows.run(20)
    faults.pause_storm("h7-eth0", True)
    flows.run(300)
    before = dict(flows.delivered)
    flows.run(300)
    assert flows.delivered == before
    faults.pause_storm("h7-eth0", False)
    flows.run(5000)
    assert (flows.delivered[struck], flows.delivered[victim]) == (40 * 16_384, 40 * 16_384)
    flows.require_lossless()
    flows.require_idle()


def test_no_storm_on_links_that_drop() -> None:
    network = Network(fabric_of())
    with pytest.raises(ValueError, match="not lossless"):
        NetworkFaults(network).pause_storm("h7-eth0", True)


def test_a_lost_frame_takes_no_credits_with_it() -> None:
    flows = Flows(fabric_of(), "credit", timeout_exponent=4)
    faults = NetworkFaults(flows.network)
    number = flows.add("h0", "h7", 60)
    faults.loss("p0-t0-0:p0-t1-0", "up", 0.05)
    flows.run(3000)
    faults.loss("p0-t0-0:p0-t1-0", "up", 0)
    flows.run(20_000)
    assert flows.delivered[number] == 60 * 16_384
    flows.require_idle()


def test_deterministic_routing_has_one_path_for_each_destination() -> None:
    fabric = fabric_of(t1=3)
    routes = routes_of(fabric, fabric.switch("p0-t0-0"), frozenset(), by_destination=True)
    chosen = {host.index: routes[host.ports[0].address.packed] for host in fabric.hosts if host.rack == 1}
    uplinks = sorted(fabric.switch("p0-t0-0").port_to(f"p0-t1-{number}").number for number in range(3))
    assert chosen == {index: (uplinks[index % 3],) for index in chosen}


PLACES = st.integers(0, 7)


@settings(deadline=None, max_examples=12)
@given(
    st.sampled_from(MODES),
    st.lists(st.tuples(PLACES, PLACES, st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(1, 3),
    st.sampled_from(["100 Mbit/s", "100 Gbit/s"]),
)
def test_any_traffic_arrives_without_drops_and_without_deadlock(
    mode: Mode, pairs: list[tuple[int, int, int]], t1: int, rate: str
) -> None:
    flows = Flows(fabric_of(rate, t1=t1), mode, timeout_exponent=0)
    wanted = {
        flows.add(f"h{src}", f"h{dst}", messages): messages * 16_384
        for src, dst, messages in pairs
        if src != dst
    }
    flows.run(20_000 if rate == "100 Gbit/s" else 2_000_000)
    assert flows.delivered == wanted
    flows.require_lossless()
    flows.require_idle()


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_gives_the_same_run(mode: Mode) -> None:
    def log() -> tuple[list[str], list[tuple[str, int, int, int]]]:
        flows = Flows(fabric_of(t1=2), mode, seed=3)
        for src in range(5):
            flows.add(f"h{src}", f"h{7 - src // 3}", 10)
        flows.run(1000)
        return [repr(e) for e in flows.events], [(p.name, p.packets, p.stops, p.blocked) for p in flows.ports]

    assert log() == log()
