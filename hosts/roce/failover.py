"""RoCEv2 with failover and recovery of ports. The rules are NCCL's, the protocol is mrclab's.

A connection has `qps` *lanes* on each port, and splits each message over all lanes. A lane has a queue pair
on every port and uses one of them. If this queue pair fails (after its last retry, or if its port goes down):

1. The lane waits for `probe_delay_ns`. Then it asks the peer over another port how many of the lane's
   messages have arrived (an RDMA READ). From then on the peer ignores the failed queue pair.
2. The lane moves to its queue pair on this other port, and posts there the messages that have not arrived.
   After `failover_attempts` such moves, the next failure ends the connection.
3. With `recovery`, alive messages (unreliable SENDs) test the failed port. The first batch is sent after
   `recovery_start_ns`, and a further batch follows every `alive_interval_ns`. After `alive_sequence` answers,
   the lane waits until it has no open messages, and returns to the port. A recovery attempt ends after
   `alive_timeout_ns`. After `recovery_attempts` failed attempts the port is not tested any more.

Source: NCCL 2.30, net_ib and its parameters `NCCL_IB_RESILIENCY_PORT_*`. The default values are NCCL's, but
NCCL turns both features off by default. `timeout_exponent` and `retry_count` set the time until a queue pair
on a dead path fails, as in RoCEv2 without failover.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from mrclab.hosts.rdma.endpoint import message_view
from mrclab.hosts.rdma.events import EvCounters, Event, QpError, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.frames import (
    BTH_LEN,
    BTH_STRUCT,
    ICRC_LEN,
    UDP_LEN,
    Flow,
    Outgoing,
    seal,
    traffic_class,
)
from mrclab.hosts.rdma.paths import PortAddress, RemotePaths
from mrclab.hosts.roce.endpoint import LONGEST_MESSAGE, Endpoint, RoceAttributes
from mrclab.hosts.roce.lanes import FailoverAttributes, FailoverConfig, Lane, Peer, Request
from mrclab.hosts.roce.queue_pair import Connection, RoceQueuePair, stripes
from mrclab.hosts.roce.requester import Requester
from mrclab.hosts.roce.responder import Responder
from mrclab.hosts.roce.wire import Route, choose_path, flow_label, prefix, udp_source

READ_REQUEST, READ_RESPONSE, ALIVE = 0x0C, 0x10, 0x24
"""Opcodes: RDMA READ request and its only response packet (reliable connection), SEND in one packet
(unreliable connection)."""
_READ: Final = struct.Struct(">QII")
"""Fields of a probe's RETH: index of the failed queue pair (instead of an address), key (0), length."""
_ANSWER: Final = struct.Struct(">IQ")
"""Answer to a probe: AETH, and the number of messages that have arrived on the failed queue pair."""
_ALIVE: Final = struct.Struct(">BxHI")
"""Fields of an alive message: request (0) or answer (1), number of the attempt, number in the attempt."""
MOST_FRAMES: Final = 256
"""Largest number of probes and alive messages that wait to be sent on a port."""


class FailoverEndpoint(Endpoint):
    """A RoCEv2 NIC whose connections survive the failure of a port."""

    config: FailoverConfig

    def __init__(
        self,
        ports: Sequence[PortAddress],
        config: FailoverConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Make a NIC with these ports. `rng` is the only source of randomness."""
        super().__init__(ports, config or FailoverConfig(), rng)
        self._numbers = [port.port for port in self.ports]
        self._lanes: dict[int, list[Lane]] = {}
        self._lane_of: dict[int, Lane] = {}
        self._peers: dict[int, Peer] = {}
        self._active: dict[int, Lane] = {}
        """Lanes with a failed port, by the number of their queue pair on port 0."""
        self._frames: deque[Outgoing] = deque(maxlen=MOST_FRAMES)
        self._tclass = traffic_class(self.config.dscp_data, ecn_capable=False)
        self.failovers = self.recoveries = 0

    # Verbs

    def create_qp(self) -> int:
        """Create a connection whose lanes have a QP on every port; return the number of the first QP."""
        ports, lanes = len(self._numbers), len(self._numbers) * self.config.qps
        qpn = self.draw_qpn(self.qps, ports * lanes)
        psn = self.rng.getrandbits(24)
        connection = Connection(qpn, lanes, self.reports.add)
        self._connections[qpn] = tuple(self._make_qp(qpn + i, psn, connection) for i in range(ports * lanes))
        self._psns[qpn] = psn
        self._lanes[qpn] = [
            Lane(qpn + i * ports, i, connection, home=i % ports, at=i % ports) for i in range(lanes)
        ]
        for lane in self._lanes[qpn]:
            self._lane_of |= dict.fromkeys(range(lane.first, lane.first + ports), lane)
        return qpn

    def local_attributes(self, qpn: int) -> FailoverAttributes:
        """Return the attributes that the peer needs to connect its end of this connection."""
        config = self.config
        return FailoverAttributes(
            qpn, self._psns[qpn], config.qps, config.mtu_bytes, config.udp_port, self.ports
        )

    def connect(self, qpn: int, remote: RoceAttributes, paths: RemotePaths) -> None:
        """Connect to the peer's end. Raise ValueError if the two ends do not have the same ports."""
        if not isinstance(remote, FailoverAttributes):
            raise ValueError("the peer's attributes are not those of a RoCEv2 endpoint with failover")
        if {plane.port for plane in paths.planes} != set(self._numbers) or len(remote.ports) != len(
            self.ports
        ):
            raise ValueError("failover needs as many ports at both ends, and a path on each")
        super().connect(qpn, remote, paths)

    def _connect_qp(
        self, qp: RoceQueuePair, remote_qpn: int, remote: RoceAttributes, paths: RemotePaths
    ) -> None:
        config = self.config
        number = self._numbers[qp.qpn - self._lane_of[qp.qpn].first]
        plane = next(plane for plane in paths.planes if plane.port == number)
        label = flow_label(qp.qpn, remote_qpn)
        source = udp_source(label)
        path = choose_path(plane, label, source, config.udp_port)
        outer = path.outer_dst if config.encapsulation == "srv6" else None
        route = Route(plane, outer, label, source, config.udp_port, config.hop_limit)
        qp.path_ev = path.ev
        self._peers[qp.qpn] = Peer(remote_qpn, remote, route)
        qp.requester.connect(remote_qpn, remote.mtu_bytes, route, path.ev)
        qp.responder.connect(remote_qpn, remote.psn, remote.mtu_bytes, route)
        qp.connected = True

    def destroy_qp(self, qpn: int) -> None:
        """Remove a connection; frames for it are dropped from now on."""
        for qp in self._connections[qpn]:
            del self._lane_of[qp.qpn]
            self._peers.pop(qp.qpn, None)
            self._active.pop(qp.qpn, None)
        del self._lanes[qpn]
        super().destroy_qp(qpn)

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
        """Queue a write as `Endpoint.post_write` does, and split it over the lanes."""
        lanes = self._lanes[qpn]
        if not self.qps[qpn].connected:
            raise ValueError(f"QP {qpn:#x} is not connected")
        view = message_view(data, imm, 0, LONGEST_MESSAGE, remote_va, rkey)
        now = self.now_ns if now_ns is None else now_ns
        connection = lanes[0].connection
        connection.post(wr_id, len(view))
        parts = stripes(len(view), len(lanes), self.config.stripe_alignment_bytes)
        for lane, (start, end) in zip(lanes, parts, strict=True):
            request = Request(wr_id, view[start:end], remote_va + start, rkey, imm)
            if connection.failed:
                done = SendCompleted(now, qpn + lane.number, wr_id, Status.FLUSHED, end - start)
                connection.on_sent(done)
            elif lane.failed_at >= 0 or lane.home_is_back or lane.held:
                lane.held.append(request)
            else:
                self._post(lane, request, now)

    def _post(self, lane: Lane, request: Request, now_ns: int) -> None:
        qp = self.qps[lane.first + lane.at]
        lane.open.append(request)
        lane.posted += 1
        qp.requester.post(now_ns, request.wr_id, request.data, request.va, request.rkey, request.imm)
        self.scheduler.wake(now_ns, qp)

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Record that a port went down or came up. If it went down, its queue pairs in use fail at once."""
        super().set_port_state(port, up, now_ns)
        if up:
            return
        for lanes in list(self._lanes.values()):
            for lane in lanes:
                if self._numbers[lane.at] == port and lane.failed_at < 0 and not lane.connection.failed:
                    requester = self.qps[lane.first + lane.at].requester
                    requester.fail(now_ns, Status.RETRY_EXCEEDED, f"port {port} is down")

    # Events of queue pairs

    def _emit(self, event: Event) -> None:
        lane = self._lane_of[event.qpn]
        number = lane.connection.qpn + lane.number
        if isinstance(event, SendCompleted):
            if event.status is Status.SUCCESS:
                lane.open.popleft()
                lane.completed += 1
                done = SendCompleted(event.t_ns, number, event.wr_id, event.status, event.length_bytes)
                lane.connection.on_sent(done)
                self._maybe_home(lane, event.t_ns)
            # Ignore a failed message here. On QpError, the lane posts it again, or the connection flushes it.
        elif isinstance(event, ReceiveCompleted):
            lane.connection.on_received(
                ReceiveCompleted(event.t_ns, number, event.imm, event.length_bytes, event.rqmsn)
            )
        elif isinstance(event, QpError):
            if event.status is Status.RETRY_EXCEEDED and self._fail_over(lane, event):
                return
            self._end(lane, event)
        else:
            self.reports.add(event)

    def _fail_over(self, lane: Lane, event: QpError) -> bool:
        """Start to move a lane whose queue pair has failed; return False if no move is allowed."""
        if lane.moves >= self.config.failover_attempts or len(self._numbers) < 2:
            return False
        lane.moves += 1
        lane.failed_at = lane.at
        self._active[lane.first] = lane
        lane.due_ns = event.t_ns + self.config.probe_delay_ns
        lane.probes = 0
        if lane.at == lane.home and self.config.recovery:
            lane.attempt = 0
            self._begin_attempt(lane, event.t_ns + self.config.recovery_start_ns)
        return True

    def _end(self, lane: Lane, event: QpError) -> None:
        """End the connection of a lane, and flush all open messages of the connection."""
        connection = lane.connection
        if not connection.on_error(QpError(event.t_ns, connection.qpn, event.status, event.detail)):
            return
        for part in self._connections[connection.qpn]:
            part.responder.error = True
            part.requester.flush(event.t_ns)
        status = event.status
        for other in self._lanes[connection.qpn]:
            for request in (*other.open, *other.held):
                number = connection.qpn + other.number
                connection.on_sent(
                    SendCompleted(event.t_ns, number, request.wr_id, status, len(request.data))
                )
            other.open.clear()
            other.held.clear()
            other.failed_at, other.due_ns, other.alive_due_ns = -1, None, None

    # Failover: ask the peer how many messages have arrived; post again the messages that have not arrived

    def _survivor(self, lane: Lane) -> int | None:
        """Return the index of the port to which the lane should move: the next port that is up.

        Leave out ports on which the lane's queue pair has failed. Return None if no port is left.
        """
        count, turn = len(self._numbers), lane.probes // (self.config.retry_count + 1)
        places = [(lane.failed_at + turn + step) % count for step in range(count)]
        left = [at for at in places if self.qps[lane.first + at].requester.error is None]
        return next((at for at in left if self.port_up[self._numbers[at]]), left[0] if left else None)

    def _probe(self, lane: Lane, now_ns: int) -> None:
        place = self._survivor(lane)
        if place is None or lane.probes > (self.config.retry_count + 1) * (len(self._numbers) - 1):
            qpn = lane.first + lane.failed_at
            self._end(lane, QpError(now_ns, qpn, Status.RETRY_EXCEEDED, "no port is left"))
            return
        via = self.qps[lane.first + place]
        lane.probes += 1
        lane.due_ns = now_ns + (self.config.timeout_ns or self.config.probe_delay_ns)
        self._send(via, READ_REQUEST, lane.failed_at, _READ.pack(lane.failed_at, 0, 8))

    def _on_read(self, qp: RoceQueuePair, body: memoryview, psn: int) -> None:
        """Answer a probe: close the failed queue pair, and report how many messages have arrived on it."""
        place, _, _ = _READ.unpack_from(body)
        if place >= len(self._numbers):
            self.drops.malformed += 1
            return
        responder = self.qps[self._lane_of[qp.qpn].first + place].responder
        responder.close()
        self._send(qp, READ_RESPONSE, psn, _ANSWER.pack(0, responder.messages))

    def _on_answer(self, qp: RoceQueuePair, body: memoryview, psn: int) -> None:
        """Post again the messages that have not arrived, on the queue pair that received this answer."""
        lane = self._lane_of[qp.qpn]
        _, arrived = _ANSWER.unpack_from(body)
        if lane.failed_at < 0 or psn != lane.failed_at or not lane.completed <= arrived <= lane.posted:
            return
        now_ns = self.now_ns
        self.failovers += 1
        for _ in range(arrived - lane.completed):
            request = lane.open.popleft()
            number = lane.connection.qpn + lane.number
            done = SendCompleted(now_ns, number, request.wr_id, Status.SUCCESS, len(request.data))
            lane.connection.on_sent(done)
        again, lane.open = lane.open, deque()
        again += lane.held
        lane.held = deque()
        lane.at, lane.failed_at, lane.due_ns = qp.qpn - lane.first, -1, None
        lane.posted = lane.completed = lane.carried.pop(lane.at, 0)
        for request in again:
            self._post(lane, request, now_ns)
        self._maybe_home(lane, now_ns)

    # Recovery of a failed port: alive messages test whether the port works again

    def _begin_attempt(self, lane: Lane, at_ns: int) -> None:
        lane.attempt += 1
        lane.alive_due_ns = at_ns
        lane.attempt_until_ns = at_ns + self.config.alive_timeout_ns
        lane.alive_sent = 0
        lane.answered = set()

    def _alive(self, lane: Lane, now_ns: int) -> None:
        """Send a batch of alive messages. If the recovery attempt is over, start the next attempt or stop."""
        assert lane.attempt_until_ns is not None
        if lane.failed_at == lane.home:
            # The peer has not answered the probe. It will close the home queue pair when the probe arrives.
            lane.alive_due_ns = now_ns + self.config.alive_interval_ns
            lane.attempt_until_ns += self.config.alive_interval_ns
            return
        if now_ns >= lane.attempt_until_ns:
            if lane.attempt >= self.config.recovery_attempts:
                lane.alive_due_ns = None
                return
            self._begin_attempt(lane, now_ns)
        home = self.qps[lane.first + lane.home]
        for _ in range(self.config.alive_batch):
            self._send(home, ALIVE, 0, _ALIVE.pack(0, lane.attempt, lane.alive_sent))
            lane.alive_sent += 1
        lane.alive_due_ns = now_ns + self.config.alive_interval_ns

    def _on_alive(self, qp: RoceQueuePair, body: memoryview) -> None:
        answer, attempt, number = _ALIVE.unpack_from(body)
        lane = self._lane_of[qp.qpn]
        if not answer:
            # Open the queue pair again: the peer's lane will return to it and start at the first PSN.
            if qp.responder.error and not lane.connection.failed:
                self._renew_responder(qp)
            self._send(qp, ALIVE, 0, _ALIVE.pack(1, attempt, number))
            return
        if lane.alive_due_ns is None or attempt != lane.attempt or number >= lane.alive_sent:
            return
        lane.answered.add(number)
        if len(lane.answered) >= self.config.alive_sequence:
            lane.alive_due_ns = None
            lane.home_is_back = True
            self._maybe_home(lane, self.now_ns)

    def _maybe_home(self, lane: Lane, now_ns: int) -> None:
        """Move a lane back to its home port, if it has no open messages on another port."""
        if not lane.home_is_back or lane.open or lane.failed_at >= 0:
            return
        self.recoveries += 1
        lane.home_is_back = False
        lane.carried[lane.at] = lane.completed
        lane.at, lane.moves = lane.home, 0
        lane.posted = lane.completed = 0
        self._renew_requester(self.qps[lane.first + lane.home])
        held, lane.held = lane.held, deque()
        for request in held:
            self._post(lane, request, now_ns)

    def _renew_requester(self, qp: RoceQueuePair) -> None:
        old, peer = qp.requester, self._peers[qp.qpn]
        qp.requester = Requester(qp.qpn, self._psns[qp.connection.qpn], self.config, self._emit)
        qp.requester.connect(peer.qpn, peer.attributes.mtu_bytes, peer.route, qp.path_ev)
        qp.requester.packets_sent = old.packets_sent
        qp.requester.packets_retransmitted = old.packets_retransmitted
        qp.requester.packets_lost, qp.requester.timeouts = old.packets_lost, old.timeouts
        qp.requester.bytes_acked = old.bytes_acked

    def _renew_responder(self, qp: RoceQueuePair) -> None:
        old, peer = qp.responder, self._peers[qp.qpn]
        qp.responder = Responder(
            qp.qpn, self.config, self.memory, self._emit, lambda: self.scheduler.answer(qp)
        )
        remote = peer.attributes
        qp.responder.connect(peer.qpn, remote.psn, remote.mtu_bytes, peer.route)
        qp.responder.packets_placed, qp.responder.bytes_placed = old.packets_placed, old.bytes_placed

    # Frames that belong to no queue pair

    def _send(self, via: RoceQueuePair, opcode: int, psn: int, body: bytes) -> None:
        peer = self._peers[via.qpn]
        head, crc = prefix(peer.route, self._tclass, UDP_LEN + BTH_LEN + len(body) + ICRC_LEN)
        middle = BTH_STRUCT.pack(opcode, 0, self.config.pkey, peer.qpn, psn) + body
        self._frames.append((peer.route.plane.port, seal(head, crc, middle)))

    def emit_operations(self, out: list[Outgoing], limit: int, free_ports: Collection[int] | None) -> bool:
        """Append probes and alive messages until `out` has `limit` frames. Return True if some are left."""
        for _ in range(len(self._frames)):
            if len(out) >= limit:
                break
            frame = self._frames.popleft()
            if free_ports is None or frame[0] in free_ports:
                out.append(frame)
            else:
                self._frames.append(frame)
        return bool(self._frames)

    def take(self, port: int, view: memoryview, flow: Flow) -> None:
        """Handle a frame whose headers before the BTH and whose ICRC are correct."""
        opcode, _, _, qpn, psn = BTH_STRUCT.unpack_from(view, flow.bth)
        form = {READ_REQUEST: _READ, READ_RESPONSE: _ANSWER, ALIVE: _ALIVE}.get(opcode)
        if form is None:
            super().take(port, view, flow)
            return
        qp = self.qps.get(qpn & 0xFFFFFF)
        body = view[flow.bth + BTH_LEN : len(view) - ICRC_LEN]
        if qp is None or not qp.connected:
            self.drops.unknown_qp += 1
        elif flow.src not in qp.peers:
            self.drops.wrong_source += 1
        elif len(body) != form.size:
            self.drops.malformed += 1
        else:
            self.port_states[port].received += 1
            if opcode == READ_REQUEST:
                self._on_read(qp, body, psn & 0xFFFFFF)
            elif opcode == READ_RESPONSE:
                self._on_answer(qp, body, psn & 0xFFFFFF)
            else:
                self._on_alive(qp, body)

    def operations_due_ns(self) -> int | None:
        """Return when the next probe or alive message must be sent; None: never."""
        dues = [
            due
            for lane in self._active.values()
            for due in (lane.due_ns, lane.alive_due_ns)
            if due is not None
        ]
        return min(dues, default=None)

    def handle_operations(self, now_ns: int) -> None:
        """Make the probes and alive messages that are due."""
        for lane in list(self._active.values()):
            if lane.due_ns is not None and lane.due_ns <= now_ns:
                self._probe(lane, now_ns)
            if lane.alive_due_ns is not None and lane.alive_due_ns <= now_ns:
                self._alive(lane, now_ns)
            if lane.due_ns is None and lane.alive_due_ns is None:
                self._active.pop(lane.first, None)

    def ev_counters(self, qpn: int) -> list[EvCounters]:
        """Return a snapshot of the paths in use, one for each lane."""
        used = {lane.first + lane.at - qpn for lane in self._lanes[qpn]}
        return [row for place, row in enumerate(super().ev_counters(qpn)) if place in used]
