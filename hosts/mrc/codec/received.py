"""How a frame becomes a packet: the counterpart of `packets`."""

from __future__ import annotations

from typing import Final

from mrclab.hosts.mrc.codec.values import NOMINAL_EXTRA_BYTES, DataPacket, SackPacket
from mrclab.hosts.mrc.wire import (
    BTH_TIMESTAMP,
    DATA_STRUCT,
    DATA_TS_STRUCT,
    METH_LEN,
    SACK_STRUCT,
    SETH_MARK_SHIFT,
    SETH_PROBE_REPLY,
    Opcode,
)
from mrclab.hosts.rdma.headers import BTH_LEN, BTH_OFFSET, ICRC_LEN, IMM_LEN, IMM_STRUCT, UDP_OFFSET
from mrclab.hosts.rdma.psn import PSN_MASK

_DATA_END: Final = BTH_OFFSET + DATA_STRUCT.size
_DATA_TS_END: Final = BTH_OFFSET + DATA_TS_STRUCT.size
_TSETH_START: Final = BTH_OFFSET + BTH_LEN + METH_LEN
_SACK_END: Final = BTH_OFFSET + SACK_STRUCT.size
_NOMINAL: Final = ICRC_LEN - UDP_OFFSET + NOMINAL_EXTRA_BYTES
"""Nominal size of a packet less where its ICRC begins in the frame."""
_TIMESTAMP_BIT: Final = BTH_TIMESTAMP << 24
_LAST_IMM: Final = int(Opcode.WRITE_LAST_IMM)
_ONLY_IMM: Final = int(Opcode.WRITE_ONLY_IMM)


def read_stamp(view: memoryview, flags_psn: int) -> int | None:
    """Return the timestamp of a trimmed data packet, of which the headers are left; None without TSETH."""
    if not flags_psn & _TIMESTAMP_BIT or len(view) < _TSETH_START + 2:
        return None
    return view[_TSETH_START] << 8 | view[_TSETH_START + 1]


def read_data(view: memoryview, timestamps: bool) -> DataPacket | None:
    """Return the data packet of a frame with a correct ICRC; None if its headers do not fit in.

    `timestamps` says whether a TSETH is likely: the headers are unpacked once if that is right, else twice.
    """
    end = len(view) - ICRC_LEN
    if end < _DATA_END:
        return None
    size = end + _NOMINAL
    stamp = 0
    start = _DATA_END
    fields: tuple[int, ...]
    if not timestamps or end < _DATA_TS_END:
        fields = DATA_STRUCT.unpack_from(view, BTH_OFFSET)
        first, qpn, last, message, va, rkey, total = fields
        timestamps = last & _TIMESTAMP_BIT != 0
        if timestamps and end < _DATA_TS_END:
            return None
    if timestamps:
        fields = DATA_TS_STRUCT.unpack_from(view, BTH_OFFSET)
        first, qpn, last, message, stamp, va, rkey, total = fields
        if last & _TIMESTAMP_BIT:
            start = _DATA_TS_END
            stamp >>= 16
        else:
            fields = DATA_STRUCT.unpack_from(view, BTH_OFFSET)
            first, qpn, last, message, va, rkey, total = fields
            stamp = 0
    opcode = first >> 24
    imm: int | None = None
    if opcode in (_LAST_IMM, _ONLY_IMM):
        if end - start < IMM_LEN:
            return None
        imm = IMM_STRUCT.unpack_from(view, start)[0]
        start += IMM_LEN
    end -= first >> 20 & 3
    if end < start:
        return None
    return DataPacket(
        qpn & 0xFFFFFF,
        size,
        opcode,
        last,
        message >> 16,
        message & 0xFFFF,
        stamp,
        va,
        rkey,
        total,
        imm,
        view[start:end],
        end - start,
    )


def read_sack(view: memoryview) -> SackPacket | None:
    """Return the SACK of a frame whose ICRC was right; None where the frame is too short for one."""
    if len(view) - ICRC_LEN < _SACK_END:
        return None
    fields: tuple[int, ...] = SACK_STRUCT.unpack_from(view, BTH_OFFSET)
    _, qpn, _, head, ack, entropy, _, cack, window, base, bitmap, stamp, tail = fields
    return SackPacket(
        qpn & 0xFFFFFF,
        cack & PSN_MASK,
        entropy,
        ack,
        head >> SETH_MARK_SHIFT & 3,
        head & SETH_PROBE_REPLY != 0,
        base,
        bitmap,
        window & 0xFF,
        stamp >> 16,
        tail >> 24 & 0x7F,
        tail >> 31 != 0,
        tail & 0xFFFFFF,
    )
