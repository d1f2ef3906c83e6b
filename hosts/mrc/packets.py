"""MRC packets as typed objects inside the core, and the headers of the frame around them.

An arriving packet is parsed once, and modules exchange the object. The frame around a packet is Ethernet,
outer IPv6 (uSID container), inner IPv6, UDP [P1 §2.2, Fig 2-3]. The entropy value (EV) of a packet is in the
UDP source port and the flow labels. Both flow labels carry the same half of the EV.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.wire import BTH_TIMESTAMP, SACK_STRUCT, join_ev, split_ev
from mrclab.hosts.rdma.frames import (
    BTH_OFFSET,
    ICRC_LEN,
    IPV6_LEN,
    PLAIN_BTH_OFFSET,
    UDP_LEN,
    UDP_OFFSET,
    Flow,
    FlowCache,
    build_prefix,
)
from mrclab.hosts.rdma.paths import Path, PlanePaths

NOMINAL_EXTRA_BYTES: Final = 40
"""Nominal size of a packet minus its UDP length, bytes."""
_TIMESTAMP_BIT: Final = BTH_TIMESTAMP << 24
_SACK_SIZE: Final = UDP_LEN + SACK_STRUCT.size + ICRC_LEN + NOMINAL_EXTRA_BYTES


def _extra_bytes(flow: Flow) -> int:
    """Return the length of a frame minus its packet's nominal size, bytes."""
    before_udp = UDP_OFFSET if flow.outer_dst is not None else UDP_OFFSET - IPV6_LEN
    return before_udp - NOMINAL_EXTRA_BYTES


@mypyc_attr(acyclic=True)
class Packet:
    """The common fields of all packets."""

    __slots__ = ("ce", "flow", "qpn", "size")

    flow: Flow
    """Addresses, EV and class. The creator of a packet sets its flow. A SACK read from bytes has no flow."""

    def __init__(self, qpn: int, size: int) -> None:
        self.qpn = qpn
        """Destination QPN."""
        self.size = size
        """Nominal size, which congestion control counts, in bytes: UDP length + 40 [SPEC §8.3.1]."""
        self.ce = False
        """True: a switch has set the mark CE."""

    @property
    def frame_bytes(self) -> int:
        """Length of the Ethernet frame that the object stands for."""
        return self.size + _extra_bytes(self.flow)


@mypyc_attr(acyclic=True)
class DataPacket(Packet):
    """A data packet: BTH, METH, optional TSETH, RETH, optional immediate data, and payload."""

    __slots__ = (
        "address",
        "cut_dscp",
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
        """Timestamp as the sender wrote it; 0 without TSETH."""
        self.address = address
        self.rkey = rkey
        self.message_length = message_length
        self.imm = imm
        self.payload = payload
        """Payload; None if the simulation exchanges objects without payload."""
        self.length = length
        """Length of the payload without padding, bytes."""
        self.cut_dscp = -1
        """The DSCP that a switch wrote when it trimmed the object; -1: not trimmed."""

    def cut(self, dscp: int, frame_bytes: int) -> None:
        """Trim the packet as a switch does: set the DSCP and the remaining length of the frame."""
        self.cut_dscp = dscp
        self.size = frame_bytes - _extra_bytes(self.flow)

    @property
    def stamped(self) -> bool:
        """The packet carries a timestamp (TSETH)."""
        return self.flags_psn & _TIMESTAMP_BIT != 0

    def stamp(self) -> int | None:
        """Return the timestamp; None without TSETH."""
        return self.timestamp if self.stamped else None


@mypyc_attr(acyclic=True)
class SackPacket(Packet):
    """The fields of a SACK that a sender uses. `wire.Sack` has all fields and explains them."""

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


class SackTrigger:
    """The reason for a SACK: a data packet, possibly a duplicate, or a probe."""

    __slots__ = ("ev", "mark", "number", "port", "probe", "stamp")

    def __init__(self, ev: int, port: int, mark: int, number: int, stamp: int, probe: bool) -> None:
        self.ev = ev
        self.port = port
        """Port on which the packet arrived."""
        self.mark = mark
        self.number = number
        """PSN of the data packet, or id of the probe."""
        self.stamp = stamp
        """Timestamp of the packet."""
        self.probe = probe
        """True: the trigger is a probe."""


@mypyc_attr(acyclic=True)
class ControlPacket(Packet):
    """A packet other than data or a SACK, as an object: BTH and one extension header as bytes."""

    __slots__ = ("extension", "opcode", "psn")

    def __init__(self, qpn: int, size: int, opcode: int, psn: int, extension: bytes) -> None:
        self.qpn = qpn
        self.size = size
        self.ce = False
        self.opcode = opcode
        self.psn = psn
        """PSN, 24 bits; for an endpoint operation, the request id."""
        self.extension = extension


class FrameOptions(NamedTuple):
    """The options of an endpoint that affect every frame."""

    udp_port: int
    hop_limit: int
    ev_low_half_in_udp: bool
    ev_in_flow_label: bool = True


def frame_options(config: MrcConfig) -> FrameOptions:
    """Return the options of a configuration that affect frames."""
    reading = config.reading
    return FrameOptions(
        reading.udp_port, config.hop_limit, reading.ev_low_half_in_udp, config.ev_in_flow_label
    )


def prefix(
    plane: PlanePaths, path: Path, options: FrameOptions, tclass: int, udp_length: int
) -> tuple[bytes, int]:
    """Return the 102 bytes before the BTH and the value with which the ICRC starts.

    `udp_length` is the UDP header's length field. It counts all bytes from the UDP header to the ICRC.
    """
    if options.ev_in_flow_label:
        source, label = split_ev(path.ev, low_half_in_udp=options.ev_low_half_in_udp)
    else:
        source, label = path.ev, 0
    return build_prefix(
        plane,
        path.outer_dst,
        tclass=tclass,
        flow_label=label,
        source=source,
        udp_port=options.udp_port,
        hop_limit=options.hop_limit,
        udp_length=udp_length,
    )


def with_room_for_outer(view: memoryview) -> memoryview:
    """Return the frame with unused bytes in place of its missing outer header.

    So the BTH has the same offset in all frames. The bytes before the BTH must not be read.
    """
    return memoryview(bytes(BTH_OFFSET - PLAIN_BTH_OFFSET) + view)


class MrcFlowCache(FlowCache):
    """The flows of arriving MRC frames, each with its EV."""

    def __init__(
        self,
        options: FrameOptions,
        udp_ports: tuple[int, ...],
        trimmed_dscps: tuple[int, ...] = (),
        *,
        needs_outer: bool = True,
    ) -> None:
        super().__init__(udp_ports, needs_outer=needs_outer, trimmed_dscps=trimmed_dscps)
        self._options = options

    def entropy(self, source: int, flow_label: int) -> int:
        """Return the EV: 32 bits from both fields, or 16 bits from the UDP source port alone."""
        if self._options.ev_in_flow_label:
            return join_ev(source, flow_label & 0xFFFF, low_half_in_udp=self._options.ev_low_half_in_udp)
        return source
