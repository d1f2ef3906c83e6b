"""MRC for scapy: every header as a layer, to build packets by hand and to dissect captured packets.

This module is an optional tool. Nothing else in mrclab imports it, because scapy is GPL-2.0-only. It is
installed by ``pip install 'mrclab[scapy]'``, or with the ``dev`` extra.

At the scapy prompt, in a host's namespace or anywhere else::

    >>> from mrclab.hosts.scapy_layers import *
    >>> p = underlay(ev=0x0001C002, src="fd00::1", dst="fd00::2", container="fcbb:bb00:1400:1802:1403:1c06::")
    >>> p /= BTH(opcode="WRITE_ONLY", dest_qpn=0x12, psn=7) / METH(msn=1) / RETH(rkey=5, dma_length=5)
    >>> (p / b"hello").show2()

When a packet is built, pad count, pad bytes, lengths and the ICRC are computed, unless they are given. The
layouts are the same as in ``hosts/mrc/wire.py``. A trimmed packet has no ICRC; the DSCP of its outer header
shows that it is trimmed.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    FCSField,
    IntField,
    ShortField,
    SignedShortField,
    StrFixedLenField,
    ThreeBytesField,
    X3BytesField,
    XByteEnumField,
    XByteField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers

from mrclab.hosts.mrc.config import OTHER_UDP_PORT, DscpMap
from mrclab.hosts.mrc.wire import (
    CC_TYPE_NACK,
    CC_TYPE_SACK,
    TSETH_FTYPE,
    EndpointOp,
    EvMark,
    NackReason,
    Opcode,
    join_ev,
    split_ev,
)
from mrclab.hosts.rdma.frames import ICRC_LEN, NEXT_UDP, UDP_LEN, UDP_PORT, packet_icrc, traffic_class

__all__ = [
    "AETH",
    "BTH",
    "CC_STATE",
    "EETH",
    "ERTH",
    "IMMDT",
    "METH",
    "NETH",
    "PETH",
    "RETH",
    "SETH",
    "TSETH",
    "ev_of",
    "underlay",
]

_DSCP = DscpMap()
_TRIMMED = (_DSCP.trimmed, _DSCP.trimmed_lasthop)
_IMMEDIATE = (Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM)


def _names(enum: Any) -> dict[int, str]:
    return {int(member): member.name for member in enum}


def _head(*low: Any) -> list[Any]:
    """Return the first 16 bits of SETH, NETH, PETH, ERTH and EETH.

    `low` has the fields of the last seven bits.
    """
    return [BitField("type", 0, 4), BitField("next", 0, 5), *low]


def _stamp() -> list[Any]:
    return [
        ShortField("tx_timestamp", 0),
        BitField("tsr", 0, 1),
        BitField("stamp_reserved", 0, 11),
        BitField("ftype", TSETH_FTYPE, 4),
    ]


def _outermost_dscp(packet: Packet) -> int | None:
    dscp = None
    layer = packet.underlayer
    while layer is not None:
        if isinstance(layer, IPv6):
            dscp = layer.tc >> 2
        layer = layer.underlayer
    return dscp


def _has_icrc(packet: Packet) -> bool:
    return _outermost_dscp(packet) not in _TRIMMED


class BTH(Packet):
    """Base transport header. It also has the ICRC, which is at the end of the packet."""

    name = "MRC BTH"
    fields_desc = [  # noqa: RUF012
        XByteEnumField("opcode", int(Opcode.WRITE_ONLY), _names(Opcode)),
        BitField("m", 0, 1),
        BitField("se", 0, 1),
        BitField("pad_count", None, 2),
        BitField("tver", 0, 4),
        XShortField("pkey", 0xFFFF),
        XByteField("reserved", 0),
        X3BytesField("dest_qpn", 0),
        BitField("a", 0, 1),
        BitField("r", 0, 1),
        BitField("rtx", 0, 1),
        BitField("ts", 0, 1),
        BitField("flags_reserved", 0, 4),
        ThreeBytesField("psn", 0),
        ConditionalField(FCSField("icrc", None, fmt="<I"), _has_icrc),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Compute pad and ICRC unless they are given."""
        pay, icrc = (pay[:-ICRC_LEN], pay[-ICRC_LEN:]) if _has_icrc(self) else (pay, b"")
        if self.pad_count is None:
            # All headers have a multiple of four bytes, so only the payload needs padding.
            pad = -len(pay) & 3
            pay += bytes(pad)
            pkt = pkt[:1] + bytes((pkt[1] | pad << 4,)) + pkt[2:]
        if icrc and self.icrc is None:
            icrc = self.expected_icrc(pkt + pay)
        return pkt + pay + icrc

    def expected_icrc(self, middle: bytes) -> bytes:
        """Return the ICRC over IPv6, UDP and ``middle``, which is the bytes from the BTH to the pad.

        Return zeros if the packet has no IPv6 or UDP header.
        """
        udp, ip = self.underlayer, self.underlayer and self.underlayer.underlayer
        if not isinstance(udp, UDP) or not isinstance(ip, IPv6):
            return bytes(ICRC_LEN)
        length = UDP_LEN + len(middle) + ICRC_LEN
        headers = b"".join(
            (
                (6 << 28).to_bytes(4, "big"),
                (length if ip.plen is None else ip.plen).to_bytes(2, "big"),
                bytes((NEXT_UDP, 0)),
                IPv6Address(ip.src).packed,
                IPv6Address(ip.dst).packed,
                udp.sport.to_bytes(2, "big"),
                udp.dport.to_bytes(2, "big"),
                (length if udp.len is None else udp.len).to_bytes(2, "big"),
                bytes(2),
            )
        )
        return packet_icrc(headers, middle)

    def data(self) -> bytes:
        """Return the payload of a data packet, without the pad bytes."""
        load = bytes(self[Raw].load) if self.haslayer(Raw) else b""
        return load[: len(load) - (self.pad_count or 0)]

    def guess_payload_class(self, payload: bytes) -> Any:
        """Return the layer of the extension header that belongs to the opcode."""
        return _EXTENSIONS.get(self.opcode, Raw)


class METH(Packet):
    """Message header of data packets."""

    name = "MRC METH"
    fields_desc = [ShortField("rqmsn", 0), ShortField("msn", 0)]  # noqa: RUF012

    def guess_payload_class(self, payload: bytes) -> Any:
        """Return TSETH if the BTH's flag ``ts`` announces it, otherwise RETH."""
        return TSETH if isinstance(self.underlayer, BTH) and self.underlayer.ts else RETH


class TSETH(Packet):
    """Transmit timestamp, in units of 128 ns. It is present if BTH.ts is set."""

    name = "MRC TSETH"
    fields_desc = _stamp()

    def guess_payload_class(self, payload: bytes) -> Any:
        """Return RETH, because a RETH follows every TSETH."""
        return RETH


class RETH(Packet):
    """RDMA header: the address for this packet's payload, and the length of the whole message."""

    name = "MRC RETH"
    fields_desc = [  # noqa: RUF012
        XLongField("va", 0),
        XIntField("rkey", 0),
        IntField("dma_length", 0),
    ]

    def guess_payload_class(self, payload: bytes) -> Any:
        """Return the layer of immediate data if the opcode has it."""
        layer = self.underlayer
        while layer is not None and not isinstance(layer, BTH):
            layer = layer.underlayer
        return IMMDT if layer is not None and layer.opcode in _IMMEDIATE else Raw


class IMMDT(Packet):
    """Immediate data."""

    name = "MRC ImmDt"
    fields_desc = [XIntField("imm", 0)]  # noqa: RUF012


class AETH(Packet):
    """Transport acknowledgement."""

    name = "MRC AETH"
    fields_desc = [XByteField("syndrome", 0x1F), ThreeBytesField("msn", 0)]  # noqa: RUF012


class SETH(Packet):
    """Selective acknowledgement; CC_STATE follows."""

    name = "MRC SETH"
    fields_desc = [  # noqa: RUF012
        *_head(
            BitEnumField("m", 0, 2, _names(EvMark)),
            BitField("reserved1", 0, 3),
            BitField("pr", 0, 1),
            BitField("reserved2", 0, 1),
        ),
        ConditionalField(SignedShortField("ack_psn_offset", 0), lambda p: not p.pr),
        ConditionalField(ShortField("probe_id", 0), lambda p: p.pr),
        XIntField("entropy", 0),
        ShortField("spdcid", 0),
        ShortField("dpdcid", 0),
        ByteField("reserved3", 0),
        ThreeBytesField("cack_psn", 0),
        BitField("cc_type", CC_TYPE_SACK, 4),
        BitField("cc_flags", 0, 4),
        ByteField("mpr", 0),
        SignedShortField("sack_offset", 1),
        XLongField("sack_bitmap", 0),
    ]

    def guess_payload_class(self, payload: bytes) -> Any:
        """Return CC_STATE, because CC_STATE always follows SETH."""
        return CC_STATE


class CC_STATE(Packet):  # noqa: N801
    """The receiver's report to the sender's congestion control."""

    name = "MRC CC_STATE"
    fields_desc = [  # noqa: RUF012
        ShortField("tx_timestamp", 0),
        BitField("reserved", 0, 1),
        BitField("ooo_count", 0, 15),
        BitField("restore_cwnd", 0, 1),
        BitField("rcv_cwnd_pen", 0, 7),
        ThreeBytesField("rcvd_bytes", 0),
    ]


class NETH(Packet):
    """Negative acknowledgement of one packet."""

    name = "MRC NETH"
    fields_desc = [  # noqa: RUF012
        *_head(BitField("reserved1", 0, 7)),
        ByteEnumField("reason", int(NackReason.TRIMMED), _names(NackReason)),
        XByteField("vendor", 0),
        XIntField("entropy", 0),
        ShortField("spdcid", 0),
        ShortField("dpdcid", 0),
        ByteField("reserved2", 0),
        ThreeBytesField("nack_psn", 0),
        BitField("cc_type", CC_TYPE_NACK, 4),
        BitField("cc_flags", 0, 4),
        ByteField("reserved3", 0),
        ShortField("tx_timestamp", 0),
    ]


class PETH(Packet):
    """Reliability probe."""

    name = "MRC PETH"
    fields_desc = [  # noqa: RUF012
        *_head(BitField("reserved1", 0, 7)),
        ByteField("reserved2", 0),
        XByteField("vendor", 0),
        ShortField("probe_id", 0),
        ShortField("reserved3", 0),
        ShortField("spdcid", 0),
        ShortField("dpdcid", 0),
        *_stamp(),
    ]


class ERTH(Packet):
    """Header of an endpoint request. The request's ID is the low half of BTH.psn; its BTH.dest_qpn is 2."""

    name = "MRC ERTH"
    fields_desc = [  # noqa: RUF012
        *_head(BitField("reserved1", 0, 5), BitEnumField("op", 0, 2, _names(EndpointOp))),
        ByteField("reserved2", 0),
        XByteField("vendor", 0),
        XIntField("port_status_mask", 0),
        IntField("reserved3", 0),
        *_stamp(),
    ]


class EETH(Packet):
    """Header of the answer to an endpoint request."""

    name = "MRC EETH"
    fields_desc = [  # noqa: RUF012
        *_head(
            BitField("reserved1", 0, 3),
            BitEnumField("op", 0, 2, _names(EndpointOp)),
            BitField("reserved2", 0, 2),
        ),
        StrFixedLenField("reserved3", bytes(26), 26),
        ShortField("tx_timestamp", 0),
        StrFixedLenField("reserved4", bytes(6), 6),
    ]


_EXTENSIONS: dict[int, Any] = {
    **{int(opcode): METH for opcode in Opcode if opcode <= Opcode.WRITE_ONLY_IMM},
    int(Opcode.ACKNOWLEDGE): AETH,
    int(Opcode.ENDPOINT_REQUEST): ERTH,
    int(Opcode.ENDPOINT_RESPONSE): EETH,
    int(Opcode.SACK): SETH,
    int(Opcode.NACK): NETH,
    int(Opcode.PROBE_REQUEST): PETH,
}

for _port in (OTHER_UDP_PORT, UDP_PORT):
    bind_layers(UDP, BTH, dport=_port)
    # scapy uses the first binding of a port. The RoCE layers of scapy itself may already be bound to this
    # port, so move the new binding to the front.
    UDP.payload_guess.insert(0, UDP.payload_guess.pop())


def underlay(
    *,
    ev: int,
    src: str,
    dst: str,
    container: str,
    src_mac: str | None = None,
    dst_mac: str | None = None,
    dscp: int = _DSCP.trimmable,
    ecn_capable: bool = True,
    udp_port: int = UDP_PORT,
) -> Packet:
    """Return Ethernet, outer IPv6 to a uSID container, inner IPv6 and UDP. The fields for the EV are set.

    The UDP checksum is 0, as in MRC. The default DSCP is the DSCP of data. Control packets have DSCP 46 and
    are not ECN capable.
    """
    source, label = split_ev(ev)
    tclass = traffic_class(dscp, ecn_capable=ecn_capable)
    ethernet = Ether()
    if src_mac is not None:
        ethernet.src = src_mac
    if dst_mac is not None:
        ethernet.dst = dst_mac
    return (
        ethernet
        / IPv6(src=src, dst=container, tc=tclass, fl=label)
        / IPv6(src=src, dst=dst, tc=tclass, fl=label)
        / UDP(sport=source, dport=udp_port, chksum=0)
    )


def ev_of(packet: Packet) -> int:
    """Return the EV that a packet with IPv6 and UDP carries."""
    udp = packet[UDP]
    return join_ev(udp.sport, udp.underlayer.fl)
