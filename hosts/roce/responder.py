"""The receiving half of a queue pair: it accepts only the packet with the expected PSN.

A later packet is dropped, and one NAK is sent for the gap. A duplicate is dropped and acknowledged again
[IBTA 9.7.4.1, 9.7.5.2]. When a packet arrives, its answer is only noted. The answer is built when the driver
next requests frames, so that one ACK can answer several packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mrclab.hosts.rdma.events import Event, QpError, ReceiveCompleted, Status
from mrclab.hosts.rdma.frames import (
    BTH_ACK_REQUEST,
    BTH_LEN,
    BTH_STRUCT,
    ICRC_LEN,
    IMM_LEN,
    IMM_STRUCT,
    PSN_BITS,
    PSN_MASK,
    RETH_LEN,
    RETH_STRUCT,
    UDP_LEN,
    Outgoing,
    crc32,
    expand,
    seal,
    traffic_class,
)
from mrclab.hosts.rdma.memory import MemoryRegion, MemoryTable
from mrclab.hosts.rdma.scheduler import MOST_ANSWERS
from mrclab.hosts.roce.config import RoceConfig
from mrclab.hosts.roce.dcqcn import NotificationPoint
from mrclab.hosts.roce.wire import (
    ACK_STRUCT,
    BTH_BECN,
    CNP_RESERVED,
    NO_CREDIT_LIMIT,
    NakCode,
    Opcode,
    Route,
    Syndrome,
    prefix,
    syndrome,
)

_STARTS = (int(Opcode.WRITE_FIRST), int(Opcode.WRITE_ONLY), int(Opcode.WRITE_ONLY_IMM))
_ENDS = (
    *(int(Opcode.WRITE_LAST), int(Opcode.WRITE_LAST_IMM)),
    *(int(Opcode.WRITE_ONLY), int(Opcode.WRITE_ONLY_IMM)),
)
_WITH_IMM = (int(Opcode.WRITE_LAST_IMM), int(Opcode.WRITE_ONLY_IMM))
_ASKED = BTH_ACK_REQUEST << 24
_ACK_SYNDROME = syndrome(Syndrome.ACK, NO_CREDIT_LIMIT)
_ACK_LENGTH = UDP_LEN + ACK_STRUCT.size + ICRC_LEN
_CNP_LENGTH = UDP_LEN + BTH_LEN + len(CNP_RESERVED) + ICRC_LEN


class _Message:
    """The write that is arriving."""

    __slots__ = ("at", "length", "rkey", "va")

    def __init__(self, va: int, rkey: int, length: int) -> None:
        self.va = va
        self.rkey = rkey
        self.length = length
        self.at = 0
        """Number of bytes already placed."""


class _Refusal(NamedTuple):
    """The reason why a packet is refused."""

    code: NakCode
    detail: str


class Responder:
    """The receiving half of one QP."""

    def __init__(
        self,
        qpn: int,
        config: RoceConfig,
        memory: MemoryTable,
        emit: Callable[[Event], None],
        wake: Callable[[], None],
    ) -> None:
        self.qpn = qpn
        self._config = config
        self._regions = memory.regions
        self._emit = emit
        self._wake = wake
        """Function that is called when an answer is due."""
        self._tc_answer = traffic_class(config.dscp_data, ecn_capable=False)
        self._tc_cnp = traffic_class(config.dscp_cnp, ecn_capable=False)
        self._notification = None if config.dcqcn is None else NotificationPoint(config.dcqcn.cnp_interval_ns)
        self.credits = config.receive_credits
        """Number of posted receives that are left; None: always enough."""
        # connect() sets these fields.
        self._remote_qpn = 0
        self._mtu = config.mtu_bytes
        self._route: Route
        self._expected = 1 << PSN_BITS

        self.error = False
        self._message: _Message | None = None
        self._msn = self._messages = 0
        self._rqmsn = 0
        self._refused = False
        """A NAK was sent for the gap. Send no other NAK until the expected PSN arrives [IBTA 9.7.5.2.1]."""
        self._ack_due = False
        self._naks: deque[tuple[int, int]] = deque(maxlen=MOST_ANSWERS)
        """Syndrome and PSN of answers that cannot be merged into one answer."""
        self._cnp_due = False
        self.answering = False
        """If True, an answer is due, and the queue pair stays in the scheduler's list."""
        self.packets_placed = self.bytes_placed = self.duplicates = self.out_of_order = 0
        self.ce_received = self.cnps_sent = self.acks_sent = self.naks_sent = self.rnr_naks_sent = 0
        self.malformed = 0

    def connect(self, remote_qpn: int, first_psn: int, mtu_bytes: int, route: Route) -> None:
        """Set the peer's queue pair, its first PSN, and the route to it."""
        self._remote_qpn = remote_qpn
        self._expected = first_psn + (1 << PSN_BITS)
        self._mtu = min(mtu_bytes, self._config.mtu_bytes)
        self._route = route

    @property
    def messages(self) -> int:
        """Number of messages that have arrived completely."""
        return self._messages

    def close(self) -> None:
        """Accept no more packets. The peer sends an unfinished message again on another queue pair."""
        self.error = True
        if self._message is not None:
            self.bytes_placed -= self._message.at
            self._message = None

    # Arriving packets

    def on_data(
        self, now_ns: int, frame: memoryview, bth: int, end: int, ce: bool, fields: tuple[int, ...]
    ) -> None:
        """Handle a packet whose ICRC is correct.

        `bth` and `end` are the offsets of its BTH and its ICRC; `fields` are the fields of the BTH.
        """
        if self.error:
            return
        if ce:
            self.ce_received += 1
            if self._notification is not None and self._notification.on_marked(now_ns):
                self._cnp_due = True
                self._answer()
        opcode, second, _, _, last = fields
        psn = expand(last & PSN_MASK, self._expected)
        if psn != self._expected:
            self._on_other(psn)
            return
        refusal = self._take(now_ns, frame, bth + BTH_LEN, end - (second >> 4 & 3), opcode)
        if refusal is not None:
            self._fail(now_ns, refusal)
        elif self._expected != psn:
            self._refused = False
            if last & _ASKED:
                self._ack_due = True
                self._answer()

    def _on_other(self, psn: int) -> None:
        if psn < self._expected:
            self.duplicates += 1
            self._ack_due = True
            self._answer()
            return
        self.out_of_order += 1
        if not self._refused:
            self._refused = True
            self.naks_sent += 1
            self._nak(syndrome(Syndrome.NAK, NakCode.PSN_SEQUENCE_ERROR))

    def _take(self, now_ns: int, frame: memoryview, start: int, end: int, opcode: int) -> _Refusal | None:
        """Place the packet with the expected PSN and return None, or return why it is refused.

        If no receive is posted for the packet, send an RNR NAK and return None.
        """
        message = self._message
        starts, ends, with_imm = opcode in _STARTS, opcode in _ENDS, opcode in _WITH_IMM
        if starts != (message is None):
            return _Refusal(NakCode.INVALID_REQUEST, f"opcode {opcode:#04x} in the middle of the wrong thing")
        if message is None:
            if end - start < RETH_LEN:
                return _Refusal(NakCode.INVALID_REQUEST, "no room for a RETH")
            message = _Message(*RETH_STRUCT.unpack_from(frame, start))
            start += RETH_LEN
        imm = 0
        if with_imm:
            if end - start < IMM_LEN:
                return _Refusal(NakCode.INVALID_REQUEST, "no room for immediate data")
            (imm,) = IMM_STRUCT.unpack_from(frame, start)
            start += IMM_LEN
        size = end - start
        missing = message.length - message.at
        if size != (missing if ends else self._mtu) or size > self._mtu or (not ends and size >= missing):
            return _Refusal(NakCode.INVALID_REQUEST, f"{size} bytes where {missing} of the message are open")
        # Look up the region for each packet: the region may have been closed since the last packet.
        region = self._region(message)
        if region is None and message.length:
            detail = f"write of {message.length} B at {message.va:#x} with rkey {message.rkey:#x}"
            return _Refusal(NakCode.REMOTE_ACCESS_ERROR, detail)
        if with_imm and self.credits is not None:
            if self.credits == 0:
                self._refused = True
                self.rnr_naks_sent += 1
                self._nak(syndrome(Syndrome.RNR_NAK, self._config.rnr_timer))
                return None
            self.credits -= 1
        if size and region is not None:
            at = message.va - region.address + message.at
            region.view[at : at + size] = frame[start:end]
        message.at += size
        self._message = None if ends else message
        self.packets_placed += 1
        self.bytes_placed += size
        self._expected += 1
        if ends:
            self._msn = self._msn + 1 & 0xFFFFFF
            self._messages += 1
        if with_imm:
            self._emit(ReceiveCompleted(now_ns, self.qpn, imm, message.length, self._rqmsn))
            self._rqmsn = self._rqmsn + 1 & 0xFFFF
        return None

    def _region(self, message: _Message) -> MemoryRegion | None:
        """Return the region that a whole write fits into; None if the write is not allowed."""
        region = self._regions.get(message.rkey)
        if region is None or not region.writable:
            return None
        at = message.va - region.address
        return region if 0 <= at <= region.length - message.length else None

    def _fail(self, now_ns: int, refusal: _Refusal) -> None:
        self.error = True
        self.naks_sent += 1
        self._nak(syndrome(Syndrome.NAK, refusal.code))
        status = (
            Status.REMOTE_ACCESS_ERROR
            if refusal.code is NakCode.REMOTE_ACCESS_ERROR
            else Status.REMOTE_INVALID_REQUEST_ERROR
        )
        self._emit(QpError(now_ns, self.qpn, status, refusal.detail))

    # Answers

    def _answer(self) -> None:
        if not self.answering:
            self.answering = True
            self._wake()

    def _nak(self, value: int) -> None:
        # A NAK also acknowledges the earlier packets, so no ACK is needed.
        self._ack_due = False
        self._naks.append((value, self._expected))
        self._answer()

    def emit_frames(self, out: list[Outgoing], limit: int) -> None:
        """Append the answers that are due, up to about `limit` frames."""
        port = self._route.plane.port
        if self._cnp_due:
            self._cnp_due = False
            self.cnps_sent += 1
            out.append((port, self._cnp()))
        while self._naks and len(out) < limit:
            out.append((port, self._ack(*self._naks.popleft())))
        if self._ack_due and len(out) < limit:
            self._ack_due = False
            self.acks_sent += 1
            out.append((port, self._ack(_ACK_SYNDROME, self._expected - 1)))
        self.answering = self._ack_due or bool(self._naks)

    def _ack(self, value: int, psn: int) -> bytes:
        middle = ACK_STRUCT.pack(
            int(Opcode.ACKNOWLEDGE),
            0,
            self._config.pkey,
            self._remote_qpn,
            psn & PSN_MASK,
            value << 24 | self._msn,
        )
        head, crc = prefix(self._route, self._tc_answer, _ACK_LENGTH)
        return seal(head, crc, middle)

    def _cnp(self) -> bytes:
        head, crc = prefix(self._route, self._tc_cnp, _CNP_LENGTH)
        # The ICRC does not cover the byte with BECN, so the ICRC is computed with 0 in this byte.
        fields = (int(Opcode.CNP), 0, self._config.pkey)
        plain = BTH_STRUCT.pack(*fields, self._remote_qpn, 0) + CNP_RESERVED
        marked = BTH_STRUCT.pack(*fields, BTH_BECN << 24 | self._remote_qpn, 0) + CNP_RESERVED
        return b"".join((head, marked, crc32(plain, crc).to_bytes(4, "little")))
