"""A queue pair of a program: shared-memory rings on one side, a queue pair of the MRC endpoint on the other.

The rules of verbs apply. Completions are in the order of posting. An unsignalled request has a completion
only if it fails. After a failure all later requests and all posted receives are flushed. A WRITE with
immediate consumes a posted receive. If no receive is posted, the queue pairs at both ends fail [API].
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.connection import QpAttributes
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.nic.routes import nic_addresses, paths_for
from mrclab.hosts.rdma.events import QpError, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.memory import MemoryRegion
from mrclab.hosts.service.recording import Recordings
from mrclab.hosts.service.shared_memory import (
    FLAGS,
    LIMITS,
    OPCODES,
    WORDS,
    CompletionRing,
    MemoryFaultError,
    RingError,
    WorkRings,
    record,
)
from mrclab.topologies import Fabric

RESET, INIT, RTR, RTS, ERR = 0, 1, 2, 3, 6
NEXT_STATES: Mapping[int, tuple[int, ...]] = {
    RESET: (RESET, INIT, ERR),
    INIT: (RESET, INIT, RTR, ERR),
    RTR: (RTS, ERR),
    RTS: (RTS, ERR),
    ERR: (ERR,),
}
"""The states that a program may choose, by the present state. A connected queue pair cannot be reset."""
STATUS_CODES: Mapping[Status, int] = {
    Status.SUCCESS: 0,
    Status.FLUSHED: 5,
    Status.REMOTE_INVALID_REQUEST_ERROR: 9,
    Status.REMOTE_ACCESS_ERROR: 10,
    Status.REMOTE_OPERATION_ERROR: 11,
    Status.RETRY_EXCEEDED: 12,
    Status.RNR_RETRY_EXCEEDED: 13,
}
LOC_LEN, LOC_QP_OP, LOC_PROT, WR_FLUSH = 1, 2, 4, 5
WC_WRITE, WC_RECV, WC_RECV_IMM = 1, 128, 129
WC_WITH_IMM = 2
CQ_ERR, QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR = 0, 1, 2, 3
EVENTS: Mapping[Status, int] = {
    Status.REMOTE_ACCESS_ERROR: QP_ACCESS_ERR,
    Status.REMOTE_INVALID_REQUEST_ERROR: QP_REQ_ERR,
    Status.REMOTE_OPERATION_ERROR: QP_FATAL,
}
"""The asynchronous event for each failure on the receiving side."""
HELD_BYTES = 64 << 20
"""Bytes of payload copies in a session from which on further requests wait. One message may exceed them."""
QP_HELD_BYTES = 1 << 20
"""Limit for the payload copies of one queue pair. More copies would not fit into the CPU's cache."""
MAX_TIMEOUT, MAX_LINEAR, MAX_EXPONENTIAL = 24, 7, 25
"""Limits for the ACK timer. 25 exponential retries mean retries without end [SPEC Table 7-1]."""
PER_TURN = 64
"""Largest number of requests that a queue pair passes on before the next queue pair is served."""
_SGE = record("sge")
MOST_INLINE, MOST_PIECES, MOST_BYTES = LIMITS["MAX_INLINE"], LIMITS["MAX_SGE"], LIMITS["MAX_MESSAGE"]
_SIGNALED, _INLINE, _WRITE_IMM = FLAGS["WORK_SIGNALED"], FLAGS["WORK_INLINE"], OPCODES["WORK_WRITE_IMM"]
_STATE = WORDS["QP_STATE"]


@dataclass(slots=True)
class Posted:
    """A send request that is not completed. ``status`` is 0, or an error code if the request has failed."""

    wr_id: int
    signaled: bool
    length: int
    status: int
    imm: bool = False
    posted_ns: int = 0
    """The time at which the request was taken, if requests are being recorded."""


@dataclass(slots=True)
class Copies:
    """The number of payload bytes that all queue pairs of a session hold as copies of posted writes."""

    held_bytes: int = 0


class ServiceQp:
    """One queue pair of a session."""

    def __init__(
        self,
        endpoint: Endpoint,
        profiles: NicProfiles,
        rings: WorkRings,
        cqs: tuple[CompletionRing, CompletionRing],
        read: Callable[[int, int, int], bytes],
        raise_event: Callable[[int, int], None],
        copies: Copies,
        *,
        sig_all: bool,
        cookie: int,
        regions: dict[int, MemoryRegion],
        recordings: Recordings,
    ) -> None:
        """Create the queue pair in the endpoint.

        ``cqs`` are the completion queues for sends and for receives. ``read(lkey, address, length)`` returns
        the program's bytes or raises MemoryFaultError. The peer may write to ``regions``. Completions carry
        the program's ``cookie``. ``raise_event(type, qpn)`` reports an asynchronous event. ``copies`` is
        shared by the whole session.
        """
        self._endpoint, self._profiles = endpoint, profiles
        self._ev_profile = 0
        self._cc_profile: int | None = None
        self.qpn = endpoint.create_qp(receives=True, refill=self._refill)
        self.rings = rings
        self.send_cq, self.recv_cq = cqs
        self._read = read
        self._raise_event = raise_event
        self._copies = copies
        self._sig_all = sig_all
        self._cookie = cookie
        self._regions = regions
        self.accept_writes(True)
        self._recordings = recordings
        self._peer = ("", 0)
        self._pending: deque[Posted] = deque()
        self._sent = self._received = self._passed = 0
        self._failing = self._blamed = False
        self.held_bytes = 0
        """Bytes of copies that the endpoint still needs, because the peer has not acknowledged them."""
        self._set_state(RESET)

    def _set_state(self, state: int) -> None:
        self.state = self.rings.memory.words[_STATE] = state

    def accept_writes(self, accepted: bool) -> None:
        """Let the peer write to the regions of the queue pair's domain, or to none."""
        self._endpoint.qps[self.qpn].responder.accept_writes_to(self._regions if accepted else {})

    def close(self) -> None:
        """Remove the queue pair."""
        self._hold(-self.held_bytes)
        self._profiles.forget(self.qpn)
        self._endpoint.destroy_qp(self.qpn)
        self.rings.memory.close()

    def modify(
        self, state: int, fabric: Fabric, host: str, peer: str | None, values: Mapping[str, int]
    ) -> None:
        """Change the state. Raise OSError with the reason as errno.

        For RTR, ``values`` has ``dest_qpn``, ``rq_psn`` and ``mtu_bytes`` (0: the NIC's MTU). For RTS,
        ``values`` has ``sq_psn``.
        """
        if state not in NEXT_STATES[self.state]:
            raise OSError(errno.EINVAL, "no such change of state")
        if state == RTR:
            if peer is None or peer == host:
                raise OSError(errno.EINVAL, "the GID names no other host of the fabric")
            self._connect(fabric, host, peer, values)
        elif state == RTS and self.state == RTR:
            self._endpoint.qps[self.qpn].begin_at(values["sq_psn"] & 0xFFFFFF)
        elif state == ERR:
            connected = self._endpoint.qps[self.qpn].connected
            self._fail(Status.FLUSHED, "the program chose the error state")
            if not connected:  # otherwise `on_error` flushes the posted receives
                self._pass_receives()
            return
        self._set_state(state)

    def _connect(self, fabric: Fabric, host: str, peer: str, values: Mapping[str, int]) -> None:
        config = self._endpoint.config
        remote = QpAttributes.of(
            config, values["dest_qpn"] & 0xFFFFFF, values["rq_psn"] & 0xFFFFFF, nic_addresses(fabric, peer)
        )
        mtu_bytes = values["mtu_bytes"]
        if mtu_bytes:
            remote = replace(remote, mtu_bytes=min(mtu_bytes, config.mtu_bytes))
        paths = paths_for(self._endpoint, fabric, host, peer)
        self._profiles.connect(self.qpn, remote, paths, self._ev_profile, self._cc_profile)
        self._peer = (peer, remote.qpn)

    def choose_profiles(self, ev_profile: int, cc_profile: int) -> None:
        """Choose profiles by number before the queue pair is connected; 0 is the NIC's default.

        Raise OSError if the queue pair is connected, or if a profile is not ONLINE.
        """
        known = ev_profile in self._profiles.evs and (not cc_profile or cc_profile in self._profiles.ccs)
        if self.state not in (RESET, INIT) or not known:
            raise OSError(errno.EINVAL, "no such profile is online, or the queue pair is connected")
        self._ev_profile, self._cc_profile = ev_profile, cc_profile or None

    def limit(self, mpr: int, max_wimm: int, timer: tuple[int, int, int] | None) -> None:
        """Limit the unacknowledged PSNs and the incomplete writes with immediate, and set the ACK timer.

        A limit of 0 means the NIC's limit. ``timer`` has the exponent, and the numbers of linear and of
        exponential retries. Raise OSError if the queue pair is not connected or a number is too large.
        """
        if self.state not in (RTR, RTS):
            raise OSError(errno.EINVAL, "limits belong to a connected queue pair")
        config = self._endpoint.config
        qp = self._endpoint.qps[self.qpn]
        qp.limit_sending(mpr or config.mpr, max_wimm or config.max_wimm)
        if timer is not None:
            exponent, linear, exponential = timer
            if exponent > MAX_TIMEOUT or linear > MAX_LINEAR or exponential > MAX_EXPONENTIAL:
                raise OSError(errno.EINVAL, "no such timer")
            qp.set_ack_timer(exponent, linear, exponential)

    def _fail(self, status: Status, detail: str) -> None:
        if self.state in (RTR, RTS):
            self._endpoint.fail_qp(self.qpn, status, detail, self._endpoint.now_ns)
        self._set_state(ERR)

    def take(self) -> int:
        """Pass posted requests to the endpoint while there is room for copies of their payload.

        In the error state, flush requests and receives. Return the number of requests and receives that were
        passed or flushed. Raise RingError for a bad ring.
        """
        flushed = self._pass_receives() if self.state == ERR else 0
        if self.state not in (RTS, ERR):
            return 0
        waiting = self.rings.posted()
        if len(self._pending) + waiting > self.rings.send_slots:
            raise RingError(f"more than {self.rings.send_slots} requests that are not completed")
        count = min(PER_TURN, waiting)
        for number in range(count):
            if self.held_bytes >= QP_HELD_BYTES or self._copies.held_bytes >= HELD_BYTES:
                return number
            self._post(self.rings.take())
        if self._pending and self._pending[0].status:
            self._settle()
        return count + flushed

    def _hold(self, length: int) -> None:
        self.held_bytes += length
        self._copies.held_bytes += length

    def _post(self, work: tuple[Any, ...]) -> None:
        wr_id, remote_addr, rkey, imm, opcode, flags, num_sge, length, data = work
        posted = Posted(wr_id, self._sig_all or bool(flags & _SIGNALED), 0, 0, opcode == _WRITE_IMM)
        if self._recordings.active:
            posted.posted_ns = self._recordings.now()
        self._pending.append(posted)
        if self._failing or self.state == ERR:
            posted.status = WR_FLUSH
            return
        try:
            if flags & _INLINE:
                payload = data[: min(length, MOST_INLINE)]
            else:
                payload = self._gather(data, min(num_sge, MOST_PIECES))
            posted.length = len(payload)
            value = imm if opcode == _WRITE_IMM else None
            if remote_addr + len(payload) > 1 << 64:
                posted.status = STATUS_CODES[Status.REMOTE_ACCESS_ERROR]  # the write ends above 2^64
            else:
                self._endpoint.post_write(self.qpn, wr_id, payload, remote_addr, rkey, value)
        except MemoryFaultError:
            posted.status = LOC_PROT
        except ValueError:
            posted.status = LOC_LEN
        self._failing = posted.status != 0
        if not self._failing:
            self._hold(posted.length)

    def _gather(self, data: bytes, count: int) -> bytes:
        pieces = [_SGE.unpack_from(data, at) for at in range(0, count * _SGE.size, _SGE.size)]
        if sum([length for _, length, _ in pieces]) > MOST_BYTES:
            raise ValueError("the message is too long")
        if count == 1:
            address, length, lkey = pieces[0]
            return self._read(lkey, address, length)
        return b"".join(self._read(lkey, address, length) for address, length, lkey in pieces)

    def on_sent(self, event: SendCompleted) -> None:
        """Complete the oldest request that was passed to the endpoint."""
        if self._pending and not self._pending[0].status:
            posted = self._pending.popleft()
            self._hold(-posted.length)
            self._complete(posted, STATUS_CODES[event.status])
        if self._pending and self._pending[0].status:
            self._settle()

    def _settle(self) -> None:
        """Complete requests that were never passed to the endpoint, if all earlier requests are complete."""
        while self._pending and (status := self._pending[0].status):
            if status != WR_FLUSH and self.state != ERR:
                self._blamed = True
                self._fail(Status.FLUSHED, "a request failed on this host")
            self._complete(self._pending.popleft(), status)

    def _complete(self, posted: Posted, status: int) -> None:
        self._sent = self._sent + 1 & 0xFFFFFFFF
        if status not in (0, WR_FLUSH):
            self._blamed = True
        if posted.posted_ns:
            self._recordings.sent(
                self.qpn,
                self._peer,
                posted.length,
                posted.posted_ns,
                status,
                imm=posted.imm,
                signaled=posted.signaled,
            )
        if status or posted.signaled:
            self._push(self.send_cq, posted.wr_id, status, WC_WRITE, posted.length, 0, 0, self._sent)

    def _push(
        self,
        cq: CompletionRing,
        wr_id: int,
        status: int,
        opcode: int,
        length: int,
        imm: int,
        flags: int,
        n: int,
    ) -> None:
        solicited = opcode == WC_RECV_IMM
        if cq.push(wr_id, self.qpn, status, opcode, length, imm, flags, n, self._cookie, solicited=solicited):
            return
        if self.state != ERR:
            self._fail(Status.FLUSHED, "the completion queue is overrun")
        if not cq.overrun_told:
            cq.overrun_told = True
            self._raise_event(CQ_ERR, cq.number)

    # The endpoint calls `_refill` when it has too few posted receives.

    def _refill(self) -> None:
        with suppress(RingError):  # the next turn finds the bad ring again, and ends the session
            self._pass_receives()

    def _pass_receives(self) -> int:
        """Pass posted receives to the endpoint, or flush them in the error state. Return their number."""
        before = self._passed
        connected = self._endpoint.qps[self.qpn].connected
        for _ in range(self.rings.receive_slots - (self._passed - self._received)):
            wr_id = self.rings.take_receive()
            if wr_id is None:
                break
            self._passed += 1
            if connected:
                self._endpoint.post_recv(self.qpn, wr_id)
            else:
                self._complete_receive(wr_id, WR_FLUSH, WC_RECV, 0, 0, 0)
        return self._passed - before

    def on_received(self, event: ReceiveCompleted) -> None:
        """Complete a receive, because a message consumed it or an error flushed it."""
        assert event.wr_id is not None
        if event.status is Status.SUCCESS:
            if self._recordings.active:
                self._recordings.received(self.qpn, event.length_bytes)
            self._complete_receive(event.wr_id, 0, WC_RECV_IMM, event.length_bytes, event.imm, WC_WITH_IMM)
        else:
            self._complete_receive(event.wr_id, WR_FLUSH, WC_RECV, 0, 0, 0)

    def _complete_receive(
        self, wr_id: int, status: int, opcode: int, length: int, imm: int, flags: int
    ) -> None:
        self._received += 1
        self._push(self.recv_cq, wr_id, status, opcode, length, imm, flags, self._received & 0xFFFFFFFF)

    def on_error(self, event: QpError) -> None:
        """Enter the error state: flush posted receives, and report a failure of the receiving side."""
        self._set_state(ERR)
        if not self._blamed and event.status in EVENTS:
            self._raise_event(EVENTS[event.status], self.qpn)
        self._pass_receives()
