"""A fabric in virtual time: its switches and links, the marks (ECN), and the attached NICs.

Switches mark frames at the queue depths of UEC, like the switch program, or at the depths of DCQCN.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, Literal

from mrclab.controller.queues import ETHERNET_HEADER, QueuePolicy, queue_setting, shape_of
from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.rdma.endpoint import BaseEndpoint
from mrclab.p4src.contract import TICKS_PER_US
from mrclab.simulator.clock import LEAST_SLOTS, NEVER_PS, PS_PER_NS, Clock
from mrclab.simulator.lossless import Lossless, join
from mrclab.simulator.nic import Nic, ObjectNic
from mrclab.simulator.port import UNLIMITED, Bucket, Depths, Node, Packet, Port
from mrclab.simulator.served import ServedPort
from mrclab.simulator.switch import SID_BYTES, ClassMap, Switch, Tables
from mrclab.topologies import Fabric, LinkProfile, PortRef
from mrclab.topologies import Switch as SwitchPlan
from mrclab.topologies.ev_paths import FIXED_BITS, UPLINK_BITS
from mrclab.topologies.model import STRUCTURED_MEND, require_two_tiers

Marks = Literal["uec", "dcqcn"]
DCQCN_FROM_NS: Final = 1_000
DCQCN_TO_NS: Final = 40_000
DCQCN_MOST: Final = 0.01
"""The values of DCQCN: Kmin and Kmax (5 kB and 200 kB at 40 Gbit/s) as waiting times, and Pmax 1 %.

Source: Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, section 5.
"""


@dataclass(frozen=True, slots=True)
class Marking:
    """How the switches of a fabric mark frames."""

    marks: Marks = "uec"
    last_hop: bool = False
    """If True, ports whose links lead to NICs mark, too. Then marks also report an incast at the NIC."""

    def applied(self, depths: Depths, before_last: Depths, *, last_hop: bool) -> Depths:
        """Return a port's depths with the thresholds of this marking.

        ``last_hop`` is True if the port's link leads to a NIC. If such a port marks, it gets the thresholds
        of ``before_last``: the depths of a port whose link leads to a switch.
        """
        if last_hop and not self.last_hop:
            return depths
        if self.marks == "uec":
            span_ps = before_last.mark_span_ps
            return replace(depths, mark_from_ps=before_last.mark_from_ps, mark_span_ps=span_ps)
        from_ps = DCQCN_FROM_NS * PS_PER_NS
        span_ps = DCQCN_TO_NS * PS_PER_NS - from_ps
        return replace(depths, mark_from_ps=from_ps, mark_span_ps=span_ps, mark_most=DCQCN_MOST)


USUAL: Final = Marking()


Choice = Literal["hash", "destination", "ev", "adaptive", "flowlet"]
"""How a T0 chooses the uplink of a frame without a segment list: by fields of the frame, or by loads."""
_LEAST_SLOTS_PER_PACKET: Final = 32
_PORTS_PER_SLOT: Final = 4
_PACKET_BITS: Final = 8 * 4250
_MOST_SLOTS: Final = 1 << 20
"""Limit for the slots of a clock: they take 8 MB. A fabric of 16,384 hosts needs half of this number."""
_PS_PER_US: Final = 10**6


def depths_of(
    profile: LinkProfile, policy: QueuePolicy, *, last_hop: bool, marking: Marking = USUAL
) -> Depths:
    """Return the queue depths of a port in front of a link.

    By default, frames are marked at the same depths as by a live switch.
    """
    own = _switch_depths(profile, policy, last_hop=last_hop)
    before_last = _switch_depths(profile, policy, last_hop=False) if last_hop else own
    return marking.applied(own, before_last, last_hop=last_hop)


def _switch_depths(profile: LinkProfile, policy: QueuePolicy, *, last_hop: bool) -> Depths:
    setting = queue_setting(profile, last_hop=last_hop, policy=policy)
    mark_from, mark_span = setting.mark or (0, 0)
    return Depths(
        drop_ps=_ps(setting.limit),
        trim_from_ps=_ps(setting.trim_from),
        cut_limit_ps=_ps(setting.trim_limit),
        cut_dscp=setting.trim_dscp,
        mark_from_ps=_ps(mark_from) if setting.mark else NEVER_PS,
        mark_span_ps=_ps(mark_span),
    )


def usual_buffer_bytes(profile: LinkProfile, policy: QueuePolicy) -> int:
    """Return the default size of a link's buffer, bytes: the queue at which a switch begins to trim."""
    return depths_of(profile, policy, last_hop=False).trim_from_ps * profile.rate_bps // (8 * 10**12)


def _ps(ticks: int) -> int:
    return ticks * _PS_PER_US // TICKS_PER_US


class Network:
    """The switches and links of a fabric, and the attached NICs.

    `links` has the sending end of each direction of each link, by the names of the two nodes.
    """

    def __init__(
        self,
        fabric: Fabric,
        policy: QueuePolicy | None = None,
        seed: int = 1,
        lossless: Lossless | None = None,
        send_buffer_bytes: Callable[[int], int] | None = None,
        marking: Marking = USUAL,
    ) -> None:
        """Build the fabric, without traffic and faults. `seed` is for marks, losses and corruption.

        With `lossless`, no frame is dropped or trimmed for lack of a buffer, and switches mark on every hop.
        With `send_buffer_bytes`, token buckets limit the links, as on live targets. `send_buffer_bytes` takes
        a link's rate and returns the number of bytes that may wait in a host for this link. Raise ValueError
        if `lossless` and `send_buffer_bytes` are both given.
        """
        if lossless is not None and send_buffer_bytes is not None:
            raise ValueError("lossless links are wires: no token bucket keeps them")
        self.fabric = fabric
        self.lossless = lossless
        self._send_buffer_bytes = send_buffer_bytes
        self._policy = policy or QueuePolicy()
        self._marking = marking
        self._rng = random.Random(seed)
        self._classes = ClassMap(dict(fabric.classes))
        self.clock = _clock_of(fabric)
        self.links: dict[tuple[str, str], Port] = {}
        self.nics: dict[str, Nic] = {}
        self._spare: list[Packet] = []
        self._routed = False
        self._choice: Choice = "hash"
        self._withdrawn: frozenset[str] = frozenset()
        self.flowlet_ns = 0
        """For the choice `flowlet`: a flow may use another uplink after a gap of this length."""
        self.switches = {s.name: Switch(s.name, sid_tables(fabric, s)) for s in fabric.switches}
        macs = _macs(fabric)
        for link in fabric.links:
            for near, far in ((link.a, link.b), (link.b, link.a)):
                self._add_port(link.profile, near, far, macs)
        if lossless is not None:
            for sender, receiver in self.links:
                if receiver in self.switches:
                    self._join(sender, receiver, self.switches[receiver])

    def _add_port(
        self, profile: LinkProfile, near: PortRef, far: PortRef, macs: Mapping[PortRef, bytes]
    ) -> None:
        switch = self.switches.get(near.node)
        depths = UNLIMITED
        if switch is not None:
            to_nic = far.node not in self.switches and self.lossless is None
            depths = depths_of(profile, self._policy, last_hop=to_nic, marking=self._marking)
        make = Port if self.lossless is None else self.lossless.port_class
        port = make(
            self.clock,
            f"{near.node}>{far.node}",
            near.port,
            profile.rate_bps,
            profile.delay_ns * PS_PER_NS,
            depths,
            self._rng,
        )
        if self._send_buffer_bytes is not None:
            burst = shape_of(profile).burst_bytes
            ahead = self._send_buffer_bytes(profile.rate_bps) if switch is None else 0
            port.keep_by(Bucket(burst, ahead, owes=switch is not None, classes=switch is not None))
        port.peer_port, port.mac, port.peer_mac = far.port, macs[near], macs[far]
        port.peer = self.switches.get(far.node)
        self.links[near.node, far.node] = port
        if switch is not None:
            switch.ports[near.port] = port

    def _join(self, near: str, far: str, node: Node) -> None:
        """Create the receiving end of a lossless link."""
        assert self.lossless is not None
        port, reverse = self.links[near, far], self.links[far, near]
        assert isinstance(port, ServedPort)
        assert isinstance(reverse, ServedPort)
        onward = self.switches[far].ports.values() if far in self.switches else ()
        profile = self.fabric.link(near, far).profile
        frame_bytes = profile.mtu_bytes + ETHERNET_HEADER
        usual = usual_buffer_bytes(profile, self._policy)
        join(self.lossless, port, reverse, node, frame_bytes, usual, onward)

    def attach(
        self,
        host: str,
        endpoint: BaseEndpoint,
        reaction_ns: int = 0,
        timer_grain_ns: int = 0,
        *,
        objects: bool = False,
    ) -> Nic:
        """Attach a host's endpoint to the fabric and return its NIC.

        If `objects` is true, all endpoints of the fabric must have been created with `objects`.
        """
        plan = self.fabric.host(host)
        ports = [self.links[host, port.t0] for port in plan.ports]
        nic: Nic
        if objects:
            assert isinstance(endpoint, Endpoint), "only MRC's packets cross as objects"
            nic = ObjectNic(
                self.clock, host, ports, endpoint, self._classes, reaction_ns, timer_grain_ns, self._spare
            )
        else:
            nic = Nic(self.clock, host, ports, endpoint, self._classes, reaction_ns, timer_grain_ns)
        for port in plan.ports:
            if self.lossless is None:
                self.links[port.t0, host].peer = nic
            else:
                self._join(port.t0, host, nic)
        for sending in ports:
            if isinstance(sending, ServedPort):
                sending.on_free = nic.wake
        self.nics[host] = nic
        return nic

    def route(self, withdrawn: AbstractSet[str] = frozenset(), choice: Choice = "hash") -> None:
        """Install routes on all switches.

        A T0 chooses the uplink to another rack by a hash of the flow (ECMP), by the destination or by load.
        The T0 avoids the `withdrawn` links. With structured EVs (`ev`) the T0 cannot avoid links.
        """
        if self._routed and withdrawn == self._withdrawn and choice == self._choice:
            return
        if choice == "ev":
            require_two_tiers(self.fabric, STRUCTURED_MEND)
        self._routed, self._withdrawn, self._choice = True, frozenset(withdrawn), choice
        for plan in self.fabric.switches:
            routes = routes_of(self.fabric, plan, self._withdrawn, by_destination=choice == "destination")
            tables = replace(sid_tables(self.fabric, plan), routes=routes)
            if choice == "adaptive" or choice == "flowlet":
                tables = replace(tables, spread=choice, flowlet_ps=self.flowlet_ns * PS_PER_NS)
            if choice == "ev" and plan.tier == "t0":
                tables = _by_ev(self.fabric, plan, tables)
            self.switches[plan.name].set_tables(tables)


def _clock_of(fabric: Fabric) -> Clock:
    """Return a clock (a wheel of time slots) for the fabric.

    At full load, each slot has only a few events. The wheel is longer than the links' delays.
    """
    packet_ps = _PACKET_BITS * 10**12 // max(link.profile.rate_bps for link in fabric.links)
    ports = 2 * len(fabric.links)
    slot_ps = max(1, packet_ps // max(_LEAST_SLOTS_PER_PACKET, ports // _PORTS_PER_SLOT))
    reach_ps = 8 * packet_ps + max(link.profile.delay_ns for link in fabric.links) * PS_PER_NS
    return Clock(slot_ps, min(max(LEAST_SLOTS, 2 * reach_ps // slot_ps), _MOST_SLOTS))


def _macs(fabric: Fabric) -> dict[PortRef, bytes]:
    macs = {port.ref: port.mac for switch in fabric.switches for port in switch.ports}
    return macs | {port.ref: port.mac for host in fabric.hosts for port in host.ports}


def sid_tables(fabric: Fabric, switch: SwitchPlan) -> Tables:
    """Return a switch's state for segment lists: its own SID and the SIDs of its neighbours."""

    def sid(usid: int) -> bytes:
        return fabric.sid(usid).network_address.packed[:SID_BYTES]

    neighbours = {sid(fabric.usid_of(p.peer.node, switch.plane)): p.number for p in switch.ports}
    return Tables(sid(switch.usid), neighbours)


def _by_ev(fabric: Fabric, t0: SwitchPlan, tables: Tables) -> Tables:
    """Return a T0's tables in which structured EVs choose the uplink."""
    routes = dict(tables.routes)
    routes |= {h.ports[t0.plane].address.packed: () for h in fabric.hosts if h.rack != t0.index}
    uplinks = {
        t1.index: t0.port_to(t1.name).number
        for t1 in fabric.t1s(t0.plane)
        if fabric.has_link(t0.name, t1.name)
    }
    return replace(
        tables, routes=routes, uplinks=uplinks, ev_shift=FIXED_BITS, ev_mask=(1 << UPLINK_BITS) - 1
    )


def routes_of(
    fabric: Fabric, switch: SwitchPlan, withdrawn: AbstractSet[str], *, by_destination: bool = False
) -> dict[bytes, tuple[int, ...]]:
    """Return a switch's routes to all NIC ports of its plane. A hash of the flow chooses one port of a route.

    To reach another rack, a T0 uses every uplink, unless this uplink or its T1's link to that rack is
    withdrawn. With ``by_destination`` the T0 uses only one uplink, as with InfiniBand's linear forwarding
    tables. The destination's number is divided by the number of the T0's uplinks. The remainder selects the
    T0's uplink. If there are T2s, the quotient selects the T1's uplink. Without ``by_destination``, a hash
    is divided instead of the destination's number.
    """
    by_rack: dict[int, tuple[int, ...]] = {}
    before = _choices_below(fabric, switch)
    routes: dict[bytes, tuple[int, ...]] = {}
    ways: tuple[int, ...]
    for host in fabric.hosts:
        if switch.tier == "t0" and host.rack == switch.index:
            ways = (switch.port_to(host.name).number,) if fabric.has_link(switch.name, host.name) else ()
        else:
            if host.rack not in by_rack:
                by_rack[host.rack] = _ways(
                    fabric, switch, host.rack, withdrawn, 1 if by_destination else before
                )
            ways = by_rack[host.rack]
            if by_destination and ways:
                ways = (ways[host.index // before % len(ways)],)
        if ways:
            routes[host.ports[switch.plane].address.packed] = ways
    return routes


def _ways(
    fabric: Fabric, switch: SwitchPlan, rack: int, withdrawn: AbstractSet[str], copies: int
) -> tuple[int, ...]:
    """Return the port that leads down to a rack. If no such port exists, return the ports that lead up.

    Each port that leads up has ``copies`` entries.
    """
    if down := _down(fabric, switch, rack):
        return down
    up = _up(fabric, switch, rack, withdrawn)
    return up if len(up) < 2 else tuple(port for port in up for _ in range(copies))


def _choices_below(fabric: Fabric, switch: SwitchPlan) -> int:
    """Return the number of uplinks from which each T0 below this switch chooses. For a T0, return 1."""
    return 1 if switch.tier == "t0" else max(1, fabric.t1s_per_pod)


def _below(fabric: Fabric, switch: SwitchPlan, rack: int) -> SwitchPlan | None:
    """Return the next switch on the way down to a rack, or None."""
    if switch.tier == "t0":
        return None
    if switch.tier == "t1":
        t0 = fabric.t0(switch.plane, rack)
        return t0 if fabric.has_link(switch.name, t0.name) else None
    t1s = (fabric.switch(port.peer.node) for port in switch.ports)
    return next((t1 for t1 in t1s if _below(fabric, t1, rack)), None)


def _down(fabric: Fabric, switch: SwitchPlan, rack: int) -> tuple[int, ...]:
    """Return the port of a switch that leads down to a rack, or no port."""
    below = _below(fabric, switch, rack)
    return () if below is None else (switch.port_to(below.name).number,)


def _up(fabric: Fabric, switch: SwitchPlan, rack: int, withdrawn: AbstractSet[str]) -> tuple[int, ...]:
    """Return the uplinks of a switch that lead to a rack over links that are not withdrawn."""
    found = [
        switch.port_to(above.name).number
        for above in fabric.above(switch)
        if fabric.link(switch.name, above.name).name not in withdrawn
        and (_leads_down(fabric, above, rack, withdrawn) or _up(fabric, above, rack, withdrawn))
    ]
    return tuple(sorted(found))


def _leads_down(fabric: Fabric, switch: SwitchPlan, rack: int, withdrawn: AbstractSet[str]) -> bool:
    """Return True if a switch leads down to a rack over links that are not withdrawn."""
    if switch.tier == "t0":
        return switch.index == rack
    below = _below(fabric, switch, rack)
    return (
        below is not None
        and fabric.link(switch.name, below.name).name not in withdrawn
        and _leads_down(fabric, below, rack, withdrawn)
    )
