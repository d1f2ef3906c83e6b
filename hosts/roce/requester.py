"""The sending half of a queue pair: packets in order over one path, and go-back-N.

All packets of a write have fixed PSNs, so to go back, the sender only lowers `next_psn`. It then sends the
lost packet and all later packets again [IBTA 9.7.5.1, 9.7.6]. The sender goes back after a NAK for a PSN
sequence error, and after the local ACK timeout. After an RNR NAK, it first waits as the NAK requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from mrclab.hosts.rdma.events import (
    Event,
    LossReason,
    PacketLost,
    QpError,
    Retransmitted,
    SendCompleted,
    Status,
)
from mrclab.hosts.rdma.frames import (
    BTH_ACK_REQUEST,
    BTH_STRUCT,
    ICRC_LEN,
    IMM_STRUCT,
    PSN_BITS,
    PSN_MASK,
    UDP_LEN,
    Outgoing,
    expand,
    seal_payload,
    traffic_class,
)
from mrclab.hosts.rdma.rtt import RttEstimator
from mrclab.hosts.roce.config import RoceConfig
from mrclab.hosts.roce.dcqcn import ReactionPoint
from mrclab.hosts.roce.wire import WRITE_STRUCT, NakCode, Opcode, Route, Syndrome, prefix, rnr_wait_ns

_OPCODES = {
    # (first packet, last packet): (opcode without immediate data, opcode with immediate data)
    (True, False): (int(Opcode.WRITE_FIRST), int(Opcode.WRITE_FIRST)),
    (False, False): (int(Opcode.WRITE_MIDDLE), int(Opcode.WRITE_MIDDLE)),
    (False, True): (int(Opcode.WRITE_LAST), int(Opcode.WRITE_LAST_IMM)),
    (True, True): (int(Opcode.WRITE_ONLY), int(Opcode.WRITE_ONLY_IMM)),
}
_FAILURES = {
    NakCode.INVALID_REQUEST: Status.REMOTE_INVALID_REQUEST_ERROR,
    NakCode.REMOTE_ACCESS_ERROR: Status.REMOTE_ACCESS_ERROR,
    NakCode.REMOTE_OPERATIONAL_ERROR: Status.REMOTE_OPERATION_ERROR,
}
_INITIAL_RTT_NS = 1_000_000


class WriteRequest:
    """One posted write and the PSNs of its packets."""

    __slots__ = ("data", "first_psn", "imm", "last_psn", "length", "rkey", "va", "wr_id")

    def __init__(
        self, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None, first_psn: int, mtu: int
    ) -> None:
        self.wr_id = wr_id
        self.data = data
        self.length = len(data)
        self.va = va
        self.rkey = rkey
        self.imm = imm
        self.first_psn = first_psn
        self.last_psn = first_psn + max(1, -(-self.length // mtu)) - 1


class Requester:
    """The sending half of one QP."""

    def __init__(self, qpn: int, first_psn: int, config: RoceConfig, emit: Callable[[Event], None]) -> None:
        self.qpn = qpn
        self._config = config
        self._emit = emit
        # PSNs start above 2^24. Otherwise `expand` could return a negative number for an old PSN.
        self.una = self.next_psn = self._posted_psn = self._high_psn = first_psn + (1 << PSN_BITS)
        """Oldest unacknowledged PSN; next PSN to send; first PSN of the next write; highest sent PSN + 1."""
        self._repeated_psn = 0
        """Packets with lower PSNs may have been sent twice, so they give no RTT sample."""
        self.limiter = None if config.dcqcn is None else ReactionPoint(config.dcqcn)
        self.rtt = RttEstimator(_INITIAL_RTT_NS)
        self.error: Status | None = None
        # connect() sets these fields.
        self._route: Route
        self._ev = 0
        self._remote_qpn = 0
        self._mtu = config.mtu_bytes
        self._window = 1

        self._tclass = traffic_class(config.dscp_data, ecn_capable=True)
        self._open: deque[WriteRequest] = deque()
        """Posted writes that are not complete, in order."""
        self._at = 0
        """Index in `_open` of the write that `next_psn` belongs to."""
        self._sent_ns: deque[int] = deque()
        """Time of the last transmission of each packet from `una` to `next_psn` - 1, ns."""
        self._heads: dict[int, tuple[bytes, int]] = {}
        self._deadline_ns: int | None = None
        self._rnr_until_ns: int | None = None
        self._retries = self._rnr_retries = 0
        self.packets_sent = self.packets_retransmitted = self.packets_lost = 0
        self.timeouts = self.naks_received = self.rnr_naks_received = self.acks_received = 0
        self.bytes_acked = self.bogus_received = 0

    def connect(self, remote_qpn: int, mtu_bytes: int, route: Route, ev: int) -> None:
        """Set the peer's queue pair and the route to it. `ev` identifies the path in events."""
        self._remote_qpn = remote_qpn
        self._mtu = min(mtu_bytes, self._config.mtu_bytes)
        self._window = max(1, self._config.window_bytes // self._config.qps // self._mtu)
        self._route = route
        self._ev = ev

    @property
    def port(self) -> int:
        """The NIC port of this QP."""
        return self._route.plane.port

    @property
    def inflight_packets(self) -> int:
        """Number of packets that are sent and not acknowledged."""
        return len(self._sent_ns)

    # Requests of the application

    def post(self, now_ns: int, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None) -> None:
        """Queue a write; `data` must stay unchanged until the request completes."""
        if self.error is not None:
            self._emit(SendCompleted(now_ns, self.qpn, wr_id, Status.FLUSHED, len(data)))
            return
        request = WriteRequest(wr_id, data, va, rkey, imm, self._posted_psn, self._mtu)
        self._posted_psn = request.last_psn + 1
        self._open.append(request)

    # Sending

    def has_data(self) -> bool:
        """Return whether there is a packet to send. The rate limit may still delay this packet."""
        return self.next_psn < self._posted_psn and self.next_psn - self.una < self._window

    def ready(self, now_ns: int) -> bool:
        """Return whether `emit_frames` would append a frame now, if the port is free."""
        if not self.has_data() or self._rnr_until_ns is not None:
            return False
        return self.limiter is None or self.limiter.may_send(now_ns)

    def emit_frames(self, now_ns: int, out: list[Outgoing], limit: int) -> int:
        """Append up to `limit` frames to `out`; return their number."""
        count = 0
        while count < limit and self.ready(now_ns):
            request = self._open[self._at]
            psn = self.next_psn
            frame = self._frame(request, psn)
            out.append((self.port, frame))
            count += 1
            if psn < self._high_psn:
                self.packets_retransmitted += 1
                self._emit(Retransmitted(now_ns, self.qpn, psn & PSN_MASK, self._ev, self._ev))
            else:
                self._high_psn = psn + 1
            self._sent_ns.append(now_ns)
            self.next_psn = psn + 1
            if psn == request.last_psn:
                self._at += 1
            if self.limiter is not None:
                self.limiter.on_sent(now_ns, len(frame))
        if count:
            self.packets_sent += count
            if self._deadline_ns is None:
                self._restart_timer(now_ns)
        return count

    def _frame(self, request: WriteRequest, psn: int) -> bytes:
        mtu = self._mtu
        offset = (psn - request.first_psn) * mtu
        length = min(mtu, request.length - offset)
        first, last = offset == 0, psn == request.last_psn
        plain, with_imm = _OPCODES[first, last]
        ask = last or psn % self._config.ack_interval == 0 or self._closes_window(psn)
        flags = (BTH_ACK_REQUEST << 24 if ask else 0) | psn & PSN_MASK
        pad = -length & 3
        opcode = plain if request.imm is None else with_imm
        if first:
            middle = WRITE_STRUCT.pack(
                opcode,
                pad << 4,
                self._config.pkey,
                self._remote_qpn,
                flags,
                request.va,
                request.rkey,
                request.length,
            )
        else:
            middle = BTH_STRUCT.pack(opcode, pad << 4, self._config.pkey, self._remote_qpn, flags)
        if last and request.imm is not None:
            middle += IMM_STRUCT.pack(request.imm)
        udp_length = UDP_LEN + len(middle) + length + pad + ICRC_LEN
        found = self._heads.get(udp_length)
        if found is None:
            found = self._heads[udp_length] = prefix(self._route, self._tclass, udp_length)
        head, crc = found
        payload: memoryview | bytes = request.data[offset : offset + length]
        if pad:
            payload = bytes(payload) + b"\0" * pad
        return seal_payload(head, crc, middle, payload)

    def _closes_window(self, psn: int) -> bool:
        """Return whether this packet fills the window."""
        return psn + 1 - self.una >= self._window

    # Answers of the peer

    def on_cnp(self, now_ns: int) -> None:
        """Lower the rate, because a CNP arrived."""
        if self.limiter is not None:
            self.limiter.on_cnp(now_ns)

    def on_answer(self, now_ns: int, wire_psn: int, kind: int, value: int) -> None:
        """Handle an ACK, NAK or RNR NAK; `kind` and `value` are the parts of its syndrome."""
        if self.error is not None:
            return
        psn = expand(wire_psn, self.una)
        accepted = psn + 1 if kind == Syndrome.ACK else psn
        if accepted > self._high_psn or kind not in (Syndrome.ACK, Syndrome.NAK, Syndrome.RNR_NAK):
            self.bogus_received += 1
            return
        if accepted < self.una:
            return
        if kind == Syndrome.ACK:
            self.acks_received += 1
            self._advance(now_ns, accepted)
            return
        if accepted == self._high_psn:
            # The NAK refuses a packet that was never sent.
            self.bogus_received += 1
            return
        self._advance(now_ns, accepted)
        if kind == Syndrome.RNR_NAK:
            self._on_rnr(now_ns, value)
            return
        self.naks_received += 1
        if value == NakCode.PSN_SEQUENCE_ERROR:
            self._retry(now_ns, LossReason.NACK)
        else:
            status = _FAILURES.get(NakCode(value)) if value <= 3 else None
            self.fail(now_ns, status or Status.REMOTE_OPERATION_ERROR, f"NAK {value} for PSN {wire_psn}")

    def _advance(self, now_ns: int, una: int) -> None:
        """Record that all PSNs below `una` have arrived."""
        if una <= self.una:
            return
        self._retries = self._rnr_retries = 0
        self._rnr_until_ns = None
        acked = una - self.una
        times = self._sent_ns
        sampled = None
        for _ in range(min(acked, len(times))):
            sampled = times.popleft()
        if una > self.next_psn:
            # The sender went back, but now an ACK shows that these packets have arrived. Skip them.
            self.next_psn = una
        elif sampled is not None and una > self._repeated_psn:
            self.rtt.sample(now_ns - sampled)
        self.una = una
        queue = self._open
        while queue and queue[0].last_psn < una:
            request = queue.popleft()
            self._at -= 1
            self.bytes_acked += request.length
            self._emit(SendCompleted(now_ns, self.qpn, request.wr_id, Status.SUCCESS, request.length))
        self._at = max(self._at, 0)
        self._seek()
        self._restart_timer(now_ns)

    def _seek(self) -> None:
        """Set `_at` to the write that `next_psn` belongs to."""
        queue = self._open
        if self._at < len(queue) and queue[self._at].first_psn > self.next_psn:
            self._at = 0
        while self._at < len(queue) and queue[self._at].last_psn < self.next_psn:
            self._at += 1

    def _restart_timer(self, now_ns: int) -> None:
        timeout = self._config.timeout_ns
        self._deadline_ns = now_ns + timeout if timeout is not None and self._sent_ns else None

    def _on_rnr(self, now_ns: int, code: int) -> None:
        self.rnr_naks_received += 1
        if self._config.rnr_retry < 7:
            if self._rnr_retries >= self._config.rnr_retry:
                self.fail(now_ns, Status.RNR_RETRY_EXCEEDED, "receiver not ready")
                return
            self._rnr_retries += 1
        self._go_back()
        self._rnr_until_ns = now_ns + rnr_wait_ns(code)
        self._deadline_ns = None

    def _retry(self, now_ns: int, reason: LossReason) -> None:
        if self._retries >= self._config.retry_count:
            self.fail(now_ns, Status.RETRY_EXCEEDED, f"no progress after {self._retries} retries")
            return
        self._retries += 1
        if self._sent_ns:
            self.packets_lost += 1
            self._emit(
                PacketLost(
                    now_ns,
                    self.qpn,
                    self.una & PSN_MASK,
                    self._ev,
                    self.port,
                    reason,
                    self._sent_ns[0],
                )
            )
        self._go_back()
        self._deadline_ns = None

    def _go_back(self) -> None:
        self._sent_ns.clear()
        self._repeated_psn = self._high_psn
        self.next_psn = self.una
        self._at = 0
        self._seek()

    # Timers

    def next_timer(self, now_ns: int, queued: bool) -> int | None:
        """Return when `handle_timer` must be called; None: never.

        If the queue pair is `queued`, it already waits for its port. Then it needs no timer for its rate
        limit. The returned time may be in the past.
        """
        if self.error is not None:
            return None
        if self._rnr_until_ns is not None:
            return self._rnr_until_ns
        due = self._deadline_ns
        if self.limiter is not None and not queued and self.has_data():
            again = self.limiter.next_send_ns(now_ns)
            if due is None or again < due:
                return again
        return due

    def handle_timer(self, now_ns: int) -> None:
        """Do the work whose time has come: a retry after a timeout, or the end of an RNR wait."""
        if self._rnr_until_ns is not None and self._rnr_until_ns <= now_ns:
            self._rnr_until_ns = None
        if self._deadline_ns is not None and self._deadline_ns <= now_ns:
            self.timeouts += 1
            self._retry(now_ns, LossReason.TIMEOUT)

    # Errors that end the queue pair

    def fail(self, now_ns: int, status: Status, detail: str) -> None:
        """Go to the error state. The oldest request ends with `status`; all other requests are flushed."""
        if self.error is None:
            self._end(now_ns, status, status)
            self._emit(QpError(now_ns, self.qpn, status, detail))

    def flush(self, now_ns: int) -> None:
        """Flush all requests in order, because another queue pair of the connection failed."""
        if self.error is None:
            self._end(now_ns, Status.FLUSHED, Status.FLUSHED)

    def _end(self, now_ns: int, error: Status, oldest: Status) -> None:
        self.error = error
        for status, request in zip(_then(oldest, Status.FLUSHED), self._open, strict=False):
            self._emit(SendCompleted(now_ns, self.qpn, request.wr_id, status, request.length))
        self._open.clear()
        self._sent_ns.clear()
        self._at = 0
        self.next_psn = self.una = self._posted_psn
        self._deadline_ns = self._rnr_until_ns = None


def _then(first: Status, others: Status) -> Iterator[Status]:
    yield first
    while True:
        yield others
