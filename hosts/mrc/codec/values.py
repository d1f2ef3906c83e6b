"""Packets as typed values: what arrives is taken apart once and crosses modules like this."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from hosts.mrc.wire import SACK_STRUCT
from hosts.rdma.frames import Flow
from hosts.rdma.headers import ICRC_LEN, UDP_LEN

NOMINAL_EXTRA_BYTES: Final = 40
"""Nominal size less UDP length."""
_SACK_SIZE: Final = UDP_LEN + SACK_STRUCT.size + ICRC_LEN + NOMINAL_EXTRA_BYTES


@mypyc_attr(acyclic=True)
class Packet:
    """What all packets have."""

    __slots__ = ("ce", "flow", "qpn", "size")

    flow: Flow
    """Addresses, EV and class. Set by the codec; not needed of a SACK that came as bytes."""

    def __init__(self, qpn: int, size: int) -> None:
        self.qpn = qpn
        """Destination QPN."""
        self.size = size
        """Nominal size, which congestion control counts: UDP length + 40 [SPEC §8.3.1]."""
        self.ce = False
        """Marked by a switch."""


@mypyc_attr(acyclic=True)
class DataPacket(Packet):
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
        "rkey",
        "rqmsn",
        "timestamp",
    )

    def __init__(
        self,
        qpn: int,
        size: int,
        opcode: int,
        flags_psn: int,
        rqmsn: int,
        msn: int,
        timestamp: int,
        address: int,
        rkey: int,
        message_length: int,
        imm: int | None,
        payload: memoryview | None,
        length: int,
    ) -> None:
        self.qpn = qpn
        self.size = size
        self.ce = False
        self.opcode = opcode
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
        """None where packets cross as objects."""
        self.length = length
        """Of the payload, without padding."""


@mypyc_attr(acyclic=True)
class SackPacket(Packet):
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
        qpn: int,
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
        self.qpn = qpn
        self.size = _SACK_SIZE
        self.ce = False
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
