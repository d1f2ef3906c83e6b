"""The MRC endpoint: the methods by which programs use an MRC NIC.

The endpoint passes each arriving packet to the part that handles it. `mrclab.hosts.rdma.endpoint` explains
how a driver uses an endpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, cast

from mrclab.hosts.mrc import queue_pair
from mrclab.hosts.mrc.codec import ObjectBuilder, PacketBuilder, read_data, read_sack, read_stamp
from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.congestion import CongestionControl
from mrclab.hosts.mrc.connection import Connection, QpAttributes
from mrclab.hosts.mrc.evs.ev import Ev, HeadCache, PathPolicy
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.operations import Operations, WayBack
from mrclab.hosts.mrc.packets import (
    ControlPacket,
    DataPacket,
    MrcFlowCache,
    Packet,
    SackPacket,
    frame_options,
    with_room_for_outer,
)
from mrclab.hosts.mrc.port_status import PortStatus
from mrclab.hosts.mrc.queue_pair import EvSets, MrcQueuePair, PlaneCounters, QpCounters, Windows
from mrclab.hosts.mrc.received import ReceiveQueue
from mrclab.hosts.mrc.responder import Responder
from mrclab.hosts.mrc.sending.requester import Requester
from mrclab.hosts.mrc.wire import (
    ENDPOINT_QPN,
    FIRST_WRITE_OPCODE,
    LAST_WRITE_OPCODE,
    Aeth,
    EndpointOp,
    Nack,
    Opcode,
    Probe,
)
from mrclab.hosts.rdma.endpoint import BaseEndpoint, message_view
from mrclab.hosts.rdma.events import EvCounters, Event, QpError, Status
from mrclab.hosts.rdma.frames import (
    BTH_LEN,
    BTH_OFFSET,
    BTH_STRUCT,
    ICRC_LEN,
    PSN_MASK,
    Buffer,
    Flow,
    Outgoing,
    WireError,
)
from mrclab.hosts.rdma.paths import Path, PlanePaths, PortAddress, RemotePaths

LONGEST_MESSAGE: Final = (1 << 32) - 1
"""Largest length of a message, in bytes [SPEC §5.1]."""
_EXTENSION: Final = BTH_OFFSET + BTH_LEN
_SACK: Final = int(Opcode.SACK)
_NACK: Final = int(Opcode.NACK)
_PROBE: Final = int(Opcode.PROBE_REQUEST)
_ACK: Final = int(Opcode.ACKNOWLEDGE)
_REQUEST: Final = int(Opcode.ENDPOINT_REQUEST)
_RESPONSE: Final = int(Opcode.ENDPOINT_RESPONSE)


class Endpoint(BaseEndpoint):
    """One NIC with its ports (one per plane), memory regions and queue pairs."""

    def __init__(
        self,
        ports: Sequence[PortAddress],
        config: MrcConfig | None = None,
        rng: random.Random | None = None,
        congestion: Callable[[MrcConfig], CongestionControl] | None = None,
        path_policy: Callable[[random.Random], PathPolicy] | None = None,
        objects: bool = False,
        payloads: bool = False,
    ) -> None:
        """Make a NIC with these ports.

        `rng` is the only source of randomness; with a seeded `rng`, a run can be repeated. If `congestion` is
        given, it makes the congestion controls. `path_policy` makes the path policy of each queue pair.
        `mrclab.hosts.schemes.registry` finds these two functions by the names in `config`. With `objects`,
        packets are objects for a simulator; they carry data only with `payloads` (see `codec`).
        """
        self.config = config or MrcConfig()
        reading = self.config.reading
        options = frame_options(self.config)
        dscp = self.config.dscp
        srv6 = self.config.ev_mode == "srv6"
        trimmed = dscp.trimmed, dscp.trimmed_lasthop
        flows = MrcFlowCache(options, reading.udp_ports(), trimmed, needs_outer=srv6)
        super().__init__(ports, rng or random.Random(), flows, self.config.mtu_bytes)
        self._path_policy = path_policy
        self._windows = Windows(congestion)
        self._ev_sets = EvSets()
        self._builder = PacketBuilder(self.config, options)
        if objects:
            self._builder = ObjectBuilder(self.config, options, payloads=payloads)
        self.qps: dict[int, MrcQueuePair] = {}
        self._last: MrcQueuePair | None = None
        """The queue pair of the last packet. The next packet is probably for the same queue pair."""
        self._heads = HeadCache()
        self._operations = Operations(self.config, self._builder, self.rng, self._emit, self.drops)
        self._port_status = PortStatus(self.config, self.addresses, self._operations, self._emit, self._wake)
        self._keeps_reverse = self.config.reverse_evs == "set"
        self._at_gap = self.config.sack_at_gap
        self._timestamps = self.config.timestamps

    # Queue pairs

    def create_qp(self, receives: bool | None = None, refill: Callable[[], None] | None = None) -> int:
        """Create a queue pair and return its number.

        `receives`: if True, a WRITE with immediate needs a receive posted by `post_recv`. None: the option
        `posted_receives` decides. `refill` is called if no receive is left, and may post more receives.
        """
        qpn = self.draw_qpn(self.qps)
        psn = self.rng.getrandbits(24)
        requester = Requester(qpn, psn, self.config, self._builder, self._emit, self.reports.add_later)
        responder = Responder(
            qpn,
            self.config,
            self._builder,
            self.memory,
            self._emit,
            lambda: self.scheduler.answer(qp),
            ReceiveQueue(
                required=self.config.posted_receives if receives is None else receives, refill=refill
            ),
        )
        qp = MrcQueuePair(qpn, psn, requester, responder)
        self.qps[qpn] = qp
        return qpn

    def local_attributes(self, qpn: int) -> QpAttributes:
        """Return the attributes of this QP that the peer needs to connect to it."""
        return QpAttributes.of(self.config, qpn, self.qps[qpn].psn, self.ports)

    def connect(
        self,
        qpn: int,
        remote: QpAttributes,
        paths: RemotePaths,
        config: MrcConfig | None = None,
        ev_profile: int | None = None,
    ) -> None:
        """Connect a QP to the peer's QP, over these paths. Both ends must connect before data flows.

        `config` replaces the endpoint's options for this QP. Only QPs of one `ev_profile` may share EVs.
        """
        config, qp = config or self.config, self.qps[qpn]
        if qp.connected:
            raise ValueError(f"QP {qpn:#x} is connected already")
        self.check_peer(remote.udp_port, self.config.reading.udp_ports(), paths)
        if not self.config.ev_in_flow_label and any(p.ev >> 16 for q in paths.planes for p in q.paths):
            raise ValueError("EVs have 16 bits where the flow label carries none of them")
        peers = frozenset(port.address for port in remote.ports)
        policy = None if self._path_policy is None else self._path_policy(self.rng)
        evs = self._ev_sets.of(peers, config, ev_profile)
        if evs is None:
            evs = EvSet(qpn, paths, config, self.rng, self._emit, self._heads, policy, self.reports.add_later)
            self._ev_sets.add(peers, evs, ev_profile)
        controller, sharing = self._windows.of(peers, config)
        qp.connect(remote, peers, Connection.agree(self.config, remote), evs, controller, sharing)
        self._port_status.apply(self.now_ns, qp)

    def fail_qp(self, qpn: int, status: Status, detail: str, now_ns: int) -> None:
        """Put a connected QP into its error state: its requests complete with status FLUSHED."""
        self._emit(QpError(now_ns, qpn, status, detail))

    def destroy_qp(self, qpn: int) -> None:
        """Remove a QP; frames for it are dropped from now on."""
        qp = self.qps.pop(qpn)
        self._last = None
        if qp.connected:
            self._ev_sets.leave(qp.evs)
        self.scheduler.forget(qp)
        self._port_status.forget(qp, self.qps.values())
        qp.requester.withdraw()
        self._release(qp)

    def post_write(
        self,
        qpn: int,
        wr_id: int,
        data: bytes | bytearray | memoryview,
        remote_va: int,
        rkey: int,
        imm: int | None = None,
        now_ns: int | None = None,
    ) -> None:
        """Queue a WRITE, or with `imm` a WRITE_WITH_IMM. `data` must not change until the write completes.

        If the QP is in error, the request fails at once, and `now_ns` is the time of its completion.
        """
        qp = self.qps[qpn]
        if not qp.connected:
            raise ValueError(f"QP {qpn:#x} is not connected")
        least = 0 if self.config.reading.zero_length_messages else 1
        view = message_view(data, imm, least, LONGEST_MESSAGE, remote_va, rkey)
        qp.requester.post(self.now_ns if now_ns is None else now_ns, wr_id, view, remote_va, rkey, imm)
        self.scheduler.wake(self.now_ns, qp)

    def post_recv(self, qpn: int, wr_id: int, now_ns: int | None = None) -> None:
        """Post a receive for one WRITE with immediate. If the queue pair is in error, the receive is FLUSHED.

        Raise ValueError if the queue pair was created without receives.
        """
        responder = self.qps[qpn].responder
        if not responder.receives.required:
            raise ValueError(f"QP {qpn:#x} was created without receives")
        responder.receives.post(wr_id)
        if responder.error:
            responder.flush_receives(self.now_ns if now_ns is None else now_ns)

    # Requests of an administrator or a controller

    def deny(self, evs: Iterable[int], now_ns: int, qpn: int | None = None) -> None:
        """Put EVs on the denylist of one QP, or of all QPs if `qpn` is None [P1 §2.4]."""
        for ev_set, ev in self._find(evs, qpn):
            ev_set.deny(now_ns, ev)

    def allow(self, evs: Iterable[int], now_ns: int, qpn: int | None = None) -> None:
        """Remove EVs from the denylist."""
        for ev_set, ev in self._find(evs, qpn):
            ev_set.allow(now_ns, ev)

    def _find(self, evs: Iterable[int], qpn: int | None) -> list[tuple[EvSet, Ev]]:
        qps = self.qps.values() if qpn is None else [self.qps[qpn]]
        return [
            (qp.evs, qp.evs.by_value[v]) for v in evs for qp in qps if qp.connected and v in qp.evs.by_value
        ]

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Record that a port went down or came up, and announce it to the peers; see `port_status`."""
        if self._port_status.is_up(port) != up:
            self.port_states[port].listens = up
            self._port_status.set_state(now_ns, port, up, self.qps.values())

    def port_mask(self) -> int:
        """Return the mask of ports that are up, as in a PORT_STATUS_UPDATE."""
        return self._port_status.mask()

    def probe_ev(self, qpn: int, ev: int, now_ns: int, timeout_ns: int | None = None) -> int:
        """Send the peer a probe over this EV; see `Operations.probe_ev`."""
        return self._operations.probe_ev(now_ns, self.qps[qpn], ev, timeout_ns)

    def request_endpoint(
        self,
        op: EndpointOp,
        plane: PlanePaths,
        path: Path,
        now_ns: int,
        dscp: int | None = None,
        port_status_mask: int | None = None,
    ) -> int:
        """Send a request to any NIC [SPEC §6.5]; see `Operations.request`. No queue pair is involved."""
        return self._operations.request(now_ns, op, plane, path, dscp, port_status_mask)

    def answer_strangers(self, way_back: WayBack | None) -> None:
        """Let `way_back` choose the paths of answers to NICs without a queue pair.

        If `way_back` is None, the endpoint does not answer these NICs.
        """
        self._operations.way_back = way_back

    def set_mpr(self, qpn: int, mpr: int) -> None:
        """Announce a new receive window for a QP. Both ends must have agreed on dynamic MPR."""
        self.qps[qpn].responder.set_mpr(mpr)

    def set_base_rtt(self, qpn: int, base_rtt_ns: int) -> None:
        """Give a QP's congestion control the RTT of the idle network, as measured with EV probes."""
        if base_rtt_ns < 1:
            raise ValueError(f"an RTT is positive, not {base_rtt_ns}")
        self.qps[qpn].requester.congestion.calibrate(base_rtt_ns)

    def set_rate_cap(self, rate_bps: int) -> None:
        """Set the rate cap of all queue pairs, in bit/s. Raise ValueError if a queue pair has no rate cap."""
        for qp in self.qps.values():
            qp.requester.congestion.set_rate_cap(rate_bps)

    # Arriving frames and packets

    def take(self, port: int, view: memoryview, flow: Flow) -> None:
        """Handle a frame whose headers before the BTH and whose ICRC are correct."""
        if flow.bth != BTH_OFFSET:
            view = with_room_for_outer(view)
        self.port_states[port].received += 1
        opcode = view[BTH_OFFSET]
        if not FIRST_WRITE_OPCODE <= opcode <= LAST_WRITE_OPCODE:
            self._take_control(port, view, flow, opcode)
            return
        packet = read_data(view, self._timestamps)
        if packet is None:
            self.drops.malformed += 1
            return
        packet.flow = flow
        packet.ce = flow.ce
        self._on_data(port, packet)

    def receive_packet(self, port: int, packet: Packet, now_ns: int) -> None:
        """Handle a packet that arrived on `port` as an object; see `codec`."""
        self.now_ns = now_ns
        flow = packet.flow
        state = self.port_states[port]
        if not state.listens or state.address != flow.dst:
            self.drops.wrong_port += 1
        elif isinstance(packet, DataPacket):
            if packet.cut_dscp < 0:
                state.received += 1
                self._on_data(port, packet)
            else:
                self._on_trimmed(port, flow, packet.cut_dscp, packet.qpn, packet.flags_psn, packet.stamp())
        elif isinstance(packet, SackPacket):
            state.received += 1
            self._on_sack(packet, flow)
        elif isinstance(packet, ControlPacket):
            state.received += 1
            opcode, psn, qpn = packet.opcode, packet.psn, packet.qpn
            self._on_control(port, flow, packet.ce, opcode, qpn, psn, packet.extension, 0)

    def packets_to_send(
        self, now_ns: int, free_ports: Collection[int] | None = None, limit: int = 32
    ) -> list[tuple[int, Packet]]:
        """Return packets to send, as objects (see `codec`). The arguments are those of `frames_to_send`."""
        return cast("list[tuple[int, Packet]]", self.frames_to_send(now_ns, free_ports, limit))

    def _on_data(self, port: int, packet: DataPacket) -> None:
        qp = self._connected_to(packet.qpn, packet.flow)
        if qp is None:
            return
        now_ns = self.now_ns
        qp.requester.hear(now_ns)
        responder = qp.responder
        whole = not responder.bitmap.bits
        responder.on_data(now_ns, packet, port)
        if whole and self._at_gap and responder.bitmap.bits:
            self.repairs_wait = True  # A new gap was found: send its SACK before more frames are read.
        if self._keeps_reverse:
            self._operations.refresh_reverse(now_ns, qp)

    def _connected_to(self, qpn: int, flow: Flow) -> MrcQueuePair | None:
        """Return the QP that a frame of this flow is for. If there is none, count a drop and return None."""
        qp = self._last
        if qp is None or qp.qpn != qpn:
            qp = self.qps.get(qpn)
        if qp is None or not qp.connected:
            self.drops.unknown_qp += 1
            return None
        if flow.taken_from is not qp.peers:
            if flow.src not in qp.peers:
                self.drops.wrong_source += 1
                return None
            flow.taken_from = qp.peers
        self._last = qp
        return qp

    def take_trimmed(self, port: int, view: memoryview, flow: Flow) -> None:
        """Handle a trimmed frame, which has lost its payload: the responder asks for the packet again."""
        if flow.bth != BTH_OFFSET:
            view = with_room_for_outer(view)
        opcode, _, _, qpn, last = BTH_STRUCT.unpack_from(view, BTH_OFFSET)
        if not FIRST_WRITE_OPCODE <= opcode <= LAST_WRITE_OPCODE:
            self.drops.unknown_opcode += 1
            return
        self._on_trimmed(port, flow, flow.dscp, qpn & 0xFFFFFF, last, read_stamp(view, last))

    def _on_trimmed(
        self, port: int, flow: Flow, dscp: int, qpn: int, flags_psn: int, stamp: int | None
    ) -> None:
        qp = self._connected_to(qpn, flow)
        if qp is None:
            return
        self.port_states[port].received += 1
        qp.requester.hear(self.now_ns)
        last_hop = dscp == self.config.dscp.trimmed_lasthop
        qp.responder.on_trimmed(self.now_ns, flags_psn & PSN_MASK, flow.ev, port, last_hop, stamp)

    def _take_control(self, port: int, view: memoryview, flow: Flow, opcode: int) -> None:
        if opcode == _SACK:
            sack = read_sack(view)
            if sack is None:
                self.drops.malformed += 1
            else:
                self._on_sack(sack, flow)
            return
        _, _, _, qpn, last = BTH_STRUCT.unpack_from(view, BTH_OFFSET)
        body = view[:-ICRC_LEN]
        self._on_control(port, flow, flow.ce, opcode, qpn & 0xFFFFFF, last & PSN_MASK, body, _EXTENSION)

    def _on_sack(self, sack: SackPacket, flow: Flow) -> None:
        qp = self._connected_to(sack.qpn, flow)
        if qp is None:
            return
        now_ns = self.now_ns
        requester = qp.requester
        requester.hear(now_ns)
        lost = requester.losses.lost
        requester.on_sack(now_ns, sack)
        if requester.losses.lost != lost:
            self.repairs_wait = True
        self.scheduler.wake(now_ns, qp)

    def _on_control(
        self, port: int, flow: Flow, ce: bool, opcode: int, qpn: int, psn: int, body: Buffer, start: int
    ) -> None:
        """Handle a control packet. Its extension header is in `body` from `start` on."""
        if opcode in (_REQUEST, _RESPONSE):
            if qpn == ENDPOINT_QPN:
                answers = opcode == _RESPONSE
                peers = [q for q in self.qps.values() if q.connected and flow.src in q.peers]
                self._operations.take(
                    self.now_ns, port, flow, psn & 0xFFFF, body, start, peers, is_response=answers
                )
            else:
                self.drops.unknown_qp += 1
            return
        qp = self._connected_to(qpn, flow)
        if qp is None:
            return
        now_ns = self.now_ns
        requester = qp.requester
        try:
            if opcode == _NACK:
                nack = Nack.unpack(body, start)
                requester.hear(now_ns)
                requester.on_nack(now_ns, nack)
            elif opcode == _PROBE:
                requester.hear(now_ns)
                qp.responder.on_probe(now_ns, Probe.unpack(body, start), flow.ev, port, ce)
            elif opcode == _ACK:
                aeth = Aeth.unpack(body, start)
                requester.hear(now_ns)
                requester.on_transport_ack(now_ns, psn, aeth.syndrome)
            else:
                self.drops.unknown_opcode += 1
                return
        except WireError:
            self.drops.malformed += 1
            return
        self.scheduler.wake(now_ns, qp)

    # Endpoint operations: they belong to no queue pair

    def emit_operations(self, out: list[Outgoing], limit: int, free_ports: Collection[int] | None) -> bool:
        """Append operations' frames until `out` has `limit` frames. Return True if some are left."""
        if self._operations.waiting:
            self._port_status.announce_new(self.now_ns)
            self._operations.emit_frames(self.now_ns, out, limit, free_ports)
        return self._operations.waiting

    def operations_due_ns(self) -> int | None:
        """Return when the oldest endpoint request times out."""
        return self._operations.due_ns()

    def handle_operations(self, now_ns: int) -> None:
        """Drop the endpoint requests that have timed out, and announce the port states again if needed."""
        self._port_status.expire(now_ns, self.qps.values())

    def _wake(self, qp: MrcQueuePair) -> None:
        self.scheduler.wake(self.now_ns, qp)

    def _release(self, qp: MrcQueuePair) -> None:
        if qp.sharing is not None:
            self.scheduler.release(self.now_ns, qp.sharing)

    def _emit(self, event: Event) -> None:
        self.reports.add(event)
        if isinstance(event, QpError):
            qp = self.qps.get(event.qpn)
            if qp is not None:
                # If one half of a queue pair fails, the other half fails, too.
                qp.responder.error = True
                qp.requester.flush(event.t_ns, Status.FLUSHED)
                qp.responder.flush_receives(event.t_ns)
                self._release(qp)

    # Counters

    def bytes_placed(self, qpn: int) -> int:
        """Return how many payload bytes a QP has written into memory."""
        return self.qps[qpn].responder.bytes_placed

    def qp_counters(self, qpn: int) -> QpCounters:
        """Return a snapshot of a QP's counters."""
        return queue_pair.qp_counters(self.qps[qpn], self.now_ns)

    def ev_counters(self, qpn: int) -> list[EvCounters]:
        """Return the state and counters of each EV of a QP."""
        return queue_pair.ev_counters(self.qps[qpn].evs)

    def plane_counters(self, qpn: int) -> list[PlaneCounters]:
        """Return the state and counters of each plane of a QP."""
        return queue_pair.plane_counters(self.qps[qpn].evs)
