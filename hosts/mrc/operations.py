"""Endpoint operations: requests that belong to no connection and are never repeated [SPEC §6.5].

An EV_PROBE asks for an answer over one EV. A PORT_STATUS_UPDATE reports which ports of the sender are up. The
NIC sends these requests for its queue pairs. A controller can send these requests to any NIC, over any EV and
in any traffic class. The controller gets the answers as events.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum

from mrclab.hosts.mrc.codec import PacketBuilder
from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.events import EndpointAnswered, EvProbed
from mrclab.hosts.mrc.evs.ev import Ev, Plane
from mrclab.hosts.mrc.queue_pair import MrcQueuePair
from mrclab.hosts.mrc.wire import (
    ENDPOINT_QPN,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    Opcode,
    timestamp,
    without_hold,
)
from mrclab.hosts.rdma.events import Drops, Event
from mrclab.hosts.rdma.frames import Buffer, Flow, Outgoing, WireError, traffic_class
from mrclab.hosts.rdma.paths import Path, PlanePaths
from mrclab.hosts.rdma.scheduler import MOST_ANSWERS


class Purpose(Enum):
    """Why a request was sent."""

    USER = "user"
    """The user wants the RTT of an EV."""
    REVERSE = "reverse"
    """The endpoint checks an EV that it may use for answers [P1 §2.4]."""
    CONTROLLER = "controller"
    """A controller asks a NIC, with or without a queue pair to it."""
    PORTS = "ports"
    """The endpoint reports the state of its ports to the peer [SPEC §7.4.8]."""


class Request:
    """One request that waits for its response."""

    __slots__ = ("attempt", "ev", "number", "op", "peers", "purpose", "qp", "sent_ns")

    def __init__(
        self,
        purpose: Purpose,
        qp: MrcQueuePair | None,
        ev: Ev,
        sent_ns: int,
        attempt: int = 1,
        op: EndpointOp = EndpointOp.EV_PROBE,
    ) -> None:
        self.purpose = purpose
        self.qp = qp
        self.ev = ev
        self.sent_ns = sent_ns
        self.attempt = attempt
        self.op = op
        self.peers = frozenset((ev.plane.paths.dst,)) if qp is None else qp.peers
        """The addresses from which the response may come."""
        self.number = 0
        """The request's number among all requests of the NIC. The lower 16 bits are the request's id."""


WayBack = Callable[[bytes, int, int], tuple[PlanePaths, Path] | None]
"""A function that returns the path of an answer; None: there is no path. The arguments are the address of the
NIC that asks, the local port and the EV of the request."""


class Requests:
    """Requests that wait for responses, by id."""

    _LIMIT = 4096

    def __init__(self, timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self._waiting: dict[int, Request] = {}
        self._last_number = 0
        self._due: list[tuple[int, int]] = []
        """Heap of the times at which requests time out, with their numbers. Some are answered already."""

    def add(self, request: Request, timeout_ns: int | None = None) -> int:
        """Store a request and return its id, 16 bits. If `timeout_ns` is None, use the endpoint's timeout."""
        self._last_number += 1
        request.number = self._last_number
        request_id = request.number & 0xFFFF
        self._waiting.pop(request_id, None)
        if len(self._waiting) >= self._LIMIT:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[request_id] = request
        due_ns = request.sent_ns + (self._timeout_ns if timeout_ns is None else timeout_ns)
        heapq.heappush(self._due, (due_ns, request.number))
        return request_id

    def waiting(self, request_id: int) -> Request | None:
        """Return the waiting request that has the id of a response; None if there is none."""
        return self._waiting.get(request_id)

    def answered(self, request_id: int) -> None:
        """Remove a request."""
        self._waiting.pop(request_id, None)

    def forget_updates(self, peers: frozenset[bytes]) -> None:
        """Remove all port updates for a peer: one answer is enough, and a new update replaces all others."""
        for number, request in list(self._waiting.items()):
            if request.purpose is Purpose.PORTS and request.peers == peers:
                del self._waiting[number]

    def due_ns(self) -> int | None:
        """Return when the next request times out."""
        while self._due:
            due_ns, number = self._due[0]
            request = self._waiting.get(number & 0xFFFF)
            if request is not None and request.number == number:
                return due_ns
            heapq.heappop(self._due)
        return None

    def expired(self, now_ns: int) -> list[tuple[int, Request]]:
        """Remove the requests that have timed out, and return them."""
        late: list[tuple[int, Request]] = []
        while (due_ns := self.due_ns()) is not None and due_ns <= now_ns:
            request_id = heapq.heappop(self._due)[1] & 0xFFFF
            late.append((request_id, self._waiting.pop(request_id)))
        return late


class Operations:
    """The endpoint operations of one NIC: its requests to peers, and its answers to the peers' requests."""

    def __init__(
        self,
        config: MrcConfig,
        builder: PacketBuilder,
        rng: random.Random,
        emit: Callable[[Event], None],
        drops: Drops,
    ) -> None:
        self._config = config
        self._drops = drops
        self.way_back: WayBack | None = None
        """Returns the path to a NIC without a queue pair; None: such NICs get no answer."""
        self.on_update: Callable[[int, int, int, int, Sequence[MrcQueuePair]], None]
        """Handles a port status of a peer: `PortStatus.on_update`."""
        self._builder = builder
        self._rng = rng
        self._emit = emit
        self._requests = Requests(config.endpoint_timeout_ns)
        self._frames: deque[Outgoing] = deque()
        self.waiting = False
        """True: there are frames to send or requests to answer."""
        self._reverse_due: dict[frozenset[bytes], int] = {}
        """Time of the next probe that checks an EV for answers, by peer."""
        self.port_mask = 0
        """Mask of the local ports that are up, as in a PORT_STATUS_UPDATE; `PortStatus` sets this mask."""
        self.told: set[frozenset[bytes]] = set()
        """Peers that have answered the last announcement of ports."""
        self._first_bit = config.reading.port_mask_first_bit
        self._service_time = config.reading.service_time
        self._answers: deque[tuple[Ev, int, int, int, int]] = deque(maxlen=MOST_ANSWERS)
        """Requests to answer: EV, request id, operation, timestamp and time of arrival."""

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> None:
        """Append requests, then answers, until `out` holds `limit` frames. Frames for busy ports wait."""
        for _ in range(len(self._frames)):
            if len(out) >= limit:
                return
            frame = self._frames.popleft()
            if free_ports is None or frame[0] in free_ports:
                out.append(frame)
            else:
                self._frames.append(frame)
        for _ in range(len(self._answers)):
            if len(out) >= limit:
                return
            answer = self._answers.popleft()
            ev, number, op, stamp, arrival_ns = answer
            if free_ports is None or ev.port in free_ports:
                if self._service_time:
                    stamp += timestamp(now_ns) - timestamp(arrival_ns)
                extension = EndpointResponse(op, stamp).pack()
                out.append(self._frame(ev, Opcode.ENDPOINT_RESPONSE, number, extension))
            else:
                self._answers.append(answer)
        self.waiting = bool(self._frames or self._answers)

    def _frame(self, ev: Ev, opcode: Opcode, request_id: int, extension: bytes) -> Outgoing:
        return ev.port, self._builder.control(ev, int(opcode), ENDPOINT_QPN, request_id, extension)

    def _ask(self, request: Request, mask: int, tclass: int, timeout_ns: int | None = None) -> int:
        number, ev = self._requests.add(request, timeout_ns), request.ev
        body = EndpointRequest(request.op, mask, timestamp(request.sent_ns)).pack()
        opcode = int(Opcode.ENDPOINT_REQUEST)
        self._frames.append((ev.port, self._builder.probe(ev, tclass, opcode, ENDPOINT_QPN, number, body)))
        self.waiting = True
        return number

    def _ask_peer(self, request: Request, timeout_ns: int | None = None) -> int:
        mask = self.port_mask << self._first_bit
        return self._ask(request, mask, self._builder.tc_control, timeout_ns)

    def request(
        self,
        now_ns: int,
        op: EndpointOp,
        plane: PlanePaths,
        path: Path,
        dscp: int | None = None,
        port_status_mask: int | None = None,
    ) -> int:
        """Send a request to a NIC over one path; return the id that event `EndpointAnswered` will have.

        If `dscp` is None, use the DSCP of control packets. If `port_status_mask` is None, send the present
        state of the ports.
        """
        ev = Ev(Plane(plane), path, {})
        if dscp is None:
            tclass = self._builder.tc_control
        elif 0 <= dscp < 64:
            tclass = traffic_class(dscp, ecn_capable=False)
        else:
            raise ValueError(f"a DSCP has 6 bits, not {dscp}")
        mask = self.port_mask << self._first_bit if port_status_mask is None else port_status_mask
        if mask < 0 or mask >> 32:
            raise ValueError(f"a port status has 32 bits, not {mask:#x}")
        return self._ask(Request(Purpose.CONTROLLER, None, ev, now_ns, 1, op), mask, tclass)

    def take(
        self,
        now_ns: int,
        port: int,
        flow: Flow,
        request_id: int,
        body: Buffer,
        start: int,
        peers: Sequence[MrcQueuePair],
        *,
        is_response: bool,
    ) -> None:
        """Handle a request or a response of another NIC. `peers` are the queue pairs connected to that NIC.

        If `peers` is empty, a port status is answered and has no other effect.
        """
        try:
            if is_response:
                response = EndpointResponse.unpack(body, start)
                self._on_response(now_ns, request_id, response, flow.src, port)
                return
            request = EndpointRequest.unpack(body, start)
        except WireError:
            self._drops.malformed += 1
            return
        if request.op == EndpointOp.PORT_STATUS_UPDATE:
            mask = request.port_status_mask >> self._first_bit
            if not mask >> port & 1:
                # The update arrived on a port that it claims to be down, so the update is wrong.
                self._drops.contradictory += 1
                return
            if peers:
                self.on_update(now_ns, mask, request.tx_timestamp, request_id, peers)
        ev: Ev | None = None
        if peers:
            evs = peers[0].evs
            evs.now_ns = now_ns
            ev = evs.reverse(flow.ev, port)
        else:
            way = None if self.way_back is None else self.way_back(flow.src, port, flow.ev)
            if way is None:
                self._drops.wrong_source += 1
            else:
                ev = Ev(Plane(way[0]), way[1], {})
        if ev is not None:
            self._answers.append((ev, request_id, request.op, request.tx_timestamp, now_ns))
            self.waiting = True

    def probe_ev(self, now_ns: int, qp: MrcQueuePair, ev: int, timeout_ns: int | None = None) -> int:
        """Send the peer a probe over this EV [SPEC §7.4.7]; return the id that event `EvProbed` will have.

        If `timeout_ns` is None, use the endpoint's timeout.
        """
        return self._ask_peer(Request(Purpose.USER, qp, qp.evs.by_value[ev], now_ns), timeout_ns)

    def announce_ports(self, now_ns: int, qp: MrcQueuePair, attempt: int = 1) -> None:
        """Send the peer the state of the local ports [SPEC §7.4.8].

        Send one copy over each plane, because a plane may be broken, and a request is never repeated.
        """
        self.told.discard(qp.peers)
        self._requests.forget_updates(qp.peers)
        for plane in qp.evs.planes:
            candidates = plane.candidates() if plane.up else []
            if candidates:
                ev = self._rng.choice(candidates)
                update = EndpointOp.PORT_STATUS_UPDATE
                self._ask_peer(Request(Purpose.PORTS, qp, ev, now_ns, attempt, update))

    def refresh_reverse(self, now_ns: int, qp: MrcQueuePair) -> None:
        """If a probe is due, probe a random EV. If the peer answers, this end may use the EV for answers.

        A sender of data needs no probe: the acknowledgements of its data show which EVs work.
        """
        if now_ns < qp.reverse_due_ns:
            return
        qp.reverse_due_ns = self._reverse_due.get(qp.peers, 0)
        if now_ns < qp.reverse_due_ns:
            return
        requester = qp.requester
        wait = max(requester.recovery.rtt.floor_ns, self._config.reverse_probe_min_ns)
        self._reverse_due[qp.peers] = qp.reverse_due_ns = now_ns + wait
        if requester.idle:
            ev = qp.evs.pick_aside()
            if ev is not None:
                self._ask_peer(Request(Purpose.REVERSE, qp, ev, now_ns))

    def _on_response(
        self, now_ns: int, number: int, response: EndpointResponse, source: bytes, port: int
    ) -> None:
        request = self._requests.waiting(number)
        if request is None or source not in request.peers:
            self._drops.wrong_source += 1
            return
        self._requests.answered(number)
        purpose, qp, ev = request.purpose, request.qp, request.ev
        rtt_ns = now_ns - request.sent_ns
        if self._service_time:
            rtt_ns = without_hold(rtt_ns, request.sent_ns, response.tx_timestamp)
        if purpose is Purpose.PORTS:
            self.told.add(request.peers)
            self._requests.forget_updates(request.peers)
        if purpose is Purpose.CONTROLLER:
            self._emit(
                EndpointAnswered(now_ns, ENDPOINT_QPN, number, request.op, port, rtt_ns, self._service_time)
            )
        if qp is None or not qp.connected:
            return
        qp.evs.prove(now_ns, ev)
        if purpose is Purpose.USER:
            self._emit(EvProbed(now_ns, qp.qpn, number, ev.value, ev.port, rtt_ns))

    def due_ns(self) -> int | None:
        """Return when the next request times out."""
        return self._requests.due_ns()

    def expire(self, now_ns: int) -> list[Request]:
        """Remove the requests that have timed out; return each peer's last port update among these requests.

        The peer needs a port update even if the QP for which the update was sent has been destroyed.
        """
        updates: dict[frozenset[bytes], Request] = {}
        for number, request in self._requests.expired(now_ns):
            purpose, qp, ev = request.purpose, request.qp, request.ev
            if purpose is Purpose.PORTS:
                updates[request.peers] = request
            elif purpose is Purpose.CONTROLLER:
                self._emit(
                    EndpointAnswered(
                        now_ns, ENDPOINT_QPN, number, request.op, ev.port, None, self._service_time
                    )
                )
            elif purpose is Purpose.USER and qp is not None and qp.connected:
                self._emit(EvProbed(now_ns, qp.qpn, number, ev.value, ev.port, None))
        return list(updates.values())
