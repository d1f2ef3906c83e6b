"""MRC headers bit by bit: the fields of each header, how to write and how to read it.

Layouts follow the tables of the MRC specification, 1.0 (sections 6.2.2, 7.3, 7.5.5, 7.5.6). The authors of
mrclab did not have the specification, and took these tables from independent implementations. All integers
are big endian. Every `unpack` takes a buffer and an offset. If the buffer is too short, `unpack` raises
`WireError`. It raises no other error.

The `Struct` objects are public, because the codec uses them to read or write several headers with one call.
The dataclasses are for rare headers, and explain the fields.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mrclab.hosts.rdma.frames import BTH_ACK_REQUEST, BTH_STRUCT, IMM_STRUCT, RETH_STRUCT, Buffer, unpack

METH_LEN: Final = 4
TSETH_LEN: Final = 4


class Opcode(IntEnum):
    """BTH opcodes of MRC: class 0b110 [SPEC §6.2.2]."""

    WRITE_FIRST = 0xC6
    WRITE_MIDDLE = 0xC7
    WRITE_LAST = 0xC8
    WRITE_LAST_IMM = 0xC9
    WRITE_ONLY = 0xCA
    WRITE_ONLY_IMM = 0xCB
    ACKNOWLEDGE = 0xD1
    ENDPOINT_REQUEST = 0xD8
    ENDPOINT_RESPONSE = 0xD9
    SACK = 0xDC
    NACK = 0xDD
    PROBE_REQUEST = 0xDE


FIRST_WRITE_OPCODE: Final = Opcode.WRITE_FIRST.value
LAST_WRITE_OPCODE: Final = Opcode.WRITE_ONLY_IMM.value

ENDPOINT_QPN: Final = 2
"""Destination QP of endpoint operations, which belong to no connection [SPEC §6.5]."""

# Bits of byte 8 of the BTH.
BTH_RETRANSMISSION: Final = 0x20
BTH_TIMESTAMP: Final = 0x10


class EvMark(IntEnum):
    """The M field of a SACK: an instruction for the sender about the EV [SPEC Table 7-12]."""

    NONE = 0
    SKIP_ONCE = 1
    ALWAYS_SKIP = 2


class NackReason(IntEnum):
    """Why a data packet was refused [SPEC Table 7-3]."""

    TRIMMED = 0x01
    TRIMMED_LASTHOP = 0x02
    NO_BITMAP = 0x06
    NO_PKT_BUFFER = 0x07
    NO_RESOURCE = 0x0A
    PSN_OOR_WINDOW = 0x0B
    UNEXP_EVENT = 0x19
    """Fatal: the QP goes to its error state."""


class EndpointOp(IntEnum):
    """Operations between endpoints rather than queue pairs [SPEC §7.4.7, §7.4.8]."""

    PORT_STATUS_UPDATE = 0
    EV_PROBE = 1


# Each `Struct` covers several headers in one call. Each field costs time, so adjacent short fields are read
# as one word.
DATA_STRUCT: Final = struct.Struct(">IIIIQII")
"""BTH (opcode to P_Key, QPN, flags and PSN), METH, RETH."""
DATA_TS_STRUCT: Final = struct.Struct(">IIIIIQII")
"""BTH, METH, TSETH, RETH."""
SACK_STRUCT: Final = struct.Struct(">IIIHhIIIHhQII")
"""BTH, SETH, CC_STATE. Fields in one word: both context ids; cc_type and mpr; timestamp and ooo_count."""
SETH_STRUCT: Final = struct.Struct(">HhIHHIBBhQHHI")
"""SETH and CC_STATE, 36 bytes."""
NETH_STRUCT: Final = struct.Struct(">HBBIHHIBBH")
PETH_STRUCT: Final = struct.Struct(">HBBHHHHHH")
ERTH_STRUCT: Final = struct.Struct(">HBBIIHH")
EETH_STRUCT: Final = struct.Struct(">H26xH6x")

SETH_MARK_SHIFT: Final = 5
SETH_PROBE_REPLY: Final = 0x0002
TSETH_FTYPE: Final = 1
CC_TYPE_SACK: Final = 0
"""The type of CC_STATE in a SACK. Receivers do not check the type, because no source has another type."""
CC_TYPE_NACK: Final = 2
RCVD_UNIT_BYTES: Final = 256
"""Unit of rcvd_bytes in CC_STATE."""
TIMESTAMP_UNIT_NS: Final = 128


def timestamp(now_ns: int) -> int:
    """Return the 16-bit TSETH timestamp of a time: units of 128 ns, tsr = 0 [SPEC Table 6-7]."""
    return (now_ns // TIMESTAMP_UNIT_NS) & 0xFFFF


def without_hold(rtt_ns: int, sent_ns: int, echo: int) -> int:
    """Return an RTT minus the time between the packet's arrival and the responder's answer.

    The responder has added that time (up to 8.4 ms) to the timestamp `echo` that it returned. If the time is
    longer than the RTT, it is wrong and is ignored.
    """
    hold_ns = (echo - timestamp(sent_ns) & 0xFFFF) * TIMESTAMP_UNIT_NS
    return rtt_ns - hold_ns if hold_ns <= rtt_ns else rtt_ns


@dataclass(frozen=True, slots=True)
class Bth:
    """Base transport header, 12 bytes [SPEC §6.2.2]."""

    opcode: int
    dest_qpn: int
    psn: int
    ack_request: bool = False
    retransmission: bool = False
    timestamp: bool = False
    pad_count: int = 0
    pkey: int = 0xFFFF
    solicited: bool = False
    migration: bool = False

    def pack(self) -> bytes:
        """Return the header's bytes."""
        flags = (
            (BTH_ACK_REQUEST if self.ack_request else 0)
            | (BTH_RETRANSMISSION if self.retransmission else 0)
            | (BTH_TIMESTAMP if self.timestamp else 0)
        )
        second = (0x80 if self.migration else 0) | (0x40 if self.solicited else 0) | (self.pad_count & 3) << 4
        return BTH_STRUCT.pack(
            self.opcode, second, self.pkey, self.dest_qpn & 0xFFFFFF, flags << 24 | self.psn & 0xFFFFFF
        )

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Bth:
        """Read the header at `offset`."""
        opcode, second, pkey, qpn, last = unpack(BTH_STRUCT, buffer, offset)
        flags = last >> 24
        return cls(
            opcode=opcode,
            dest_qpn=qpn & 0xFFFFFF,
            psn=last & 0xFFFFFF,
            ack_request=bool(flags & BTH_ACK_REQUEST),
            retransmission=bool(flags & BTH_RETRANSMISSION),
            timestamp=bool(flags & BTH_TIMESTAMP),
            pad_count=second >> 4 & 3,
            pkey=pkey,
            solicited=bool(second & 0x40),
            migration=bool(second & 0x80),
        )


_METH: Final = struct.Struct(">HH")
_TSETH: Final = struct.Struct(">HH")


@dataclass(frozen=True, slots=True)
class Meth:
    """Message header, 4 bytes [SPEC Table 6-8].

    `msn` numbers all messages. `rqmsn` numbers only the messages that consume a receive.
    """

    rqmsn: int
    msn: int

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return _METH.pack(self.rqmsn & 0xFFFF, self.msn & 0xFFFF)

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Meth:
        """Read the header at `offset`."""
        return cls(*unpack(_METH, buffer, offset))


@dataclass(frozen=True, slots=True)
class Tseth:
    """Transmit timestamp, 4 bytes, present when BTH.ts is set [SPEC Table 6-6]."""

    tx_timestamp: int
    tsr: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return _TSETH.pack(self.tx_timestamp & 0xFFFF, (self.tsr & 1) << 15 | TSETH_FTYPE)

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Tseth:
        """Read the header at `offset`."""
        stamp, rest = unpack(_TSETH, buffer, offset)
        return cls(stamp, rest >> 15)


@dataclass(frozen=True, slots=True)
class Reth:
    """RDMA header, 16 bytes, in every data packet: the address of this packet's own payload [P1 §2.1]."""

    virtual_address: int
    rkey: int
    dma_length: int
    """Length of the whole message, in bytes."""

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return RETH_STRUCT.pack(self.virtual_address & (1 << 64) - 1, self.rkey & 0xFFFFFFFF, self.dma_length)

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Reth:
        """Read the header at `offset`."""
        return cls(*unpack(RETH_STRUCT, buffer, offset))


SYNDROME_ACK: Final = 0x1F
"""A positive acknowledgement; its credit field is constant."""


@dataclass(frozen=True, slots=True)
class Aeth:
    """Transport ACK or NAK, 4 bytes [SPEC §6.2.2]."""

    msn: int
    """Messages that the responder has completed so far, modulo 2^24."""
    syndrome: int = SYNDROME_ACK

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return IMM_STRUCT.pack(self.syndrome << 24 | self.msn & 0xFFFFFF)

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Aeth:
        """Read the header at `offset`."""
        (word,) = unpack(IMM_STRUCT, buffer, offset)
        return cls(word & 0xFFFFFF, word >> 24)


@dataclass(frozen=True, slots=True)
class Sack:
    """SETH and CC_STATE, 36 bytes [SPEC Tables 7-12 to 7-15]."""

    cack_psn: int
    """All PSNs up to and including this one have arrived."""
    entropy: int
    """EV of the packet that triggered this SACK."""
    ack_psn_offset: int = 0
    """PSN of the triggering packet minus cack_psn. With `probe_reply`: the probe id modulo 2^16."""
    mark: int = EvMark.NONE
    probe_reply: bool = False
    sack_offset: int = 1
    bitmap: int = 0
    """Bit i set: PSN cack_psn + sack_offset + i has arrived."""
    spdcid: int = 0
    dpdcid: int = 0
    cc_type: int = CC_TYPE_SACK
    cc_flags: int = 0
    mpr: int = 0
    """Receive window in units of 128 PSNs; 0: the receive window never changes."""
    tx_timestamp: int = 0
    ooo_count: int = 0
    restore_cwnd: bool = False
    rcv_cwnd_pen: int = 0
    rcvd_units: int = 0
    """Bytes received on this QP in units of RCVD_UNIT_BYTES, rounded up, modulo 2^24."""

    def pack(self) -> bytes:
        """Return the header's bytes."""
        offset = self.ack_psn_offset & 0xFFFF
        return SETH_STRUCT.pack(
            self.mark << SETH_MARK_SHIFT | (SETH_PROBE_REPLY if self.probe_reply else 0),
            offset - 0x10000 if offset & 0x8000 else offset,
            self.entropy,
            self.spdcid,
            self.dpdcid,
            self.cack_psn & 0xFFFFFF,
            self.cc_type << 4 | self.cc_flags & 15,
            self.mpr,
            self.sack_offset,
            self.bitmap,
            self.tx_timestamp & 0xFFFF,
            self.ooo_count & 0x7FFF,
            (0x80 if self.restore_cwnd else 0) << 24
            | (self.rcv_cwnd_pen & 0x7F) << 24
            | self.rcvd_units & 0xFFFFFF,
        )

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Sack:
        """Read the headers at `offset`."""
        head, ack, entropy, spdc, dpdc, cack, cc, mpr, base, bitmap, stamp, ooo, tail = unpack(
            SETH_STRUCT, buffer, offset
        )
        return cls(
            cack_psn=cack & 0xFFFFFF,
            entropy=entropy,
            ack_psn_offset=ack,
            mark=head >> SETH_MARK_SHIFT & 3,
            probe_reply=bool(head & SETH_PROBE_REPLY),
            sack_offset=base,
            bitmap=bitmap,
            spdcid=spdc,
            dpdcid=dpdc,
            cc_type=cc >> 4,
            cc_flags=cc & 15,
            mpr=mpr,
            tx_timestamp=stamp,
            ooo_count=ooo & 0x7FFF,
            restore_cwnd=bool(tail >> 31),
            rcv_cwnd_pen=tail >> 24 & 0x7F,
            rcvd_units=tail & 0xFFFFFF,
        )


@dataclass(frozen=True, slots=True)
class Nack:
    """NETH, 20 bytes: refuses one data packet [SPEC Table 7-16]."""

    reason: int
    entropy: int
    nack_psn: int
    spdcid: int = 0
    dpdcid: int = 0
    cc_flags: int = 0
    tx_timestamp: int = 0
    vendor: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return NETH_STRUCT.pack(
            0,
            self.reason,
            self.vendor,
            self.entropy,
            self.spdcid,
            self.dpdcid,
            self.nack_psn & 0xFFFFFF,
            CC_TYPE_NACK << 4 | self.cc_flags & 15,
            0,
            self.tx_timestamp & 0xFFFF,
        )

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Nack:
        """Read the header at `offset`."""
        _, reason, vendor, entropy, spdc, dpdc, psn, cc, _, stamp = unpack(NETH_STRUCT, buffer, offset)
        return cls(reason, entropy, psn & 0xFFFFFF, spdc, dpdc, cc & 15, stamp, vendor)


@dataclass(frozen=True, slots=True)
class Probe:
    """PETH, 16 bytes: requests a SACK that has pr = 1 and this probe_id [SPEC Table 7-18]."""

    probe_id: int
    spdcid: int = 0
    dpdcid: int = 0
    tx_timestamp: int = 0
    vendor: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return PETH_STRUCT.pack(
            0,
            0,
            self.vendor,
            self.probe_id & 0xFFFF,
            0,
            self.spdcid,
            self.dpdcid,
            self.tx_timestamp,
            TSETH_FTYPE,
        )

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Probe:
        """Read the header at `offset`."""
        _, _, vendor, probe_id, _, spdc, dpdc, stamp, _ = unpack(PETH_STRUCT, buffer, offset)
        return cls(probe_id, spdc, dpdc, stamp, vendor)


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """ERTH, 16 bytes; the request id is in BTH.PSN[15:0] [SPEC Table 7-20]."""

    op: int
    port_status_mask: int = 0
    """Bit p set: the sender's port p is reachable (PORT_STATUS_UPDATE)."""
    tx_timestamp: int = 0
    vendor: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return ERTH_STRUCT.pack(
            self.op & 3, 0, self.vendor, self.port_status_mask, 0, self.tx_timestamp, TSETH_FTYPE
        )

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> EndpointRequest:
        """Read the header at `offset`."""
        head, _, vendor, mask, _, stamp, _ = unpack(ERTH_STRUCT, buffer, offset)
        return cls(head & 3, mask, stamp, vendor)


@dataclass(frozen=True, slots=True)
class EndpointResponse:
    """EETH, 36 bytes: op in bits 3:2 of byte 1, timestamp in bytes 28 and 29 [SPEC Table 7-22]."""

    op: int
    tx_timestamp: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return EETH_STRUCT.pack((self.op & 3) << 2, self.tx_timestamp & 0xFFFF)

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> EndpointResponse:
        """Read the header at `offset`."""
        head, stamp = unpack(EETH_STRUCT, buffer, offset)
        return cls(head >> 2 & 3, stamp)


def split_ev(ev: int, *, low_half_in_udp: bool = True) -> tuple[int, int]:
    """Return (UDP source port, low 16 bits of the flow label) of a 32-bit EV [P1 §2.1].

    Sources differ on which half of the EV is in which field. Both ends must use the same order.
    """
    low, high = ev & 0xFFFF, ev >> 16 & 0xFFFF
    return (low, high) if low_half_in_udp else (high, low)


def join_ev(udp_source: int, flow_label: int, *, low_half_in_udp: bool = True) -> int:
    """Return the EV for the two parts from `split_ev`; only the low 16 bits of the flow label count."""
    flow = flow_label & 0xFFFF
    return flow << 16 | udp_source if low_half_in_udp else udp_source << 16 | flow
