"""Random schedules of writes and faults for the NICs of a simulated fabric, and the checks after each run.

A `Schedule` determines a whole run. If a run fails, Hypothesis searches for the smallest schedule that fails,
and prints it. The printed text can be pasted into a test.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from hypothesis import strategies as st

from mrclab.controller.queues import QueuePolicy
from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.nic.routes import nic_addresses, remote_paths
from mrclab.hosts.options import datacenter_mrc, mrc_config
from mrclab.hosts.rdma.events import Event, QpError, SendCompleted
from mrclab.hosts.transports import DEPLOYED, merged
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.faults import NetworkFaults
from mrclab.simulator.network import Network
from mrclab.simulator.nic import Nic
from mrclab.topologies import Fabric, build_fabric
from tests.support.random_writes import Overlaps, Writes

SHAPES: Final = ((2, 2, 2, 4), (4, 2, 4, 4), (4, 3, 2, 6), (8, 2, 4, 4), (4, 2, 40, 4))
"""Planes, T0s, T1s and hosts of each fabric. The numbers of paths between racks are 4, 16, 8, 32 and 160."""
REACTION_NS: Final = 200
PATIENCE_NS: Final = 20 * 10**9
"""The longest simulated time of a run: about 60,000 times the first interval of the ACK timer."""
STEP_NS: Final = 10**6


@dataclass(frozen=True)
class Burst:
    """Messages that one host posts to another host at the same time.

    Each message has a length, and True if it has immediate data.
    """

    at_ns: int
    src: int
    dst: int
    messages: tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class Fault:
    """A fault that lasts for a while. `where` selects one of the places that can have such a fault."""

    kind: str
    at_ns: int
    lasts_ns: int
    where: int
    direction: str = "both"
    amount: float = 0.1


@dataclass(frozen=True)
class Schedule:
    """All events of a run."""

    seed: int
    shape: int
    bursts: tuple[Burst, ...]
    faults: tuple[Fault, ...]
    options: dict[str, Any]


@cache
def fabric_of(shape: int) -> Fabric:
    """Return one of the small fabrics, with the rate and the delays of `paper-c`."""
    planes, t0s, t1s, hosts = SHAPES[shape]
    links = {
        "host": {"rate": "100 Gbit/s", "delay": "500 ns"},
        "fabric": {"rate": "100 Gbit/s", "delay": "725 ns"},
    }
    spec = {"name": "small", "planes": planes, "t0": t0s, "t1": t1s, "hosts": hosts, "links": links}
    return build_fabric(json.dumps(spec), "small")


class Seen:
    """A recorder of a NIC's events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.completed = 0

    def tick(self, now_ns: int) -> int | None:
        return None

    def take(self, event: Event) -> None:
        self.events.append(event)
        self.completed += isinstance(event, SendCompleted)


class Transfer:
    """All messages that one host writes to another."""

    def __init__(self, world: World, src: str, dst: str, bursts: list[Burst]) -> None:
        self._sent, self._received = world.seen[src], world.seen[dst]
        near, far = world.endpoint(src), world.endpoint(dst)
        qpn, remote = near.create_qp(), far.create_qp()
        near.connect(qpn, far.local_attributes(remote), remote_paths(world.fabric, src, dst))
        far.connect(remote, near.local_attributes(qpn), remote_paths(world.fabric, dst, src))
        self._writes = Writes(near, qpn, far, remote, bursts, world.rng.randbytes)
        self.count = len(self._writes.messages)
        for at_ns, post in self._writes.posters():
            world.at(at_ns, post)
            world.at(at_ns, world.nics[src].wake_now)

    def check(self) -> None:
        """Check that every message completed once, in order, and every byte was placed once."""
        self._writes.check(self._sent.events, self._received.events)


class World:
    """A fabric with a NIC at every host, as a schedule describes it."""

    def __init__(self, schedule: Schedule) -> None:
        self.fabric = fabric_of(schedule.shape)
        self.rng = random.Random(schedule.seed)
        self.network = Network(self.fabric, QueuePolicy(base_rtt_us=7), schedule.seed)
        self.faults = NetworkFaults(self.network)
        self.seen: dict[str, Seen] = {}
        self.nics: dict[str, Nic] = {}
        for host in self.fabric.hosts:
            options = merged({**datacenter_mrc(self.fabric, host.name), **DEPLOYED}, schedule.options)
            config = mrc_config(self.fabric, host.name, options)
            rng = random.Random(self.rng.getrandbits(32))
            endpoint = Endpoint(nic_addresses(self.fabric, host.name), config, rng)
            nic = self.nics[host.name] = self.network.attach(host.name, endpoint, REACTION_NS)
            self.seen[host.name] = Seen()
            nic.programs.append(self.seen[host.name])
        hosts = len(self.fabric.hosts)
        ways: dict[tuple[int, int], list[Burst]] = {}
        for burst in sorted(schedule.bursts, key=lambda b: b.at_ns):
            src = burst.src % hosts
            dst = (src + 1 + burst.dst % (hosts - 1)) % hosts
            ways.setdefault((src, dst), []).append(burst)
        names = [host.name for host in self.fabric.hosts]
        self.transfers = [Transfer(self, names[a], names[b], bursts) for (a, b), bursts in ways.items()]
        self._break(schedule.faults)

    def endpoint(self, host: str) -> Endpoint:
        endpoint = self.nics[host].endpoint
        assert isinstance(endpoint, Endpoint)
        return endpoint

    def at(self, at_ns: int, function: Callable[[], None]) -> None:
        self.network.clock.call_at(at_ns * PS_PER_NS, function)

    def _break(self, faults: tuple[Fault, ...]) -> None:
        """Schedule the faults. If equal faults overlap, the place is broken until the last of them ends."""
        overlaps = Overlaps()
        for fault in faults:
            place, change = self._fault(fault)
            begin, end = overlaps.of(place, partial(change, True), partial(change, False))
            self.at(fault.at_ns, begin)
            self.at(fault.at_ns + fault.lasts_ns, end)

    def _fault(self, fault: Fault) -> tuple[tuple[object, ...], Callable[[bool], None]]:
        """Return the place of a fault, and the function that breaks or mends it."""
        fabric, faults = self.fabric, self.faults
        links = [link.name for link in fabric.links]
        host_links = [link.name for link in fabric.links if link.kind == "host"]
        link = links[fault.where % len(links)]
        carrier = host_links[fault.where % len(host_links)]
        switch = fabric.switches[fault.where % len(fabric.switches)].name
        plane = fault.where % fabric.planes
        way, amount = fault.direction, fault.amount
        delay_ns = round(amount * 50_000)
        kinds: dict[str, tuple[tuple[object, ...], Callable[[bool], None]]] = {
            "blackhole": ((link, way), lambda on: faults.blackhole(link, way, on)),
            "loss": ((link, way), lambda on: faults.loss(link, way, amount if on else 0)),
            "corruption": ((link, way), lambda on: faults.corruption(link, way, amount if on else 0)),
            "rate": ((link, way), lambda on: faults.rate(link, way, amount if on else 0)),
            "delay": ((link, delay_ns), lambda on: faults.delay(link, delay_ns if on else -delay_ns)),
            "carrier": ((carrier,), lambda on: faults.carrier(carrier, on)),
            "switch": ((switch,), lambda on: faults.switch(switch, on)),
            "plane": ((plane,), lambda on: faults.plane(plane, on)),
        }
        place, change = kinds[fault.kind]
        # The direction is not part of the place, because a blackhole "up" and a blackhole "both" overlap.
        return (fault.kind, *place), change


def run(schedule: Schedule) -> World:
    """Run a schedule until all messages are delivered, check it, and return the world."""
    world = World(schedule)
    clock = world.network.clock
    wanted = sum(transfer.count for transfer in world.transfers)
    while sum(seen.completed for seen in world.seen.values()) < wanted:
        assert clock.now_ns < PATIENCE_NS, "a queue pair is stuck"
        clock.run(clock.now_ps + STEP_NS * PS_PER_NS)
    ends = max([fault.at_ns + fault.lasts_ns for fault in schedule.faults], default=0)
    clock.run(max(clock.now_ps, ends * PS_PER_NS) + STEP_NS * PS_PER_NS)
    errors = [event for seen in world.seen.values() for event in seen.events if isinstance(event, QpError)]
    assert not errors
    for transfer in world.transfers:
        transfer.check()
    return world


KINDS: Final = ("blackhole", "loss", "corruption", "rate", "delay", "carrier", "switch", "plane")
TIMES = st.one_of(st.just(0), st.integers(0, 30_000), st.integers(0, 500_000))
LENGTHS = st.sampled_from([0, 1, 3, 4, 100, 4095, 4096, 4097, 8192, 20_000, 70_001, 200_000])
BURSTS = st.builds(
    Burst,
    at_ns=TIMES,
    src=st.integers(0, 5),
    dst=st.integers(0, 5),
    messages=st.lists(st.tuples(LENGTHS, st.booleans()), min_size=1, max_size=6).map(tuple),
)
FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(KINDS),
    at_ns=TIMES,
    lasts_ns=st.sampled_from([1_000, 20_000, 150_000, 1_000_000, 10_000_000]),
    where=st.integers(0, 400),
    direction=st.sampled_from(["both", "up", "down"]),
    amount=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
)
OPTIONS = st.fixed_dictionaries(
    {
        "max_active_evs": st.sampled_from([8, 32, 128]),
        "spare_evs_per_plane": st.integers(0, 8),
        "reverse_evs": st.sampled_from(["set", "mirror"]),
        "sack_threshold_bytes": st.sampled_from([1, 8192, 40_000]),
        "mpr": st.sampled_from([128, 1024]),
        "dynamic_mpr": st.booleans(),
        "max_wimm": st.sampled_from([1, 32]),
        "imm_waits_for_earlier": st.booleans(),
    }
)
SCHEDULES = st.builds(
    Schedule,
    seed=st.integers(0, 1 << 32),
    shape=st.integers(0, len(SHAPES) - 1),
    bursts=st.lists(BURSTS, min_size=1, max_size=4).map(tuple),
    faults=st.lists(FAULTS, max_size=8).map(tuple),
    options=OPTIONS,
)
