"""The RoCEv2 endpoint: the verbs of a RoCEv2 NIC. It passes each arriving packet to the part that handles it.

`mrclab.hosts.rdma.endpoint` explains how a driver uses an endpoint.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrclab.hosts.rdma.endpoint import BaseEndpoint, message_view
from mrclab.hosts.rdma.events import EvCounters, Event, EvState, QpError, ReceiveCompleted, SendCompleted
from mrclab.hosts.rdma.frames import BTH_LEN, BTH_STRUCT, ICRC_LEN, IMM_STRUCT, PSN_MASK, Flow, FlowCache
from mrclab.hosts.rdma.paths import PortAddress, RemotePaths
from mrclab.hosts.roce.config import RoceConfig
from mrclab.hosts.roce.queue_pair import Connection, RoceQueuePair, stripes
from mrclab.hosts.roce.requester import Requester
from mrclab.hosts.roce.responder import Responder
from mrclab.hosts.roce.wire import Opcode, Route, choose_path, choose_plane, flow_label, udp_source

LONGEST_MESSAGE = (1 << 31) - 1
"""Largest length of a message, bytes. [IBTA 9.7.1] allows 2^31."""

_FIRST_WRITE, _LAST_WRITE = int(Opcode.WRITE_FIRST), int(Opcode.WRITE_ONLY_IMM)
_ACK, _CNP = int(Opcode.ACKNOWLEDGE), int(Opcode.CNP)


@dataclass(frozen=True, slots=True)
class RoceAttributes:
    """The values that the two ends exchange before a connection carries data."""

    qpn: int
    """The first of `qps` consecutive queue pair numbers."""
    psn: int
    """First PSN that this end will send on each queue pair, 24 bits."""
    qps: int
    mtu_bytes: int
    udp_port: int
    ports: tuple[PortAddress, ...]

    @property
    def kind(self) -> str:
        """Return the kind of transport. This is a property, because mypyc turns a ClassVar into a field."""
        return "rocev2"


@dataclass(frozen=True, slots=True)
class RoceCounters:
    """Sums over the queue pairs of one connection. Counters count packets if no other unit is noted."""

    qpn: int
    sent: int
    retransmitted: int
    lost: int
    """How often the sender went back to an earlier PSN. Without SACK, the number of losses is unknown."""
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
    bogus_received: int
    """Answers to packets that were never sent, or answers of an unknown kind."""
    rate_bps: int
    """Sum of the rates that DCQCN allows, bit/s."""


class Endpoint(BaseEndpoint):
    """One NIC with its ports (one per plane), memory regions and connections."""

    def __init__(
        self,
        ports: Sequence[PortAddress],
        config: RoceConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Make a NIC with these ports. `rng` is the only source of randomness."""
        self.config = config or RoceConfig()
        flows = FlowCache((self.config.udp_port,))
        super().__init__(ports, rng or random.Random(), flows, self.config.mtu_bytes)
        self.qps: dict[int, RoceQueuePair] = {}
        self._connections: dict[int, tuple[RoceQueuePair, ...]] = {}
        self._psns: dict[int, int] = {}
        self.port_up = dict.fromkeys(self.addresses, True)

    # Verbs

    def create_qp(self) -> int:
        """Create a connection with `config.qps` queue pairs; return the number of the first queue pair."""
        count = self.config.qps
        qpn = self.draw_qpn(self.qps, count)
        psn = self.rng.getrandbits(24)
        connection = Connection(qpn, count, self.reports.add)
        self._connections[qpn] = tuple(self._make_qp(qpn + i, psn, connection) for i in range(count))
        self._psns[qpn] = psn
        return qpn

    def _make_qp(self, qpn: int, psn: int, connection: Connection) -> RoceQueuePair:
        requester = Requester(qpn, psn, self.config, self._emit)
        responder = Responder(qpn, self.config, self.memory, self._emit, lambda: self.scheduler.answer(qp))
        qp = RoceQueuePair(qpn, requester, responder, connection)
        self.qps[qpn] = qp
        return qp

    def local_attributes(self, qpn: int) -> RoceAttributes:
        """Return the attributes that the peer needs to connect to this connection."""
        config = self.config
        return RoceAttributes(qpn, self._psns[qpn], config.qps, config.mtu_bytes, config.udp_port, self.ports)

    def connect(self, qpn: int, remote: RoceAttributes, paths: RemotePaths) -> None:
        """Connect to the peer's end. Each queue pair uses one of these paths and keeps it."""
        if not isinstance(remote, RoceAttributes):
            raise ValueError("the peer's attributes are not those of a RoCEv2 endpoint")
        if remote.qps != self.config.qps:
            raise ValueError(f"the peer has {remote.qps} queue pairs per connection, we {self.config.qps}")
        self.check_peer(remote.udp_port, (self.config.udp_port,), paths)
        qps = self._connections[qpn]
        if qps[0].connected:
            raise ValueError(f"QP {qpn:#x} is connected already")
        peers = frozenset(port.address for port in remote.ports)
        for number, qp in enumerate(qps):
            self._connect_qp(qp, remote.qpn + number, remote, paths)
            qp.peers = peers

    def _connect_qp(
        self, qp: RoceQueuePair, remote_qpn: int, remote: RoceAttributes, paths: RemotePaths
    ) -> None:
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
        """Remove a connection; frames for it are dropped from now on."""
        for qp in self._connections.pop(qpn):
            del self.qps[qp.qpn]
            self.scheduler.forget(qp)
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
        """Queue an RDMA WRITE, or a WRITE with immediate if `imm` is given.

        `data` must not change until the request completes. If the connection is in error, the request fails
        at once, and `now_ns` is the time of its completion.
        """
        qps = self._connections[qpn]
        if not qps[0].connected:
            raise ValueError(f"QP {qpn:#x} is not connected")
        view = message_view(data, imm, 0, LONGEST_MESSAGE, remote_va, rkey)
        now = self.now_ns if now_ns is None else now_ns
        qps[0].connection.post(wr_id, len(view))
        parts = stripes(len(view), len(qps), self.config.stripe_alignment_bytes)
        for qp, (start, end) in zip(qps, parts, strict=True):
            qp.requester.post(now, wr_id, view[start:end], remote_va + start, rkey, imm)
            self.scheduler.wake(self.now_ns, qp)

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Record that a port went down or came up.

        A queue pair stays on its port. Packets that are sent while the port is down are lost. The queue
        pair retries until the port is up or no retries are left.
        """
        self.now_ns = now_ns
        self.port_up[port] = up

    # Arriving frames

    def take(self, port: int, view: memoryview, flow: Flow) -> None:
        """Handle a frame whose headers before the BTH and whose ICRC are correct."""
        drops, now_ns, bth = self.drops, self.now_ns, flow.bth
        fields = BTH_STRUCT.unpack_from(view, bth)
        opcode, second, _, qpn, last = fields
        qp = self.qps.get(qpn & 0xFFFFFF)
        if qp is None or not qp.connected:
            drops.unknown_qp += 1
            return
        if flow.src not in qp.peers:
            drops.wrong_source += 1
            return
        end = len(view) - ICRC_LEN
        start = bth + BTH_LEN
        if second & 0x0F or end - (second >> 4 & 3) < start:
            # The BTH has another transport version, or the frame has more padding than payload.
            drops.malformed += 1
            return
        self.port_states[port].received += 1
        if _FIRST_WRITE <= opcode <= _LAST_WRITE:
            qp.responder.on_data(now_ns, view, bth, end, flow.ce, fields)
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
        self.scheduler.wake(now_ns, qp)

    # Events of queue pairs and of connections

    def _emit(self, event: Event) -> None:
        qp = self.qps[event.qpn]
        if isinstance(event, SendCompleted):
            qp.connection.on_sent(event)
        elif isinstance(event, ReceiveCompleted):
            qp.connection.on_received(event)
        elif isinstance(event, QpError):
            if qp.connection.on_error(event):
                # If one queue pair fails, the whole connection fails.
                for part in self._connections[qp.connection.qpn]:
                    part.responder.error = True
                    part.requester.flush(event.t_ns)
        else:
            self.reports.add(event)

    # Counters

    def bytes_placed(self, qpn: int) -> int:
        """Return the number of payload bytes that a connection has written into memory."""
        return sum(qp.responder.bytes_placed for qp in self._connections[qpn])

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
            bogus_received=sum(q.bogus_received for q in requesters),
            rate_bps=round(sum(limiter.advance(self.now_ns) for limiter in limiters)),
        )

    def ev_counters(self, qpn: int) -> list[EvCounters]:
        """Return a snapshot of the paths in use, one for each queue pair. RoCEv2 never retires a path."""
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
