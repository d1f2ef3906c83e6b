"""One NIC: ports, memory and queue pairs behind five verbs, without I/O, clock or randomness of its own.

The driver, whoever it is (sockets, a simulated network, a discrete-event simulator), does this round after
round:

    for each frame that came in:    endpoint.receive(port, frame, now_ns)
    when next_timer() has passed:   endpoint.handle_timer(now_ns)
    until it returns nothing:       endpoint.frames_to_send(now_ns)
    for event in endpoint.events(): tell the application

and sleeps until a frame arrives or `next_timer()`. Read what has arrived before handling timers: a timer that
fires over unread acknowledgements would see losses that are none.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from hosts.mrc.config import MrcConfig
from hosts.mrc.congestion import CongestionControl, make_controller
from hosts.mrc.connection import QpAttributes
from hosts.mrc.ev import Ev, EvSet, HeadCache
from hosts.mrc.events import EvProbed, PortStatusUnanswered
from hosts.mrc.frames import FrameOptions, MrcFlowCache
from hosts.mrc.operations import Purpose, Request, Requests
from hosts.mrc.requester import Requester
from hosts.mrc.responder import Responder
from hosts.mrc.wire import (
    DATA_STRUCT,
    ENDPOINT_QPN,
    FIRST_WRITE_OPCODE,
    LAST_WRITE_OPCODE,
    NETH_STRUCT,
    SETH_STRUCT,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    NackReason,
    Opcode,
    timestamp,
)
from hosts.rdma.counters import Drops, EvCounters, EvState
from hosts.rdma.events import Event, QpError, Status
from hosts.rdma.frames import FLOW_START, Flow, Frame, traffic_class
from hosts.rdma.headers import BTH_LEN, BTH_OFFSET, BTH_STRUCT, ICRC_LEN, IMM_STRUCT, UDP_LEN, WireError
from hosts.rdma.icrc import RESIDUE, crc32
from hosts.rdma.memory import Access, MemoryRegion, MemoryTable
from hosts.rdma.paths import PortAddress, RemotePaths
from hosts.rdma.psn import PSN_MASK
from hosts.rdma.reports import Completion, Reports, message_view

_MIN_FRAME: Final = BTH_OFFSET + BTH_LEN + ICRC_LEN
_SACK_END: Final = BTH_OFFSET + BTH_LEN + SETH_STRUCT.size
_NACK_END: Final = BTH_OFFSET + BTH_LEN + NETH_STRUCT.size
_DATA_END: Final = BTH_OFFSET + DATA_STRUCT.size
_EXTENSION: Final = BTH_OFFSET + BTH_LEN
_RESERVED_BYTE: Final = BTH_OFFSET + 4
_SACK: Final = int(Opcode.SACK)
_NACK: Final = int(Opcode.NACK)
_PROBE: Final = int(Opcode.PROBE_REQUEST)
_ACK: Final = int(Opcode.ACKNOWLEDGE)
_ENDPOINT_OPS: Final = (int(Opcode.ENDPOINT_REQUEST), int(Opcode.ENDPOINT_RESPONSE))
_TURN: Final = 16
"""Frames a queue pair hands out before the next one has its turn, in one call or in several, since each turn
costs the look at a queue pair that has left the caches, and an answer of its own.
"""
_SHARED_TURN: Final = 8
"""The same where queue pairs share a window, so that none takes a narrow one whole."""


@dataclass(frozen=True, slots=True)
class PlaneCounters:
    """A snapshot of one plane of a QP: its state, and its EVs' counters added up."""

    plane: int
    local_up: bool
    peer_up: bool
    active: int
    spare: int
    assumed_bad: int
    denied: int
    sent: int
    acked: int
    lost: int
    ecn_marked: int
    trimmed: int
    retired: int


@dataclass(frozen=True, slots=True)
class QpCounters:
    """A snapshot of one QP. Packets unless the name says otherwise."""

    qpn: int
    sent: int
    retransmitted: int
    lost: int
    spurious: int
    bytes_acked: int
    sacks_received: int
    nacks_received: int
    placed: int
    bytes_placed: int
    duplicates: int
    out_of_window: int
    ce_received: int
    trims_received: int
    sacks_sent: int
    nacks_sent: int
    srtt_ns: int
    rttvar_ns: int
    guard_ns: int
    inflight_bytes: int
    cwnd_bytes: int


class QueuePair:
    """A requester and a responder that share the EVs towards one peer."""

    __slots__ = (
        "connected",
        "evs",
        "parked",
        "peers",
        "psn",
        "qpn",
        "queued",
        "remote",
        "requester",
        "responder",
        "timed_ns",
        "touched",
    )

    def __init__(self, qpn: int, psn: int, requester: Requester, responder: Responder) -> None:
        self.qpn = qpn
        self.psn = psn
        self.requester = requester
        self.responder = responder
        self.connected = False
        self.queued = False
        """In the endpoint's list of QPs that may have something to send."""
        self.parked = False
        """In a shared window's list of QPs that wait for room; it may be queued as well, for its probes."""
        self.timed_ns = -1
        """Time of this QP's valid entry among the endpoint's timers; -1 for none."""
        self.touched = False
        """Something happened since the entry was made: its timer may be due earlier."""
        self.evs: EvSet
        self.remote: QpAttributes
        self.peers: frozenset[bytes] = frozenset()


class Endpoint:
    """One NIC with its ports (one per plane), memory regions and queue pairs."""

    def __init__(
        self,
        ports: Sequence[PortAddress],
        config: MrcConfig | None = None,
        rng: random.Random | None = None,
        congestion: Callable[[MrcConfig], CongestionControl] | None = None,
    ) -> None:
        """Make a NIC with these ports.

        `rng` is the only source of randomness: give a seeded one to replay a run. `congestion` makes a
        controller; by default the one `config.congestion` names.
        """
        self.config = config or MrcConfig()
        self.ports = tuple(ports)
        self._rng = rng or random.Random()
        self._congestion = congestion or make_controller
        self._controllers: dict[frozenset[bytes], CongestionControl] = {}
        """Those that all QPs to a destination share."""
        self._options = FrameOptions(
            self.config.udp_port,
            self.config.hop_limit,
            self.config.ev_low_half_in_udp,
            self.config.ev_in_flow_label,
        )
        self._trimmed = (self.config.dscp.trimmed, self.config.dscp.trimmed_lasthop)
        self._cache = MrcFlowCache(self._options, self._trimmed)
        self._flows = self._cache.flows
        self._addresses: dict[int, bytes] = {port.port: port.address for port in self.ports}
        self._port_up: dict[int, bool] = dict.fromkeys(self._addresses, True)
        self._listening: dict[int, bytes] = dict(self._addresses)
        self.memory = MemoryTable(self._rng)
        self.qps: dict[int, QueuePair] = {}
        self._next_qpn = 0x10 + self._rng.getrandbits(12)
        self._answering: deque[QueuePair] = deque()
        self._sending: deque[QueuePair] = deque()
        self._turn_left = 0
        """Frames the first of them may hand out before it goes to the end; 0 for a whole turn."""
        self._touched: list[QueuePair] = []
        self._timers: list[tuple[int, int, QueuePair]] = []
        """A heap; entries other than a QP's `timed_ns` are stale, and no QP is due before its entry."""
        self._timer_count = 0
        self._other: deque[Frame] = deque()
        self._heads: HeadCache = {}
        self._requests = Requests(self.config.endpoint_timeout_ns)
        self._reverse_due: dict[frozenset[bytes], int] = {}
        """When to ask next after an EV for answers, by peer."""
        self._keeps_reverse = self.config.reverse_evs == "set"
        self._reports = Reports()
        self._now_ns = 0
        self.drops = Drops()
        self.frames_received: dict[int, int] = dict.fromkeys(self._addresses, 0)
        self.frames_sent: dict[int, int] = dict.fromkeys(self._addresses, 0)

    # Verbs

    def register_memory(
        self, buffer: bytearray | memoryview, access: Access = Access.REMOTE_WRITE
    ) -> MemoryRegion:
        """Let peers write into `buffer`; tell them the region's `address` and `rkey`."""
        return self.memory.register(buffer, access)

    def deregister_memory(self, region: MemoryRegion) -> None:
        """Close a region; a write that still arrives for it is an access error."""
        self.memory.deregister(region)

    def create_qp(self) -> int:
        """Create a queue pair and return its number."""
        qpn = self._next_qpn
        self._next_qpn = qpn + 1 & 0xFFFFFF or 0x10
        psn = self._rng.getrandbits(24)
        requester = Requester(qpn, psn, self.config, self._options, self._emit)
        responder = Responder(
            qpn, self.config, self._options, self.memory, self._emit, lambda: self._answering.append(qp)
        )
        qp = QueuePair(qpn, psn, requester, responder)
        self.qps[qpn] = qp
        return qpn

    def local_attributes(self, qpn: int) -> QpAttributes:
        """Return what the peer needs to know of this QP to connect to it."""
        qp = self.qps[qpn]
        config = self.config
        return QpAttributes(
            qpn,
            qp.psn,
            config.mtu_bytes,
            config.mpr,
            config.udp_port,
            self.ports,
            config.trim,
            config.max_wimm,
            config.dynamic_mpr,
            config.transport_ack,
        )

    def connect(self, qpn: int, remote: QpAttributes, paths: RemotePaths) -> None:
        """Connect a QP to the peer's one, over these paths. Both ends must do so before data flows."""
        qp = self.qps[qpn]
        if qp.connected:
            raise ValueError(f"QP {qpn:#x} is connected already")
        if remote.udp_port != self.config.udp_port:
            raise ValueError(f"the peer uses UDP port {remote.udp_port}, we use {self.config.udp_port}")
        for plane in paths.planes:
            if plane.port not in self._addresses:
                raise ValueError(f"paths name port {plane.port}, which this NIC has not got")
            if not self.config.ev_in_flow_label and any(path.ev >> 16 for path in plane.paths):
                raise ValueError("EVs have 16 bits where the flow label carries none of them")
        qp.remote = remote
        qp.peers = frozenset(port.address for port in remote.ports)
        qp.evs = EvSet(qpn, paths, self.config, self._rng, self._emit, self._heads)
        for port, up in self._port_up.items():
            if not up:
                qp.evs.set_plane(self._now_ns, port, False, remote=False)
        controller = self._controllers.get(qp.peers)
        if controller is None:
            controller = self._congestion(self.config)
            if controller.shared:
                self._controllers[qp.peers] = controller
        dynamic_mpr = self.config.dynamic_mpr and remote.dynamic_mpr
        transport_ack = self.config.transport_ack and remote.transport_ack
        qp.requester.connect(
            remote.qpn,
            remote.mtu_bytes,
            remote.mpr,
            remote.trim_nack,
            qp.evs,
            controller,
            remote.max_wimm,
            dynamic_mpr,
            transport_ack,
        )
        qp.responder.connect(remote.qpn, remote.psn, qp.evs, dynamic_mpr, transport_ack)
        qp.connected = True

    def destroy_qp(self, qpn: int) -> None:
        """Forget a QP; frames for it are dropped from now on."""
        qp = self.qps.pop(qpn)
        controller = qp.requester.congestion
        for waiting in (self._answering, self._sending, controller.waiting):
            while qp in waiting:
                waiting.remove(qp)
        qp.timed_ns = -1
        qp.connected = False
        qp.requester.withdraw()
        self._release(controller)

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
        """Queue an RDMA WRITE, with `imm` a WRITE_WITH_IMM. `data` must not change until it completes.

        `now_ns` only dates the completion of a request that fails at once, on a QP in error.
        """
        qp = self.qps[qpn]
        if not qp.connected:
            raise ValueError(f"QP {qpn:#x} is not connected")
        view = message_view(data, imm)
        qp.requester.post(self._now_ns if now_ns is None else now_ns, wr_id, view, remote_va, rkey, imm)
        self._wake(qp)

    def poll_cq(self, limit: int = 64) -> list[Completion]:
        """Take up to `limit` completions, of all QPs, in the order they came about."""
        return self._reports.poll(limit)

    def next_event(self) -> Event | None:
        """Take the oldest event, completions among them; None when there is none."""
        return self._reports.next_event()

    def events(self) -> Iterator[Event]:
        """Take all events, completions among them, oldest first. Each is handed out once, here or by
        `poll_cq`.
        """
        return self._reports.drain()

    # Administration

    def deny(self, evs: Iterable[int], now_ns: int, qpn: int | None = None) -> None:
        """Put EVs on the denylist, of one QP or of all [P1 §2.4]."""
        for ev_set, ev in self._find(evs, qpn):
            ev_set.deny(now_ns, ev)

    def allow(self, evs: Iterable[int], now_ns: int, qpn: int | None = None) -> None:
        """Take EVs off the denylist."""
        for ev_set, ev in self._find(evs, qpn):
            ev_set.allow(now_ns, ev)

    def _find(self, evs: Iterable[int], qpn: int | None) -> list[tuple[EvSet, Ev]]:
        qps = self.qps.values() if qpn is None else [self.qps[qpn]]
        return [
            (qp.evs, qp.evs.by_value[v]) for v in evs for qp in qps if qp.connected and v in qp.evs.by_value
        ]

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Tell the NIC that one of its ports went down or came up.

        All EVs of that plane leave the rotation at once, what is in flight there goes again on other planes,
        and the peers are told with a PORT_STATUS_UPDATE so that they stop sending to it [P1 §3, SPEC §7.4.8].
        """
        if self._port_up[port] == up:
            return
        self._port_up[port] = up
        if up:
            self._listening[port] = self._addresses[port]
        else:
            del self._listening[port]
        if not any(self._port_up.values()) and self.config.all_ports_down == "error":
            for qp in self.qps.values():
                if qp.connected:
                    qp.requester.fail(now_ns, Status.RETRY_EXCEEDED, "all ports are down", None)
        told: set[frozenset[bytes]] = set()
        for qp in self.qps.values():
            if not qp.connected:
                continue
            qp.evs.set_plane(now_ns, port, up, remote=False)
            if not up:
                qp.requester.on_port_down(now_ns, port)
            self._wake(qp)
            if qp.peers not in told:
                told.add(qp.peers)
                self._announce_ports(qp, now_ns)

    def port_mask(self) -> int:
        """Return the mask of ports that are up, as PORT_STATUS_UPDATE carries it."""
        return sum(1 << port for port, up in self._port_up.items() if up)

    def _announce_ports(self, qp: QueuePair, now_ns: int, attempt: int = 1) -> None:
        # One copy per plane: requests are never repeated, and any one plane may be the broken one.
        self._requests.forget_updates(qp.peers)
        for plane in qp.evs.planes:
            candidates = plane.candidates() if plane.up else []
            if candidates:
                ev = self._rng.choice(candidates)
                self._ask(EndpointOp.PORT_STATUS_UPDATE, Request(Purpose.PORTS, qp, ev, now_ns, attempt))

    def _ask(self, op: EndpointOp, request: Request) -> int:
        number = self._requests.add(request)
        body = EndpointRequest(op, self.port_mask(), timestamp(request.sent_ns)).pack()
        self._send_other(request.ev, Opcode.ENDPOINT_REQUEST, number, body)
        return number

    def probe_ev(self, qpn: int, ev: int, now_ns: int) -> int:
        """Ask the peer for an answer over this EV [SPEC §7.4.7]; return the id that `EvProbed` will carry."""
        qp = self.qps[qpn]
        return self._ask(EndpointOp.EV_PROBE, Request(Purpose.USER, qp, qp.evs.by_value[ev], now_ns, 1))

    def _refresh_reverse(self, qp: QueuePair, now_ns: int) -> None:
        """Keep an EV for answers fresh: by a probe of a random one, or by our own data where there is any."""
        requester = qp.requester
        wait = max(requester.rtt.floor_ns, self.config.reverse_probe_min_ns)
        self._reverse_due[qp.peers] = now_ns + wait
        if requester.idle:
            ev = qp.evs.pick_aside()
            if ev is not None:
                self._ask(EndpointOp.EV_PROBE, Request(Purpose.REVERSE, qp, ev, now_ns, 1))

    def _on_response(self, number: int, response: EndpointResponse, flow: Flow, now_ns: int) -> None:
        request = self._requests.answered(number)
        if request is None or flow.src not in request.qp.peers or not request.qp.connected:
            return
        purpose, qp, ev, sent_ns = request.purpose, request.qp, request.ev, request.sent_ns
        qp.evs.prove(now_ns, ev)
        if purpose is Purpose.PORTS:
            self._requests.forget_updates(qp.peers)
        elif purpose is Purpose.USER:
            rtt_ns = now_ns - sent_ns
            self._emit(EvProbed(now_ns, qp.qpn, number, ev.value, ev.port, rtt_ns, response.service_time_ns))

    def _expire(self, now_ns: int) -> None:
        again: dict[frozenset[bytes], Request] = {}
        for number, request in self._requests.expired(now_ns):
            purpose, qp, ev = request.purpose, request.qp, request.ev
            if not qp.connected:
                continue
            if purpose is Purpose.USER:
                self._emit(EvProbed(now_ns, qp.qpn, number, ev.value, ev.port, None, 0))
            elif purpose is Purpose.PORTS:
                again[qp.peers] = request
        for request in again.values():
            if request.attempt < self.config.port_status_attempts:
                self._announce_ports(request.qp, now_ns, request.attempt + 1)
            else:
                self._emit(PortStatusUnanswered(now_ns, request.qp.qpn, self.port_mask()))

    def set_mpr(self, qpn: int, mpr: int) -> None:
        """Announce another receive window for a QP, where dynamic MPR was agreed on."""
        self.qps[qpn].responder.set_mpr(mpr)

    def set_refusal(self, qpn: int, reason: NackReason | None) -> None:
        """Refuse new packets with this reason from now on, as a receiver short of it does; None ends that."""
        self.qps[qpn].responder.refusal = reason

    def set_receiver_penalty(self, qpn: int, penalty: int, *, restore: bool = False) -> None:
        """Ask the sender to narrow its window by penalty/128 per RTT, or to undo that [SPEC CC_STATE]."""
        if not 0 <= penalty <= 127:
            raise ValueError(f"the penalty has 7 bits, not {penalty}")
        responder = self.qps[qpn].responder
        responder.penalty, responder.restore = penalty, restore

    def set_base_rtt(self, qpn: int, base_rtt_ns: int) -> None:
        """Tell a QP's congestion control the RTT of the idle network, as EV probes measure it."""
        if base_rtt_ns < 1:
            raise ValueError(f"an RTT is positive, not {base_rtt_ns}")
        self.qps[qpn].requester.congestion.calibrate(base_rtt_ns)

    def set_rate_cap(self, rate_bps: int) -> None:
        """Set the rate cap of all queue pairs, in bit/s. Raise ValueError if their control has none."""
        for qp in self.qps.values():
            qp.requester.congestion.set_rate_cap(rate_bps)

    def _send_other(self, ev: Ev, opcode: Opcode, request_id: int, extension: bytes) -> None:
        middle = BTH_STRUCT.pack(int(opcode), 0, self.config.pkey, ENDPOINT_QPN, request_id) + extension
        tclass = traffic_class(self.config.dscp.control, ecn_capable=False)
        head, crc = ev.head(self._options, tclass, UDP_LEN + len(middle) + ICRC_LEN)
        self._other.append((ev.port, b"".join((head, middle, crc32(middle, crc).to_bytes(4, "little")))))

    # The driver's side

    def receive(self, port: int, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Take in a whole Ethernet frame that came in on `port`. The core keeps no reference to it."""
        self._now_ns = now_ns
        if len(frame) < _MIN_FRAME:
            self.drops.too_short += 1
            return
        key = frame[FLOW_START:BTH_OFFSET]
        if not isinstance(key, bytes):
            key = bytes(key)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._cache.check(key)
            if flow is None:
                self.drops.not_mrc += 1
                return
        if self._listening.get(port) != flow.dst:
            self.drops.wrong_port += 1
            return
        if flow.dscp in self._trimmed:
            self._receive_trimmed(port, frame, now_ns, flow)
            return
        view = frame if isinstance(frame, memoryview) else memoryview(frame)
        size = flow.frame_length
        if len(frame) != size:
            if len(frame) < size or size < _MIN_FRAME:
                self.drops.bad_length += 1
                return
            view = view[:size]
        if crc32(view[BTH_OFFSET:], flow.crc) != RESIDUE and not self._odd_reserved_byte(view, flow):
            self.drops.bad_icrc += 1
            return
        self.frames_received[port] += 1
        opcode = view[BTH_OFFSET]
        if FIRST_WRITE_OPCODE <= opcode <= LAST_WRITE_OPCODE:
            if size - ICRC_LEN < _DATA_END:
                self.drops.malformed += 1
                return
            data = DATA_STRUCT.unpack_from(view, BTH_OFFSET)
            qp = self.qps.get(data[3] & 0xFFFFFF)
            if qp is None or not qp.connected:
                self.drops.unknown_qp += 1
            elif flow.src not in qp.peers:
                self.drops.wrong_source += 1
            else:
                qp.requester.heard_ns = now_ns
                qp.responder.on_data(now_ns, view, size - ICRC_LEN, flow, port, data)
                if self._keeps_reverse and now_ns >= self._reverse_due.get(qp.peers, 0):
                    self._refresh_reverse(qp, now_ns)
            return
        self._receive_control(port, view, now_ns, flow, opcode)

    def _odd_reserved_byte(self, view: memoryview, flow: Flow) -> bool:
        """Whether the ICRC is right after all: only the BTH's reserved byte, which does not count, is not
        zero.
        """
        if view[_RESERVED_BYTE] == 0:
            return False
        copy = bytearray(view[BTH_OFFSET:])
        copy[4] = 0
        return crc32(copy, flow.crc) == RESIDUE

    def _receive_trimmed(
        self, port: int, frame: bytes | bytearray | memoryview, now_ns: int, flow: Flow
    ) -> None:
        # Neither lengths nor ICRC hold after trimming; a NACK is all that can come of it.
        _, _, _, qpn, last = BTH_STRUCT.unpack_from(frame, BTH_OFFSET)
        qp = self.qps.get(qpn & 0xFFFFFF)
        if not FIRST_WRITE_OPCODE <= frame[BTH_OFFSET] <= LAST_WRITE_OPCODE:
            self.drops.unknown_opcode += 1
        elif qp is None or not qp.connected:
            self.drops.unknown_qp += 1
        elif flow.src not in qp.peers:
            self.drops.wrong_source += 1
        else:
            self.frames_received[port] += 1
            qp.requester.heard_ns = now_ns
            last_hop = flow.dscp == self.config.dscp.trimmed_lasthop
            qp.responder.on_trimmed(last & PSN_MASK, flow.ev, port, last_hop)

    def _receive_control(self, port: int, view: memoryview, now_ns: int, flow: Flow, opcode: int) -> None:
        _, _, _, qpn, last = BTH_STRUCT.unpack_from(view, BTH_OFFSET)
        qpn &= 0xFFFFFF
        if opcode in _ENDPOINT_OPS:
            if qpn == ENDPOINT_QPN:
                self._receive_endpoint_op(port, view, now_ns, flow, opcode, last & 0xFFFF)
            else:
                self.drops.unknown_qp += 1
            return
        qp = self.qps.get(qpn)
        if qp is None or not qp.connected:
            self.drops.unknown_qp += 1
            return
        if flow.src not in qp.peers:
            self.drops.wrong_source += 1
            return
        end = len(view) - ICRC_LEN
        if opcode == _SACK:
            if end < _SACK_END:
                self.drops.malformed += 1
                return
            qp.requester.heard_ns = now_ns
            qp.requester.on_sack(now_ns, SETH_STRUCT.unpack_from(view, _EXTENSION))
        elif opcode == _NACK:
            if end < _NACK_END:
                self.drops.malformed += 1
                return
            qp.requester.heard_ns = now_ns
            _, reason, _, entropy, _, _, psn, _, _, _ = NETH_STRUCT.unpack_from(view, _EXTENSION)
            qp.requester.on_nack(now_ns, reason, entropy, psn & PSN_MASK)
        elif opcode == _PROBE:
            qp.requester.heard_ns = now_ns
            qp.responder.on_probe(view[:end], flow.ev, port, flow.ce)
        elif opcode == _ACK:
            if end < _EXTENSION + IMM_STRUCT.size:
                self.drops.malformed += 1
                return
            qp.requester.heard_ns = now_ns
            qp.requester.on_transport_ack(now_ns, last & PSN_MASK)
        else:
            self.drops.unknown_opcode += 1
            return
        self._wake(qp)

    def _receive_endpoint_op(
        self, port: int, view: memoryview, now_ns: int, flow: Flow, opcode: int, request_id: int
    ) -> None:
        peers = [qp for qp in self.qps.values() if qp.connected and flow.src in qp.peers]
        if not peers:
            self.drops.wrong_source += 1
            return
        body = view[: len(view) - ICRC_LEN]
        try:
            if opcode == Opcode.ENDPOINT_RESPONSE:
                self._on_response(request_id, EndpointResponse.unpack(body, _EXTENSION), flow, now_ns)
                return
            request = EndpointRequest.unpack(body, _EXTENSION)
        except WireError:
            self.drops.malformed += 1
            return
        if request.op == EndpointOp.PORT_STATUS_UPDATE:
            for qp in peers:
                for plane in qp.evs.planes:
                    up = bool(request.port_status_mask >> plane.port & 1)
                    if plane.peer_up != up:
                        qp.evs.set_plane(now_ns, plane.port, up, remote=True)
                        if not up:
                            qp.requester.on_port_down(now_ns, plane.port)
                        self._wake(qp)
        ev = peers[0].evs.reverse(flow.ev, port)
        if ev is not None:
            response = EndpointResponse(request.op, flow.ev, self.port_mask(), request.tx_timestamp)
            self._send_other(ev, Opcode.ENDPOINT_RESPONSE, request_id, response.pack())

    def frames_to_send(
        self, now_ns: int, free_ports: Collection[int] | None = None, limit: int = 32
    ) -> list[Frame]:
        """Return about `limit` frames at most, each with its port; an empty list says there is nothing to
        send now.

        `free_ports` are the ports that can take a frame; None means all. Queue pairs take turns; answers go
        before data.
        """
        self._now_ns = now_ns
        out: list[Frame] = []
        if free_ports is not None:
            if not free_ports:
                return out
            if len(free_ports) >= len(self.ports):
                free_ports = None
        for _ in range(len(self._other)):
            frame = self._other.popleft()
            if free_ports is None or frame[0] in free_ports:
                out.append(frame)
            else:
                self._other.append(frame)
        for _ in range(len(self._answering)):
            if len(out) >= limit:
                break
            qp = self._answering.popleft()
            qp.responder.emit_frames(out, limit - len(out), free_ports)
            if qp.responder.answering:
                self._answering.append(qp)
        sending = self._sending
        blocked = 0
        while sending and len(out) < limit and blocked < len(sending):
            qp = sending.popleft()
            requester = qp.requester
            turn = self._turn_left or (_SHARED_TURN if requester.congestion.shared else _TURN)
            self._turn_left = 0
            room = min(turn, limit - len(out))
            if qp.parked:
                count = requester.emit_probes(now_ns, out, room, free_ports)
            else:
                count = requester.emit_frames(now_ns, out, room, free_ports)
            if count:
                blocked = 0
            else:
                blocked += 1
            if not qp.touched:
                qp.touched = True
                self._touched.append(qp)
            if requester.wants_to_probe() if qp.parked else requester.wants_to_send(now_ns):
                if count == room < turn:
                    sending.appendleft(qp)
                    self._turn_left = turn - count
                else:
                    sending.append(qp)
                if not blocked or free_ports is not None:
                    continue
                # None of its planes is up: others may have some that are.
            else:
                qp.queued = False
                if requester.has_data():
                    self._park(qp, first=count == 0)
                    continue
            # It leaves room that it may have been let go for: whoever waits takes it.
            if requester.congestion.waiting:
                self._release(requester.congestion)
        sent = self.frames_sent
        for frame in out:
            sent[frame[0]] += 1
        return out

    def next_timer(self) -> int | None:
        """Return the absolute time, ns, at which `handle_timer` should be called; None when nothing waits."""
        now_ns = self._now_ns
        self._note_touched(now_ns)
        timers = self._timers
        while timers:
            at, _, qp = timers[0]
            due = self._due_ns(qp, now_ns) if qp.timed_ns == at else None
            if due == at:
                other = self._requests.due_ns()
                return at if other is None or at < other else other
            heappop(timers)
            if qp.timed_ns == at:
                qp.timed_ns = -1
                if due is not None:
                    self._set_timer(qp, due)
        return self._requests.due_ns()

    def _note_touched(self, now_ns: int) -> None:
        """Make timer entries for QPs whose next timer may have come nearer; one that moved away can wait."""
        for qp in self._touched:
            qp.touched = False
            if qp.connected:
                due = self._due_ns(qp, now_ns)
                if due is not None and not 0 <= qp.timed_ns <= due:
                    self._set_timer(qp, due)
        self._touched.clear()

    def _due_ns(self, qp: QueuePair, now_ns: int) -> int | None:
        """Return when a QP wants `handle_timer` to be called.

        That is now for one in no queue whose rate cap lets it send by now: the moment may have passed while
        the driver asked for frames, and nothing else need ever come to wake it.
        """
        requester = qp.requester
        controller = requester.congestion
        if (
            controller.paced
            and not qp.queued
            and requester.has_data()
            and controller.budget_bytes(now_ns) > 0
        ):
            return now_ns
        return requester.next_timer(now_ns)

    def _set_timer(self, qp: QueuePair, at: int) -> None:
        self._timer_count += 1
        qp.timed_ns = at
        heappush(self._timers, (at, self._timer_count, qp))

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due at `now_ns`; harmless when nothing is."""
        self._now_ns = now_ns
        due: list[QueuePair] = []
        self._expire(now_ns)
        self._note_touched(now_ns)
        timers = self._timers
        while timers and timers[0][0] <= now_ns:
            at, _, qp = heappop(timers)
            if qp.timed_ns != at:
                continue
            qp.timed_ns = -1
            later = self._due_ns(qp, now_ns)
            if later is None or later <= now_ns:
                due.append(qp)
            else:
                self._set_timer(qp, later)
        for qp in due:
            qp.requester.handle_timer(now_ns)
            self._wake(qp)

    def _wake(self, qp: QueuePair) -> None:
        """Something happened to a QP: it may have something to send now, or later, or may let others send."""
        if not qp.touched:
            qp.touched = True
            self._touched.append(qp)
        if not qp.queued:
            self._queue(qp)
        controller = qp.requester.congestion
        if controller.waiting:
            self._release(controller)

    def _queue(self, qp: QueuePair) -> None:
        requester = qp.requester
        if qp.queued:
            return
        if requester.congestion.waiting:
            # Room goes by turns: an answer to this QP gives it no precedence over those that wait.
            self._park(qp)
        if requester.wants_to_probe() if qp.parked else requester.wants_to_send(self._now_ns):
            qp.queued = True
            self._sending.append(qp)
        else:
            self._park(qp)

    def _park(self, qp: QueuePair, *, first: bool = False) -> None:
        """Let a QP wait for room in the window it shares, if that is all it lacks; first if its turn brought
        it nothing.
        """
        controller = qp.requester.congestion
        if controller.shared and not qp.parked and qp.requester.has_data():
            qp.parked = True
            if first:
                controller.waiting.appendleft(qp)
            else:
                controller.waiting.append(qp)

    def _release(self, controller: CongestionControl) -> None:
        """Let as many QPs that wait for a shared window try again as it has room for packets.

        Where time alone makes room the first of them gets a timer: when it began to wait, what had to come
        may have been an acknowledgement.
        """
        waiting = controller.waiting
        budget = controller.budget_bytes(self._now_ns)
        while waiting:
            qp = waiting[0]
            if qp.requester.has_data():
                if budget <= 0:
                    if not qp.touched and controller.next_send_ns(self._now_ns) is not None:
                        qp.touched = True
                        self._touched.append(qp)
                    break
                budget -= self.config.mtu_bytes
                if not qp.queued:
                    qp.queued = True
                    self._sending.append(qp)
            # Else it has sent all meanwhile, let go by an answer to itself.
            qp.parked = False
            waiting.popleft()

    def _emit(self, event: Event) -> None:
        self._reports.add(event)
        if isinstance(event, QpError):
            qp = self.qps.get(event.qpn)
            if qp is not None:
                # One half's error is the whole QP's.
                qp.responder.error = True
                qp.requester.flush(event.t_ns, Status.FLUSHED)
                self._release(qp.requester.congestion)

    # Observation

    def qp_counters(self, qpn: int) -> QpCounters:
        """Return a snapshot of a QP's counters."""
        qp = self.qps[qpn]
        q, r = qp.requester, qp.responder
        return QpCounters(
            qpn=qpn,
            sent=q.packets_sent,
            retransmitted=q.packets_retransmitted,
            lost=q.packets_lost,
            spurious=q.packets_spurious,
            bytes_acked=q.bytes_acked,
            sacks_received=q.sacks_received,
            nacks_received=q.nacks_received,
            placed=r.packets_placed,
            bytes_placed=r.bytes_placed,
            duplicates=r.duplicates,
            out_of_window=r.out_of_window,
            ce_received=r.ce_received,
            trims_received=r.trims_received,
            sacks_sent=r.sacks_sent,
            nacks_sent=r.nacks_sent,
            srtt_ns=q.rtt.srtt_ns,
            rttvar_ns=q.rtt.var_ns,
            guard_ns=q.guard.ns(self._now_ns),
            inflight_bytes=q.board.inflight_bytes,
            cwnd_bytes=q.congestion.cwnd_bytes,
        )

    def ev_counters(self, qpn: int) -> list[EvCounters]:
        """Return a snapshot of all EVs of a QP."""
        return [
            EvCounters(
                ev.value,
                ev.port,
                ev.state,
                ev.active,
                ev.sent,
                ev.acked,
                ev.lost,
                ev.ecn_marked,
                ev.trimmed,
                ev.retired,
            )
            for plane in self.qps[qpn].evs.planes
            for ev in plane.evs
        ]

    def plane_counters(self, qpn: int) -> list[PlaneCounters]:
        """Return a snapshot of each plane of a QP."""
        return [
            PlaneCounters(
                plane.port,
                plane.local_up,
                plane.peer_up,
                len(plane.active),
                len(plane.spares),
                sum(ev.state is EvState.ASSUMED_BAD for ev in plane.evs),
                sum(ev.state is EvState.DENIED for ev in plane.evs),
                sum(ev.sent for ev in plane.evs),
                sum(ev.acked for ev in plane.evs),
                sum(ev.lost for ev in plane.evs),
                sum(ev.ecn_marked for ev in plane.evs),
                sum(ev.trimmed for ev in plane.evs),
                sum(ev.retired for ev in plane.evs),
            )
            for plane in self.qps[qpn].evs.planes
        ]

    def active_per_plane(self, qpn: int) -> Mapping[int, int]:
        """Return how many EVs each plane has in the rotation."""
        return {plane.port: len(plane.active) for plane in self.qps[qpn].evs.planes}
