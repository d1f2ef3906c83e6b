"""A lane: one transport with its traffic, on a separate simulated network. The page compares lanes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, cast

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.virtual.nics import VirtualDevice, attach_nic, queue_policy
from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.mrc.events import EvRetired
from mrclab.hosts.nic.routes import paths_for
from mrclab.hosts.options import idle_rtt_ns
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.rdma.paths import RemotePaths
from mrclab.hosts.roce.wire import choose_path, choose_plane, flow_label, udp_source
from mrclab.hosts.streams.stream import StreamPlan, StreamReceiver, StreamSender
from mrclab.p4src.contract import Drop
from mrclab.play.scene import OFFERED, Scene, core_of
from mrclab.play.tracks import KEEPS, MOVES, NEVER, STAYS, Book, packets_around, times_of
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.faults import registry_of
from mrclab.simulator.network import Network
from mrclab.simulator.nic import Nic
from mrclab.topologies import Fabric, Path

MOST_EVENTS = 200
UDP_PORT = 4791


class Program:
    """All streams that begin or end at one NIC."""

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self.device = VirtualDevice(nic)
        self.endpoint = cast(Endpoint, nic.endpoint)
        self.senders: dict[int, StreamSender] = {}
        self.receivers: dict[int, StreamReceiver] = {}
        self.retired: deque[tuple[int, int]] = deque(maxlen=4096)
        """(ns, EV) of each retired path."""
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._posted: deque[tuple[int, int, int]] = deque(maxlen=4096)
        """For each post: (time in ns, queue pair, number of messages posted to this queue pair so far)."""
        self._received: deque[tuple[int, int, int]] = deque(maxlen=4096)
        nic.programs.append(self)

    def tick(self, now_ns: int) -> int | None:
        """Post the messages that are due; return the next due time in ns, or None."""
        dues = []
        for qpn, sender in self.senders.items():
            before = sender.posted
            sender.tick()
            if sender.posted != before:
                self._posted.append((now_ns, qpn, sender.posted))
            due = sender.next_due()
            if due is not None:
                dues.append(due)
        return min(dues, default=None)

    def take(self, event: Event) -> None:
        """Give an event to the stream of its queue pair, and store it for the page."""
        if isinstance(event, EvRetired):
            self.retired.append((event.t_ns, event.ev))
        if event.qpn in self.receivers:
            receiver = self.receivers[event.qpn]
            receiver.on_event(event)
            self._received.append((event.t_ns, event.qpn, receiver.received))
        if event.qpn in self.senders:
            self.senders[event.qpn].on_event(event)
        self.events.append(event)

    def posted_by(self, qpn: int, t_ns: int) -> int:
        """Return the number of messages that were posted to a queue pair until ``t_ns``."""
        return max((count for when, one, count in self._posted if one == qpn and when <= t_ns), default=0)

    def received_by(self, qpn: int, count: int) -> int:
        """Return the time (ns) at which a queue pair had received ``count`` messages, or NEVER."""
        return min(
            (when for when, one, have in self._received if one == qpn and have >= count), default=NEVER
        )


@dataclass(slots=True)
class Flow:
    """A stream between two hosts, with the numbers of its two queue pairs."""

    source: str
    target: str
    source_qpn: int
    target_qpn: int
    restarts: int = 0
    placed_before: int = 0
    """The bytes that this flow's earlier connections, which gave up, have delivered."""
    gave_up_ns: int | None = None
    """The time at which the connection gave up. None: the connection works."""


def one_path_of(routes: RemotePaths, label: int) -> RemotePaths:
    """Return only one of the paths, chosen by a hash of the flow label. Both ends choose the same plane."""
    plane = choose_plane(routes, label)
    return RemotePaths((replace(plane, paths=(choose_path(plane, label, udp_source(label), UDP_PORT),)),))


class Lane:
    """A simulated network that carries the traffic of one transport only."""

    def __init__(self, name: str, scene: Scene, fabric: Fabric) -> None:
        """Build the network and start the flows. Raise InputError, ValueError or TypeError on bad options."""
        self.name = name
        self.scene = scene
        self.fabric = fabric
        core, options = core_of(OFFERED[name])
        self._one_path = OFFERED[name].one_path
        self.retires = core.name == "mrc" and bool(options.get("ev_health", True))
        self._moves = core.name == "rocev2-failover"
        self.stays = KEEPS if core.name == "mrc" and not self._one_path else MOVES if self._moves else STAYS
        self.network = Network(fabric, queue_policy(fabric), scene.seed)
        self.faults = registry_of(self.network)
        pairs = scene.pairs(fabric)
        hosts = list(dict.fromkeys(host for pair in pairs for host in pair))
        self._programs = {
            host: Program(attach_nic(self.network, core, host, options, scene.seed)) for host in hosts
        }
        self.paths: dict[tuple[str, str], tuple[Path, ...]] = {pair: fabric.paths(*pair) for pair in pairs}
        self._numbers: list[Path] = [path for paths in self.paths.values() for path in paths]
        known = {(p.src, p.outer_dst.packed): number for number, p in enumerate(self._numbers)}
        self.book = Book(self.network, {h: p.nic for h, p in self._programs.items()}, known)
        self.rtt_ns = max(idle_rtt_ns(fabric, host) for host in hosts[:2])
        self.flight_ns = 4 * self.rtt_ns
        self.flows = [self._connected(*pair, number) for number, pair in enumerate(pairs)]
        self._resent_before = self._sent_before = 0

    def _connected(self, source: str, target: str, number: int) -> Flow:
        near, far = self._programs[source], self._programs[target]
        plan = StreamPlan(self.scene.message_bytes, self.scene.rate_bps, self.scene.seed + number)
        source_qpn, target_qpn = near.endpoint.create_qp(), far.endpoint.create_qp()
        receiver = far.receivers[target_qpn] = StreamReceiver(far.device, plan, target_qpn)
        sender = near.senders[source_qpn] = StreamSender(near.device, source_qpn, receiver.remote, plan)
        ends = ((near, source_qpn, far, target_qpn), (far, target_qpn, near, source_qpn))
        for one, qpn, other, other_qpn in ends:
            attributes = other.endpoint.local_attributes(other_qpn)
            routes = paths_for(one.endpoint, self.fabric, one.nic.name, other.nic.name)
            if self._one_path:
                routes = one_path_of(routes, flow_label(qpn, other_qpn))
            one.endpoint.connect(qpn, attributes, routes)
        sender.start()
        near.nic.wake_now()
        return Flow(source, target, source_qpn, target_qpn)

    @property
    def now_ns(self) -> int:
        """The virtual time."""
        return self.network.clock.now_ns

    def run(self, until_ns: int) -> None:
        """Advance virtual time to ``until_ns``, and record which connections gave up."""
        self.network.clock.run(until_ns * PS_PER_NS)
        for flow in self.flows:
            sender = self._programs[flow.source].senders.get(flow.source_qpn)
            if flow.gave_up_ns is None and sender is not None and sender.failed is not None:
                flow.gave_up_ns = self.now_ns

    def reconnect(self) -> None:
        """Reconnect the flows whose connection gave up, as a job does after a restart."""
        for number, flow in enumerate(self.flows):
            if flow.gave_up_ns is None:
                continue
            near, far = self._programs[flow.source], self._programs[flow.target]
            counters = near.endpoint.qp_counters(flow.source_qpn)
            self._sent_before += counters.sent
            self._resent_before += counters.retransmitted
            placed = self.placed(flow)
            for program, qpn in ((near, flow.source_qpn), (far, flow.target_qpn)):
                program.senders.pop(qpn, None)
                program.receivers.pop(qpn, None)
                program.endpoint.destroy_qp(qpn)
            again = self._connected(flow.source, flow.target, number)
            again.placed_before, again.restarts = placed, flow.restarts + 1
            self.flows[number] = again

    def placed(self, flow: Flow) -> int:
        """Return the payload bytes that a flow has delivered."""
        endpoint = self._programs[flow.target].endpoint
        return flow.placed_before + int(endpoint.qp_counters(flow.target_qpn).bytes_placed)

    def sent(self) -> tuple[int, int]:
        """Return two numbers for all flows: packets sent, and packets sent again."""
        sent, again = self._sent_before, self._resent_before
        for flow in self.flows:
            counters = self._programs[flow.source].endpoint.qp_counters(flow.source_qpn)
            sent += counters.sent
            again += counters.retransmitted
        return sent, again

    def path_rows(self, shown: int) -> list[list[int]]:
        """Return [EV, plane, state, active, sent, acknowledged, lost] of each path of a flow."""
        flow = self.flows[shown]
        return [
            [ev.ev, ev.plane, int(ev.state), int(ev.active), ev.sent, ev.acked, ev.lost]
            for ev in self._programs[flow.source].endpoint.ev_counters(flow.source_qpn)
        ]

    def times(self, fault: FaultRecord) -> dict[str, Any]:
        """Return the times of a fault that are known now, for its card."""
        retired = sorted(
            entry for name in {flow.source for flow in self.flows} for entry in self._programs[name].retired
        )
        found = times_of(
            self.book.tracks,
            fault,
            self._numbers,
            self.book.first,
            retired,
            flight_ns=self.flight_ns,
            now_ns=self.now_ns,
            retires=self.retires,
            stays=self.stays,
            delivered=self._delivered if self._moves else None,
        )
        found["rtt_us"] = round(self.rtt_ns / 1e3, 2)
        gave_up = [flow.gave_up_ns for flow in self.flows if flow.gave_up_ns is not None]
        if found["felt"] and found["recovered_us"] is None and gave_up:
            found |= {"gave_up": True, "gave_up_us": round((min(gave_up) - fault.t_before_ns) / 1e3, 1)}
        return found

    def _delivered(self, sent_ns: int) -> int:
        """Return when (ns) all data posted until ``sent_ns`` had arrived, or NEVER if data is missing."""
        return max(
            self._programs[flow.target].received_by(
                flow.target_qpn, self._programs[flow.source].posted_by(flow.source_qpn, sent_ns)
            )
            for flow in self.flows
        )

    def packets(self, fault: FaultRecord, recovered_us: float | None) -> dict[str, Any]:
        """Return the transmissions around a fault."""
        until_ns = round(1e3 * recovered_us) if recovered_us is not None else 10 * self.rtt_ns
        return packets_around(
            self.book.tracks,
            fault,
            self._numbers,
            before_ns=2 * self.rtt_ns,
            until_ns=until_ns + 2 * self.rtt_ns,
        )

    def queues(self, above_ns: int) -> list[list[int]]:
        """Return [place, wait in ns] of each switch port whose queue takes at least ``above_ns`` to drain."""
        now_ps, found = self.network.clock.now_ps, []
        for index, link in enumerate(self.fabric.links):
            for way, ends in ((1, (link.a.node, link.b.node)), (0, (link.b.node, link.a.node))):
                wait_ns = (self.network.links[ends].busy_until_ps() - now_ps) // PS_PER_NS
                if wait_ns >= above_ns:
                    found.append([2 * index + way, wait_ns])
        return found

    def carried(self) -> list[tuple[int, int]]:
        """Return the bytes that each link has carried: (away from the hosts, towards the hosts)."""
        links = self.network.links
        return [
            (links[link.a.node, link.b.node].bytes, links[link.b.node, link.a.node].bytes)
            for link in self.fabric.links
        ]

    def counters(self, switch: str) -> dict[str, Any]:
        """Return a switch's counters in the same form as for a running testbed."""
        node = self.network.switches[switch]
        ports = node.ports.values()
        return {
            "rx": {"all": {"packets": sum(p.packets for p in ports) + sum(node.drops)}},
            "tx": {"all": {"packets": sum(p.packets for p in ports)}},
            "drops": {
                Drop(reason).name.lower(): {"packets": count}
                for reason, count in enumerate(node.drops)
                if count
            },
            "queues": {
                "all": {
                    "marked": {"packets": sum(p.marked for p in ports)},
                    "trimmed": {"packets": sum(p.trimmed for p in ports)},
                    "refused": {"packets": sum(p.dropped for p in ports)},
                }
            },
        }

    def events(self) -> list[tuple[str, Event]]:
        """Return the events of all NICs since the last call, by host."""
        found = []
        for host, program in self._programs.items():
            found += [(host, event) for event in program.events]
            program.events.clear()
        return sorted(found, key=lambda pair: pair[1].t_ns)
