"""What arrives, as typed values: each packet is taken apart once, here, and crosses modules like this.

`read_data` and `read_sack` are the counterpart of `packets`: together they are all that knows bytes on the
way of a packet.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from hosts.mrc.wire import (
    BTH_TIMESTAMP,
    DATA_STRUCT,
    DATA_TS_STRUCT,
    METH_LEN,
    SETH_MARK_SHIFT,
    SETH_PROBE_REPLY,
    SETH_STRUCT,
    Opcode,
)
from hosts.rdma.headers import BTH_LEN, BTH_OFFSET, ICRC_LEN, IMM_LEN, IMM_STRUCT, UDP_OFFSET
from hosts.rdma.psn import PSN_MASK

_DATA_END: Final = BTH_OFFSET + DATA_STRUCT.size
_DATA_TS_END: Final = BTH_OFFSET + DATA_TS_STRUCT.size
_TSETH_START: Final = BTH_OFFSET + BTH_LEN + METH_LEN
_SACK_START: Final = BTH_OFFSET + BTH_LEN
_SACK_END: Final = _SACK_START + SETH_STRUCT.size
_NOMINAL: Final = ICRC_LEN - UDP_OFFSET + 40
"""Nominal size of a packet less where its ICRC begins in the frame."""
_TIMESTAMP_BIT: Final = BTH_TIMESTAMP << 24
_LAST_IMM: Final = int(Opcode.WRITE_LAST_IMM)
_ONLY_IMM: Final = int(Opcode.WRITE_ONLY_IMM)


@mypyc_attr(acyclic=True)
class DataPacket:
    """A data packet: BTH, METH, TSETH if there is one, RETH, immediate data if there is, and payload."""

    __slots__ = (
        "address",
        "flags_psn",
        "imm",
        "length",
        "message_length",
        "msn",
        "opcode",
        "payload",
        "qpn",
        "rkey",
        "rqmsn",
        "size",
        "timestamp",
    )

    def __init__(
        self,
        opcode: int,
        qpn: int,
        flags_psn: int,
        rqmsn: int,
        msn: int,
        timestamp: int,
        address: int,
        rkey: int,
        message_length: int,
        imm: int | None,
        payload: memoryview,
        length: int,
        size: int,
    ) -> None:
        self.opcode = opcode
        self.qpn = qpn
        self.flags_psn = flags_psn
        """The last word of the BTH: flags in its first byte, then the PSN."""
        self.rqmsn = rqmsn
        self.msn = msn
        self.timestamp = timestamp
        """As the sender wrote it; 0 without TSETH."""
        self.address = address
        self.rkey = rkey
        self.message_length = message_length
        self.imm = imm
        self.payload = payload
        self.length = length
        """Of the payload, without padding."""
        self.size = size
        """Nominal size, which congestion control counts: UDP length + 40 [SPEC §8.3.1]."""


def read_stamp(view: memoryview, flags_psn: int) -> int | None:
    """Return the timestamp of a trimmed data packet, of which the headers are left; None without TSETH."""
    if not flags_psn & _TIMESTAMP_BIT or len(view) < _TSETH_START + 2:
        return None
    return view[_TSETH_START] << 8 | view[_TSETH_START + 1]


def read_data(view: memoryview, timestamps: bool) -> DataPacket | None:
    """Return the data packet of a frame whose ICRC was right; None where its headers do not fit in.

    `timestamps` says whether a TSETH is likely: the headers are unpacked once where it is right, twice else.
    """
    end = len(view) - ICRC_LEN
    if end < _DATA_END:
        return None
    size = end + _NOMINAL
    timestamp = 0
    start = _DATA_END
    fields: tuple[int, ...]
    if not timestamps or end < _DATA_TS_END:
        fields = DATA_STRUCT.unpack_from(view, BTH_OFFSET)
        opcode, second, _, qpn, last, rqmsn, msn, va, rkey, total = fields
        timestamps = last & _TIMESTAMP_BIT != 0
        if timestamps and end < _DATA_TS_END:
            return None
    if timestamps:
        fields = DATA_TS_STRUCT.unpack_from(view, BTH_OFFSET)
        opcode, second, _, qpn, last, rqmsn, msn, timestamp, _, va, rkey, total = fields
        if last & _TIMESTAMP_BIT:
            start = _DATA_TS_END
        else:
            fields = DATA_STRUCT.unpack_from(view, BTH_OFFSET)
            opcode, second, _, qpn, last, rqmsn, msn, va, rkey, total = fields
            timestamp = 0
    imm: int | None = None
    if opcode in (_LAST_IMM, _ONLY_IMM):
        if end - start < IMM_LEN:
            return None
        imm = IMM_STRUCT.unpack_from(view, start)[0]
        start += IMM_LEN
    end -= second >> 4 & 3
    if end < start:
        return None
    length = end - start
    return DataPacket(
        opcode,
        qpn & 0xFFFFFF,
        last,
        rqmsn,
        msn,
        timestamp,
        va,
        rkey,
        total,
        imm,
        view[start:end],
        length,
        size,
    )


@mypyc_attr(acyclic=True)
class ReceivedSack:
    """What a sender uses of a SACK; `wire.Sack` has all fields and says what they mean."""

    __slots__ = (
        "ack_psn_offset",
        "bitmap",
        "cack_psn",
        "entropy",
        "mark",
        "mpr",
        "penalty",
        "probe_reply",
        "rcvd_units",
        "restore_cwnd",
        "sack_offset",
        "tx_timestamp",
    )

    def __init__(
        self,
        cack_psn: int,
        entropy: int,
        ack_psn_offset: int,
        mark: int,
        probe_reply: bool,
        sack_offset: int,
        bitmap: int,
        mpr: int,
        tx_timestamp: int,
        penalty: int,
        restore_cwnd: bool,
        rcvd_units: int,
    ) -> None:
        self.cack_psn = cack_psn
        self.entropy = entropy
        self.ack_psn_offset = ack_psn_offset
        self.mark = mark
        self.probe_reply = probe_reply
        self.sack_offset = sack_offset
        self.bitmap = bitmap
        self.mpr = mpr
        self.tx_timestamp = tx_timestamp
        self.penalty = penalty
        self.restore_cwnd = restore_cwnd
        self.rcvd_units = rcvd_units


def read_sack(view: memoryview) -> ReceivedSack | None:
    """Return the SACK of a frame whose ICRC was right; None where the frame is too short for one."""
    if len(view) - ICRC_LEN < _SACK_END:
        return None
    fields: tuple[int, ...] = SETH_STRUCT.unpack_from(view, _SACK_START)
    head, ack, entropy, _, _, cack, _, mpr, base, bitmap, stamp, _, tail = fields
    return ReceivedSack(
        cack & PSN_MASK,
        entropy,
        ack,
        head >> SETH_MARK_SHIFT & 3,
        head & SETH_PROBE_REPLY != 0,
        base,
        bitmap,
        mpr,
        stamp,
        tail >> 24 & 0x7F,
        tail >> 31 != 0,
        tail & 0xFFFFFF,
    )
