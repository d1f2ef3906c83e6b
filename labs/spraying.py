"""Send a stream over a simulated fabric with a student's path policy, and measure the results (lab 4).

Sender, receiver and switches are those of `--target sim`, with 100 Gbit/s a port. All times are simulated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrclab.controller.queues import QueuePolicy
from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.evs.ev import Ev, PathPolicy
from mrclab.hosts.nic.routes import nic_addresses, remote_paths
from mrclab.hosts.options import datacenter_mrc, idle_rtt_ns, mrc_config
from mrclab.hosts.rdma.events import Event, PacketLost, SendCompleted
from mrclab.hosts.rdma.frames import BTH_OFFSET
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.faults import NetworkFaults
from mrclab.simulator.network import Network
from mrclab.simulator.nic import Nic
from mrclab.topologies import Fabric, build_fabric

MTU_BYTES = 4096
SRC, DST = "h0", "h3"
_US_PS = 1000 * PS_PER_NS
_REACTION_NS = 200
_WINDOW_PACKETS = 64
_LONGEST_US = 50_000
_FIRST_WRITE, _LAST_WRITE = 0xC6, 0xCB
_HEADERS_ONLY_BYTES = 256


@dataclass(frozen=True)
class Fault:
    """A fault of a link.

    If ``ratio`` is None, the link drops every packet. Otherwise it keeps only this part of its rate. If
    ``until_us`` is not 0, the fault ends at that time.
    """

    link: str
    at_us: int = 0
    until_us: int = 0
    ratio: float | None = None


@dataclass(frozen=True)
class Sprayed:
    """The results of a stream. EVs are numbers. PSNs count from 0, in the order of sending."""

    sent: Mapping[int, int]
    """The number of packets that were sent on each EV."""
    arrived: tuple[int, ...]
    """The PSNs of untrimmed packets, in the order of arrival. A PSN may occur twice."""
    took_us: float
    """The time until the last write completed, or infinity if not all completed."""
    lost: Mapping[int, int]
    """The number of packets on each EV that the sender counted as lost."""
    lost_after: Mapping[int, int]
    """As ``lost``, but only packets sent after `Fault.at_us` + 100 us, when senders should avoid the link."""

    @property
    def finished(self) -> bool:
        """True if everything was delivered."""
        return self.took_us != float("inf")


def fabric() -> Fabric:
    """Return the fabric of the lab: 4 planes of 100 Gbit/s with 4 T1s each, so 16 EVs."""
    links = {"rate": "100 Gbit/s", "delay": "500 ns"}
    shape = {"name": "spray", "planes": 4, "t0": 2, "t1": 4, "hosts": 4}
    return build_fabric(json.dumps({**shape, "links": {"host": links, "fabric": links}}), "spray")


def spray(
    policy: type[PathPolicy] | None,
    *,
    packets: int = 1600,
    fault: Fault | None = None,
    cross_traffic: bool = False,
    ev_health: bool = True,
    seed: int = 1,
) -> Sprayed:
    """Send a stream from one rack to the other and return its results.

    Without ``policy``, MRC's own rotation is used. With ``cross_traffic``, h1 writes to h2 at the same time,
    over some of the paths. Without ``ev_health``, MRC retires no path, so the policy must avoid lossy paths.
    """
    world = _World(fabric(), seed)
    sender = _Stream(world, SRC, DST, packets, policy, ev_health)
    if cross_traffic:
        _Stream(world, "h1", "h2", packets, _FirstOfEachPlane, ev_health=True)
    if fault is not None:
        world.plan(fault)
    world.run(lambda: sender.done)
    counters = sender.endpoint.ev_counters(sender.qpn)
    known_ns = (fault.at_us + 100) * 1000 if fault is not None else 0
    return Sprayed(
        sent={ev.ev: ev.sent for ev in counters},
        arrived=tuple(sender.arrivals),
        took_us=sender.took_ns / 1000,
        lost={ev.ev: ev.lost for ev in counters},
        lost_after={
            ev.ev: sum(loss.ev == ev.ev and loss.sent_ns > known_ns for loss in sender.losses)
            for ev in counters
        },
    )


def some_evs() -> list[Ev]:
    """Return the 16 EVs of a new queue pair, for checks that set their counters by hand."""
    world = _World(fabric(), 1)
    sender = _Stream(world, SRC, DST, 1, None, ev_health=True)
    found = sender.endpoint.qps[sender.qpn].evs.by_value
    return [found[value] for value in sorted(found)]


def _first_of_each_plane(evs: Any) -> Any:
    planes: dict[int, Any] = {}
    for ev in evs:
        if ev.port not in planes or ev.value < planes[ev.port].value:
            planes[ev.port] = ev
    return list(planes.values())


class _FirstOfEachPlane(PathPolicy):
    """A policy that puts all load on the first T1 of each plane."""

    def choose(self, now_ns: int, evs: Any) -> Any:
        return self.rng.choice(_first_of_each_plane(evs))


class _World:
    """The simulated network and the NICs of its hosts."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        self.fabric = fabric
        self.rng = random.Random(seed)
        self.network = Network(fabric, QueuePolicy.of_rtt(idle_rtt_ns(fabric, SRC)), seed)
        self.faults = NetworkFaults(self.network)

    def nic(self, host: str, options: Mapping[str, Any], policy: type[PathPolicy] | None) -> Nic:
        """Return a new NIC that is attached to the network at a host."""
        base = {**datacenter_mrc(self.fabric, host), **options}
        config: MrcConfig = mrc_config(self.fabric, host, base)
        rng = random.Random(self.rng.getrandbits(32))
        endpoint = Endpoint(nic_addresses(self.fabric, host), config, rng, None, policy)
        return self.network.attach(host, endpoint, _REACTION_NS)

    def plan(self, fault: Fault) -> None:
        """Schedule the start and the end of a fault."""

        def change(broken: bool) -> None:
            if fault.ratio is None:
                self.faults.blackhole(fault.link, "both", broken)
            else:
                self.faults.rate(fault.link, "both", fault.ratio if broken else 0)

        clock = self.network.clock
        clock.call_at(fault.at_us * _US_PS, lambda: change(True))
        if fault.until_us:
            clock.call_at(fault.until_us * _US_PS, lambda: change(False))

    def run(self, done: Any) -> None:
        """Run the simulation until ``done`` returns True or the simulated time is far too long."""
        clock = self.network.clock
        while not done() and clock.now_ps < _LONGEST_US * _US_PS:
            clock.run(clock.now_ps + 20 * _US_PS)


class _Stream:
    """One write of many packets from one host to another, with records of both ends."""

    def __init__(
        self,
        world: _World,
        src: str,
        dst: str,
        packets: int,
        policy: type[PathPolicy] | None,
        ev_health: bool,
    ) -> None:
        options = {
            "congestion": "fixed",
            "cwnd_bytes": _WINDOW_PACKETS * MTU_BYTES,
            "ev_health": ev_health,
            "mtu_bytes": MTU_BYTES,
        }
        near, far = world.nic(src, options, policy), world.nic(dst, options, None)
        mine, peer = near.endpoint, far.endpoint
        assert isinstance(mine, Endpoint)
        assert isinstance(peer, Endpoint)
        self.endpoint = mine
        self.qpn, other = self.endpoint.create_qp(), peer.create_qp()
        self.endpoint.connect(self.qpn, peer.local_attributes(other), remote_paths(world.fabric, src, dst))
        peer.connect(other, self.endpoint.local_attributes(self.qpn), remote_paths(world.fabric, dst, src))
        self._first_psn: int | None = None
        self.arrivals: list[int] = []
        self.losses: list[PacketLost] = []
        self.took_ns = float("inf")
        near.programs.append(self)
        near.recorder = _FirstPsn(self)
        far.recorder = self
        size = packets * MTU_BYTES
        region = peer.register_memory(bytearray(size))
        self.endpoint.post_write(self.qpn, 0, bytes(size), region.address, region.rkey, imm=1)
        near.wake_now()

    @property
    def done(self) -> bool:
        """True if the write has completed."""
        return self.took_ns != float("inf")

    def tick(self, now_ns: int) -> int | None:
        """Return None: the write is posted at the start, and nothing is posted later."""
        return None

    def take(self, event: Event) -> None:
        """Record completions and losses."""
        if isinstance(event, SendCompleted):
            self.took_ns = event.t_ns
        elif isinstance(event, PacketLost):
            self.losses.append(event)

    def psn_of(self, frame: bytes) -> int | None:
        """Return the PSN of a data packet minus the stream's first PSN. Return None for other frames."""
        opcode = frame[BTH_OFFSET]
        if not _FIRST_WRITE <= opcode <= _LAST_WRITE or len(frame) < _HEADERS_ONLY_BYTES:
            return None
        psn = int.from_bytes(frame[BTH_OFFSET + 9 : BTH_OFFSET + 12], "big")
        if self._first_psn is None:
            self._first_psn = psn
        return (psn - self._first_psn) & 0xFFFFFF

    def note(self, now_ns: int, port: int, frame: bytes, outgoing: bool) -> None:
        """Record the arrival of a data packet."""
        if not outgoing:
            psn = self.psn_of(frame)
            if psn is not None:
                self.arrivals.append(psn)


class _FirstPsn:
    """A watcher of the sender's frames, from which a stream gets its first PSN."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def note(self, now_ns: int, port: int, frame: bytes, outgoing: bool) -> None:
        """Record the PSN of a sent frame."""
        if outgoing:
            self._stream.psn_of(frame)
