"""One NIC: ports, memory and RoCEv2 connections behind the verbs of `hosts.endpoint`.

Without I/O, clock or randomness of its own, and driven as `hosts.mrc.endpoint` says.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hosts.rdma.counters import Drops, EvCounters, EvState
from hosts.rdma.events import Event, QpError, ReceiveCompleted, SendCompleted
from hosts.rdma.frames import Frame
from hosts.rdma.headers import BTH_LEN, BTH_STRUCT, ICRC_LEN, IMM_STRUCT
from hosts.rdma.icrc import RESIDUE, crc32
from hosts.rdma.memory import Access, MemoryRegion, MemoryTable
from hosts.rdma.paths import PortAddress, RemotePaths
from hosts.rdma.psn import PSN_MASK
from hosts.rdma.reports import Completion, Reports, message_view
from hosts.roce.config import RoceConfig
from hosts.roce.connection import Connection, stripes
from hosts.roce.frames import MIN_FRAME, FlowCache, Route
from hosts.roce.requester import Requester
from hosts.roce.responder import Responder
from hosts.roce.routing import choose_path, choose_plane, flow_label, udp_source
from hosts.roce.wire import Opcode

_FIRST_WRITE, _LAST_WRITE = int(Opcode.WRITE_FIRST), int(Opcode.WRITE_ONLY_IMM)
_ACK, _CNP = int(Opcode.ACKNOWLEDGE), int(Opcode.CNP)
_TURN = 8
"""Frames a queue pair hands out before the next one has its turn."""


@dataclass(frozen=True, slots=True)
class RoceAttributes:
    """What two ends tell each other out of band before a connection carries data."""

    qpn: int
    """The first of `qps` consecutive numbers."""
    psn: int
    """First PSN this end will send on each of them, 24 bits."""
    qps: int
    mtu_bytes: int
    udp_port: int
    ports: tuple[PortAddress, ...]


@dataclass(frozen=True, slots=True)
class RoceCounters:
    """A snapshot of one connection, all its queue pairs added up. Packets unless the name says otherwise."""

    qpn: int
    sent: int
    retransmitted: int
    lost: int
    """Times it went back; how many packets were lost a sender without SACK does not know."""
    timeouts: int
    bytes_acked: int
    acks_received: int
    naks_received: int
    rnr_naks_received: int
    cnps_received: int
    placed: int
    bytes_placed: int
    duplicates: int
    out_of_order: int
    ce_received: int
    cnps_sent: int
    acks_sent: int
    naks_sent: int
    rnr_naks_sent: int
    srtt_ns: int
    inflight_packets: int
    rate_bps: int
    """What DCQCN allows, added up."""


class QueuePair:
    """A requester and a responder that share one path to one peer."""

    __slots__ = ("connected", "connection", "path_ev", "peers", "qpn", "queued", "requester", "responder")

    def __init__(self, qpn: int, requester: Requester, responder: Responder, connection: Connection) -> None:
        self.qpn = qpn
        self.requester = requester
        self.responder = responder
        self.connection = connection
        self.connected = False
        self.queued = False
        """In the endpoint's list of QPs that may have something to send."""
        self.peers: frozenset[bytes] = frozenset()
        self.path_ev = 0


class Endpoint:
    """One NIC with its ports (one per plane), memory regions and connections."""

    def __init__(
        self,
        ports: Sequence[PortAddress],
        config: RoceConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Make a NIC with these ports. `rng` is the only source of randomness."""
        self.config = config or RoceConfig()
        self.ports = tuple(ports)
        self._rng = rng or random.Random()
        self._addresses = {port.port: port.address for port in self.ports}
        self._flows = FlowCache(self.config.udp_port)
        self.memory = MemoryTable(self._rng)
        self.qps: dict[int, QueuePair] = {}
        self._connections: dict[int, tuple[QueuePair, ...]] = {}
        self._psns: dict[int, int] = {}
        self._next_qpn = 0x10 + self._rng.getrandbits(12)
        self._answering: deque[QueuePair] = deque()
        self._sending: deque[QueuePair] = deque()
        self._turn_left = 0
        """Frames the first of them may hand out before it goes to the end; 0 for a whole turn."""
        self._timed: dict[int, QueuePair] = {}
        """QPs that may have a timer running."""
        self._reports = Reports()
        self._now_ns = 0
        self.port_up = dict.fromkeys(self._addresses, True)
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
        """Create a connection of as many queue pairs as the options say; return the number of the first."""
        count = self.config.qps
        if self._next_qpn + count > 0xFFFFFF:
            self._next_qpn = 0x10
        qpn = self._next_qpn
        self._next_qpn += count
        psn = self._rng.getrandbits(24)
        connection = Connection(qpn, count, self._reports.add)
        self._connections[qpn] = tuple(self._make_qp(qpn + i, psn, connection) for i in range(count))
        self._psns[qpn] = psn
        return qpn

    def _make_qp(self, qpn: int, psn: int, connection: Connection) -> QueuePair:
        requester = Requester(qpn, psn, self.config, self._emit)
        responder = Responder(qpn, self.config, self.memory, self._emit, lambda: self._answering.append(qp))
        qp = QueuePair(qpn, requester, responder, connection)
        self.qps[qpn] = qp
        return qp

    def local_attributes(self, qpn: int) -> RoceAttributes:
        """Return what the peer needs to know to connect to this connection."""
        config = self.config
        return RoceAttributes(qpn, self._psns[qpn], config.qps, config.mtu_bytes, config.udp_port, self.ports)

    def connect(self, qpn: int, remote: RoceAttributes, paths: RemotePaths) -> None:
        """Connect to the peer's end; each queue pair gets one of these paths, for good."""
        if not isinstance(remote, RoceAttributes):
            raise ValueError("the peer's attributes are not those of a RoCEv2 endpoint")
        if remote.qps != self.config.qps:
            raise ValueError(f"the peer has {remote.qps} queue pairs per connection, we {self.config.qps}")
        if remote.udp_port != self.config.udp_port:
            raise ValueError(f"the peer uses UDP port {remote.udp_port}, we use {self.config.udp_port}")
        for plane in paths.planes:
            if plane.port not in self._addresses:
                raise ValueError(f"paths name port {plane.port}, which this NIC has not got")
        qps = self._connections[qpn]
        if qps[0].connected:
            raise ValueError(f"QP {qpn:#x} is connected already")
        peers = frozenset(port.address for port in remote.ports)
        for number, qp in enumerate(qps):
            self._connect_qp(qp, remote.qpn + number, remote, paths)
            qp.peers = peers

    def _connect_qp(self, qp: QueuePair, remote_qpn: int, remote: RoceAttributes, paths: RemotePaths) -> None:
        config = self.config
        label = flow_label(qp.qpn, remote_qpn)
        source = udp_source(label)
        plane = choose_plane(paths, label)
        path = choose_path(plane, label, source, config.udp_port)
        outer = path.outer_dst if config.encapsulation == "srv6" else None
        route = Route(plane, outer, label, source, config.udp_port, config.hop_limit)
        qp.path_ev = path.ev
        qp.requester.connect(remote_qpn, remote.mtu_bytes, route, path.ev)
        qp.responder.connect(remote_qpn, remote.psn, remote.mtu_bytes, route)
        qp.connected = True

    def destroy_qp(self, qpn: int) -> None:
        """Forget a connection; frames for it are dropped from now on."""
        for qp in self._connections.pop(qpn):
            del self.qps[qp.qpn]
            self._timed.pop(qp.qpn, None)
            for waiting in (self._answering, self._sending):
                while qp in waiting:
                    waiting.remove(qp)
            qp.connected = False
        del self._psns[qpn]

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
        """Queue an RDMA WRITE, with `imm` a WRITE with immediate. `data` must not change until it completes.

        `now_ns` only dates the completion of a request that fails at once, on a connection in error.
        """
        qps = self._connections[qpn]
        if not qps[0].connected:
            raise ValueError(f"QP {qpn:#x} is not connected")
        view = message_view(data, imm)
        now = self._now_ns if now_ns is None else now_ns
        qps[0].connection.post(wr_id, len(view))
        parts = stripes(len(view), len(qps), self.config.stripe_alignment_bytes)
        for qp, (start, end) in zip(qps, parts, strict=True):
            qp.requester.post(now, wr_id, view[start:end], remote_va + start, rkey, imm)
            self._wake(qp)

    def post_receives(self, qpn: int, count: int) -> None:
        """Post receives for writes with immediate, where `receive_credits` says that they are counted."""
        for qp in self._connections[qpn]:
            if qp.responder.credits is not None:
                qp.responder.credits += count

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Take note of a port that went down or came up.

        Nothing else follows: a queue pair belongs to its port. What it sends meanwhile is lost, and it
        retries until the port is back or its retries run out.
        """
        self._now_ns = now_ns
        self.port_up[port] = up

    def poll_cq(self, limit: int = 64) -> list[Completion]:
        """Take up to `limit` completions, of all connections, in the order they came about."""
        return self._reports.poll(limit)

    def next_event(self) -> Event | None:
        """Take the oldest event, completions among them; None when there is none."""
        return self._reports.next_event()

    def events(self) -> Iterator[Event]:
        """Take all events, completions among them, oldest first. Each is handed out once, here or by
        `poll_cq`.
        """
        return self._reports.drain()

    # The driver's side

    def receive(self, port: int, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Take in a whole Ethernet frame that came in on `port`. The core keeps no reference to it."""
        self._now_ns = now_ns
        drops = self.drops
        if len(frame) < MIN_FRAME:
            drops.too_short += 1
            return
        flow = self._flows.flow(frame)
        if flow is None:
            drops.not_mrc += 1
            return
        if self._addresses.get(port) != flow.dst:
            drops.wrong_port += 1
            return
        size = flow.frame_length
        if len(frame) < size:
            drops.bad_length += 1
            return
        view = memoryview(frame)[:size]
        if crc32(view[flow.bth :], flow.crc) != RESIDUE and not _odd_reserved_byte(view, flow.bth, flow.crc):
            drops.bad_icrc += 1
            return
        fields = BTH_STRUCT.unpack_from(view, flow.bth)
        opcode, second, _, qpn, last = fields
        qp = self.qps.get(qpn & 0xFFFFFF)
        if qp is None or not qp.connected:
            drops.unknown_qp += 1
            return
        if flow.src not in qp.peers:
            drops.wrong_source += 1
            return
        end = size - ICRC_LEN
        start = flow.bth + BTH_LEN
        if second & 0x0F or end - (second >> 4 & 3) < start:
            # Another version of the transport, or more padding than payload.
            drops.malformed += 1
            return
        self.frames_received[port] += 1
        if _FIRST_WRITE <= opcode <= _LAST_WRITE:
            qp.responder.on_data(now_ns, view, flow.bth, end, flow.ce, fields)
        elif opcode == _ACK:
            if end - start < IMM_STRUCT.size:
                drops.malformed += 1
                return
            (aeth,) = IMM_STRUCT.unpack_from(view, start)
            qp.requester.on_answer(now_ns, last & PSN_MASK, aeth >> 29 & 3, aeth >> 24 & 31)
        elif opcode == _CNP:
            qp.requester.on_cnp(now_ns)
        else:
            drops.unknown_opcode += 1
            return
        self._wake(qp)

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
        for _ in range(len(self._answering)):
            if len(out) >= limit:
                break
            qp = self._answering.popleft()
            if free_ports is None or qp.requester.port in free_ports:
                qp.responder.emit_frames(out, limit - len(out))
            if qp.responder.answering:
                self._answering.append(qp)
        sending = self._sending
        blocked = 0
        while sending and len(out) < limit and blocked < len(sending):
            qp = sending.popleft()
            if free_ports is not None and qp.requester.port not in free_ports:
                sending.append(qp)
                blocked += 1
                continue
            blocked = 0
            before, turn = len(out), self._turn_left or _TURN
            self._turn_left = 0
            qp.requester.emit_frames(now_ns, out, min(turn, limit - before))
            self._timed[qp.qpn] = qp
            if qp.requester.ready(now_ns):
                left = turn - (len(out) - before)
                if len(out) == limit and left:
                    sending.appendleft(qp)
                    self._turn_left = left
                else:
                    sending.append(qp)
            else:
                qp.queued = False
        for port, _ in out:
            self.frames_sent[port] += 1
        return out

    def next_timer(self) -> int | None:
        """Return the absolute time, ns, at which `handle_timer` should be called; None when nothing waits."""
        least: int | None = None
        for qp in list(self._timed.values()):
            due = qp.requester.next_timer(self._now_ns, qp.queued)
            if due is None:
                del self._timed[qp.qpn]
            elif least is None or due < least:
                least = due
        return least

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due at `now_ns`; harmless when nothing is."""
        self._now_ns = now_ns
        for qp in list(self._timed.values()):
            qp.requester.handle_timer(now_ns)
            self._wake(qp)

    def _wake(self, qp: QueuePair) -> None:
        """Something happened to a QP: it may have something to send, now or later."""
        self._timed[qp.qpn] = qp
        if not qp.queued and qp.requester.ready(self._now_ns):
            qp.queued = True
            self._sending.append(qp)

    # Events, of queue pairs and of connections

    def _emit(self, event: Event) -> None:
        qp = self.qps[event.qpn]
        if isinstance(event, SendCompleted):
            qp.connection.on_sent(event)
        elif isinstance(event, ReceiveCompleted):
            qp.connection.on_received(event)
        elif isinstance(event, QpError):
            if qp.connection.on_error(event):
                # One queue pair's error is the whole connection's.
                for part in self._connections[qp.connection.qpn]:
                    part.responder.error = True
                    part.requester.flush(event.t_ns)
        else:
            self._reports.add(event)

    # Observation

    def qp_counters(self, qpn: int) -> RoceCounters:
        """Return a snapshot of a connection's counters."""
        qps = self._connections[qpn]
        requesters, responders = [qp.requester for qp in qps], [qp.responder for qp in qps]
        limiters = [q.limiter for q in requesters if q.limiter is not None]
        return RoceCounters(
            qpn=qpn,
            sent=sum(q.packets_sent for q in requesters),
            retransmitted=sum(q.packets_retransmitted for q in requesters),
            lost=sum(q.packets_lost for q in requesters),
            timeouts=sum(q.timeouts for q in requesters),
            bytes_acked=sum(q.bytes_acked for q in requesters),
            acks_received=sum(q.acks_received for q in requesters),
            naks_received=sum(q.naks_received for q in requesters),
            rnr_naks_received=sum(q.rnr_naks_received for q in requesters),
            cnps_received=sum(limiter.cnps for limiter in limiters),
            placed=sum(r.packets_placed for r in responders),
            bytes_placed=sum(r.bytes_placed for r in responders),
            duplicates=sum(r.duplicates for r in responders),
            out_of_order=sum(r.out_of_order for r in responders),
            ce_received=sum(r.ce_received for r in responders),
            cnps_sent=sum(r.cnps_sent for r in responders),
            acks_sent=sum(r.acks_sent for r in responders),
            naks_sent=sum(r.naks_sent for r in responders),
            rnr_naks_sent=sum(r.rnr_naks_sent for r in responders),
            srtt_ns=max(q.rtt.srtt_ns for q in requesters),
            inflight_packets=sum(q.inflight_packets for q in requesters),
            rate_bps=round(sum(limiter.advance(self._now_ns) for limiter in limiters)),
        )

    def ev_counters(self, qpn: int) -> list[EvCounters]:
        """Return a snapshot of the paths in use, one for each queue pair; a path is never given up."""
        return [
            EvCounters(
                ev=qp.path_ev,
                plane=qp.requester.port,
                state=EvState.GOOD,
                active=True,
                sent=qp.requester.packets_sent,
                acked=qp.requester.packets_sent - qp.requester.packets_lost,
                lost=qp.requester.packets_lost,
                ecn_marked=qp.responder.ce_received,
                trimmed=0,
                retired=0,
            )
            for qp in self._connections[qpn]
            if qp.connected
        ]


def _odd_reserved_byte(view: memoryview, bth: int, crc: int) -> bool:
    """Whether the ICRC is right after all: only FECN or BECN, which do not count, are set."""
    if view[bth + 4] == 0:
        return False
    copy = bytearray(view[bth:])
    copy[4] = 0
    return crc32(copy, crc) == RESIDUE
