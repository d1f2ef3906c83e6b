"""Frames of every kind with their field values, made by mrclab's encoder, to test decoders of MRC."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path as FilePath

from mrclab.hosts.mrc import wire
from mrclab.hosts.mrc.config import DscpMap
from mrclab.hosts.mrc.packets import FrameOptions, prefix
from mrclab.hosts.rdma import frames
from mrclab.hosts.rdma.frames import ICRC_LEN, INNER_OFFSET, UDP_LEN, UDP_OFFSET, packet_icrc, traffic_class
from mrclab.hosts.rdma.paths import Path, PlanePaths

DSCP = DscpMap()
EV = 0x0003_C005
CONTAINER = IPv6Address("fcbb:bb00:3400:3803:3403:3c06::").packed
PLANE = PlanePaths(
    port=3,
    src_mac=bytes.fromhex("020000000003"),
    dst_mac=bytes.fromhex("021000030001"),
    src=IPv6Address("fd00:6d72:63:3::1").packed,
    dst=IPv6Address("fd00:6d72:63:3::7").packed,
    paths=(),
)
LINKTYPE_ETHERNET, LINKTYPE_SLL2 = 1, 276


@dataclass(frozen=True)
class Packet:
    """A frame and the values of its fields, by their names in tshark."""

    name: str
    frame: bytes
    fields: dict[str, int | str | bool]
    extension: bytes = b""
    payload: bytes = b""
    expert: frozenset[str] = field(default_factory=frozenset)


def frame_of(
    middle: bytes,
    *,
    dscp: int,
    ce: bool = False,
    ecn_capable: bool = False,
    ev: int = EV,
    udp_port: int = frames.UDP_PORT,
    low_half_in_udp: bool = True,
) -> bytes:
    """Return a whole frame around the bytes from the BTH to the ICRC."""
    options = FrameOptions(udp_port, 64, low_half_in_udp)
    tclass = traffic_class(dscp, ecn_capable=ecn_capable)
    head, _ = prefix(PLANE, Path(ev, CONTAINER), options, tclass, UDP_LEN + len(middle) + ICRC_LEN)
    if ce:
        head = head[:14] + bytes((head[14], head[15] | 3 << 4)) + head[16:]
    return head + middle + packet_icrc(head[INNER_OFFSET:], middle)


def with_lengths(frame: bytes) -> bytes:
    """Return the frame with correct lengths in both IPv6 headers and UDP, as our switches write them."""
    mended = bytearray(frame)
    for offset, start in ((18, INNER_OFFSET), (INNER_OFFSET + 4, UDP_OFFSET), (UDP_OFFSET + 4, UDP_OFFSET)):
        struct.pack_into(">H", mended, offset, len(frame) - start)
    return bytes(mended)


def _bth(header: wire.Bth) -> dict[str, int | str | bool]:
    return {
        "mrc.bth.opcode": header.opcode,
        "mrc.bth.m": header.migration,
        "mrc.bth.se": header.solicited,
        "mrc.bth.pad_count": header.pad_count,
        "mrc.bth.tver": 0,
        "mrc.bth.pkey": header.pkey,
        "mrc.bth.reserved": 0,
        "mrc.bth.dest_qpn": header.dest_qpn,
        "mrc.bth.a": header.ack_request,
        "mrc.bth.rtx": header.retransmission,
        "mrc.bth.ts": header.timestamp,
        "mrc.bth.psn": header.psn,
    }


def data_packet(
    opcode: wire.Opcode,
    length: int,
    *,
    timestamp: bool = False,
    retransmission: bool = False,
    ce: bool = False,
    trimmed: int | None = None,
    mended: bool = False,
) -> Packet:
    """Return a data packet. With `trimmed` (a DSCP), a switch has cut its payload off.

    A trimmed packet ends with the RETH. Its headers have the old lengths, or with `mended` the new lengths.
    """
    pad = -length & 3
    bth = wire.Bth(
        opcode,
        0x00ABCD,
        0xFFFFFE,
        ack_request=opcode >= wire.Opcode.WRITE_LAST,
        retransmission=retransmission,
        timestamp=timestamp,
        pad_count=pad,
        solicited=opcode is wire.Opcode.WRITE_ONLY,
    )
    meth = wire.Meth(rqmsn=0x1234, msn=0xFEDC)
    tseth = wire.Tseth(0xBEEF, tsr=1)
    reth = wire.Reth(0xFEDC_BA98_7654_3210, 0x89AB_CDEF, 1_000_000)
    has_imm = opcode in (wire.Opcode.WRITE_LAST_IMM, wire.Opcode.WRITE_ONLY_IMM)
    extension = meth.pack() + (tseth.pack() if timestamp else b"") + reth.pack()
    extension += struct.pack(">I", 0xCAFE_F00D) if has_imm else b""
    payload = bytes(i % 251 for i in range(length))
    dscp = trimmed if trimmed is not None else DSCP.trimmable_retx if retransmission else DSCP.trimmable
    frame = frame_of(
        bth.pack() + extension + payload + bytes(pad),
        dscp=dscp,
        ce=ce,
        ecn_capable=True,
    )
    fields = _bth(bth) | {
        "mrc.meth.rqmsn": 0x1234,
        "mrc.meth.msn": 0xFEDC,
        "mrc.reth.va": 0xFEDC_BA98_7654_3210,
        "mrc.reth.rkey": 0x89AB_CDEF,
        "mrc.reth.dma_length": 1_000_000,
        "mrc.ce": ce,
        "mrc.trimmed": trimmed is not None,
        "mrc.class": "TRIMMABLE_RETX" if retransmission else "TRIMMABLE",
    }
    if timestamp:
        fields |= {"mrc.tx_timestamp": 0xBEEF, "mrc.tsr": 1, "mrc.ftype": 1}
    if has_imm:
        fields["mrc.immediate"] = 0xCAFE_F00D
    expert = set()
    if trimmed is not None:
        if mended:
            extension = extension[: -4 if has_imm else None]
            fields.pop("mrc.immediate", None)
        frame = frame[: UDP_OFFSET + UDP_LEN + len(bth.pack() + extension)]
        if mended:
            frame = with_lengths(frame)
        fields["mrc.class"] = "TRIMMED" if trimmed == DSCP.trimmed else "TRIMMED_LASTHOP"
        expert.add("mrc.expert.trimmed")
    else:
        fields |= {"mrc.payload.length": length, "mrc.icrc.status": "good"}
        if length:
            fields["mrc.payload"] = payload.hex()
        if pad:
            fields["mrc.pad"] = bytes(pad).hex()
        fields["mrc.icrc"] = int.from_bytes(frame[-4:], "little")
    if retransmission:
        expert.add("mrc.expert.rtx")
    if ce:
        expert.add("mrc.expert.ce")
    name = f"{opcode.name}, {length} B" + ", trimmed" * (trimmed is not None)
    return Packet(name, frame, fields, extension, payload, frozenset(expert))


def control_packet(
    opcode: wire.Opcode,
    extension: bytes,
    fields: dict[str, int | str | bool],
    *,
    dest_qpn: int = 0x00ABCD,
    psn: int = 0x000102,
    expert: tuple[str, ...] = (),
) -> Packet:
    """Return a packet that has a BTH and one extension header."""
    bth = wire.Bth(opcode, dest_qpn, psn)
    dscp = DSCP.no_trim if opcode is wire.Opcode.PROBE_REQUEST else DSCP.control
    frame = frame_of(bth.pack() + extension, dscp=dscp)
    common = _bth(bth) | {
        "mrc.icrc.status": "good",
        "mrc.icrc": int.from_bytes(frame[-4:], "little"),
        "mrc.class": "NO_TRIM" if dscp == DSCP.no_trim else "CONTROL",
        "mrc.ce": False,
        "mrc.trimmed": False,
    }
    return Packet(opcode.name, frame, common | fields, extension, b"", frozenset(expert))


def sack_packet(sack: wire.Sack, ranges: str, missing: str) -> Packet:
    """Return a SACK. `ranges` and `missing` are given as the dissector shows them, joined by commas."""
    probe: dict[str, int | str | bool] = (
        {"mrc.probe_id": sack.ack_psn_offset & 0xFFFF}
        if sack.probe_reply
        else {
            "mrc.sack.ack_psn_offset": sack.ack_psn_offset,
            "mrc.sack.ack_psn": sack.cack_psn + sack.ack_psn_offset & 0xFFFFFF,
        }
    )
    fields: dict[str, int | str | bool] = {
        "mrc.type": 0,
        "mrc.next": 0,
        "mrc.sack.m": int(sack.mark),
        "mrc.sack.pr": sack.probe_reply,
        "mrc.entropy": sack.entropy,
        "mrc.spdcid": sack.spdcid,
        "mrc.dpdcid": sack.dpdcid,
        "mrc.sack.cack_psn": sack.cack_psn,
        "mrc.cc_type": sack.cc_type,
        "mrc.cc_flags": sack.cc_flags,
        "mrc.sack.mpr": sack.mpr,
        "mrc.sack.offset": sack.sack_offset,
        "mrc.sack.bitmap": sack.bitmap,
        "mrc.sack.range": ranges,
        "mrc.sack.missing": missing,
        "mrc.cc_state.tx_timestamp": sack.tx_timestamp,
        "mrc.cc_state.ooo_count": sack.ooo_count,
        "mrc.cc_state.restore_cwnd": sack.restore_cwnd,
        "mrc.cc_state.rcv_cwnd_pen": sack.rcv_cwnd_pen,
        "mrc.cc_state.rcvd_bytes": sack.rcvd_units,
    }
    expert = ("mrc.expert.mark",) if sack.mark else ()
    return control_packet(wire.Opcode.SACK, sack.pack(), fields | probe, psn=sack.cack_psn, expert=expert)


def nack_packet(reason: wire.NackReason) -> Packet:
    """Return a NACK with this reason."""
    nack = wire.Nack(reason, EV, 0x123456, 0x1111, 0x2222, 0x5, 0x7788, 0x99)
    fields: dict[str, int | str | bool] = {
        "mrc.type": 0,
        "mrc.next": 0,
        "mrc.nack.reason": int(reason),
        "mrc.nack.psn": 0x123456,
        "mrc.vendor": 0x99,
        "mrc.entropy": EV,
        "mrc.spdcid": 0x1111,
        "mrc.dpdcid": 0x2222,
        "mrc.cc_type": 2,
        "mrc.cc_flags": 5,
        "mrc.tx_timestamp": 0x7788,
    }
    fatal = reason is wire.NackReason.UNEXP_EVENT
    expert = "mrc.expert.fatal" if fatal else "mrc.expert.nack"
    return control_packet(wire.Opcode.NACK, nack.pack(), fields, psn=0x123456, expert=(expert,))


def every_packet() -> list[Packet]:
    """Return at least one packet of each opcode, with each optional header, mark and NACK reason."""
    op = wire.Opcode
    writes = [o for o in op if o <= op.WRITE_ONLY_IMM]
    packets = [data_packet(o, 64 + i, timestamp=bool(i & 1)) for i, o in enumerate(writes)]
    packets += [
        data_packet(op.WRITE_ONLY, 0),
        data_packet(op.WRITE_MIDDLE, 4096, retransmission=True, ce=True),
        data_packet(op.WRITE_FIRST, 4096, trimmed=DSCP.trimmed),
        data_packet(op.WRITE_ONLY_IMM, 100, timestamp=True, trimmed=DSCP.trimmed_lasthop),
        data_packet(op.WRITE_LAST_IMM, 200, trimmed=DSCP.trimmed, mended=True),
        data_packet(op.WRITE_MIDDLE, 4096, timestamp=True, trimmed=DSCP.trimmed, mended=True),
    ]
    quiet = wire.Sack(cack_psn=100, entropy=EV, ack_psn_offset=-3)
    holes = wire.Sack(
        cack_psn=0xFFFFFC,
        entropy=0xDEADBEEF,
        ack_psn_offset=5,
        mark=wire.EvMark.SKIP_ONCE,
        sack_offset=2,
        bitmap=0b1011_0111 | 1 << 63,
        spdcid=0x1111,
        dpdcid=0x2222,
        cc_flags=9,
        mpr=8,
        tx_timestamp=0x3333,
        ooo_count=0x0444,
        restore_cwnd=True,
        rcv_cwnd_pen=64,
        rcvd_units=0x0A0B0C,
    )
    reply = wire.Sack(
        cack_psn=7, entropy=EV, ack_psn_offset=-2, probe_reply=True, mark=wire.EvMark.ALWAYS_SKIP
    )
    packets += [
        sack_packet(quiet, "", ""),
        # Bits 0-2, 4, 5, 7 and 63, counted from PSN 0xFFFFFE. PSNs wrap to 0 after 0xFFFFFF.
        sack_packet(holes, "16777214-0,2-3,5,61", "1,4,6-60"),
        sack_packet(reply, "", ""),
    ]
    packets += [nack_packet(reason) for reason in wire.NackReason]
    probe = wire.Probe(0xFFEE, 0x1111, 0x2222, 0x3344, 0x55)
    stamped: dict[str, int | str | bool] = {
        "mrc.type": 0,
        "mrc.next": 0,
        "mrc.tsr": 0,
        "mrc.ftype": 1,
        "mrc.vendor": 0x55,
        "mrc.tx_timestamp": 0x3344,
    }
    packets.append(
        control_packet(
            op.PROBE_REQUEST,
            probe.pack(),
            stamped | {"mrc.probe_id": 0xFFEE, "mrc.spdcid": 0x1111, "mrc.dpdcid": 0x2222},
        )
    )
    for kind in wire.EndpointOp:
        request = wire.EndpointRequest(kind, 0x8000_0005, 0x3344, 0x55)
        ports = {"mrc.port_status_mask": 0x8000_0005, "mrc.request_id": 0xBEEF}
        packets.append(
            control_packet(
                op.ENDPOINT_REQUEST,
                request.pack(),
                stamped | ports | {"mrc.endpoint.request": int(kind)},
                dest_qpn=wire.ENDPOINT_QPN,
                psn=0xBEEF,
            )
        )
        response = wire.EndpointResponse(kind, 0x3344)
        packets.append(
            control_packet(
                op.ENDPOINT_RESPONSE,
                response.pack(),
                {
                    "mrc.type": 0,
                    "mrc.next": 0,
                    "mrc.request_id": 0xBEEF,
                    "mrc.endpoint.response": int(kind),
                    "mrc.tx_timestamp": 0x3344,
                },
                dest_qpn=wire.ENDPOINT_QPN,
                psn=0xBEEF,
            )
        )
    aeth = wire.Aeth(msn=0x123456)
    packets.append(
        control_packet(op.ACKNOWLEDGE, aeth.pack(), {"mrc.aeth.syndrome": 0x1F, "mrc.aeth.msn": 0x123456})
    )
    return packets


def write_pcap(path: FilePath, frames: list[bytes], linktype: int = LINKTYPE_ETHERNET) -> None:
    """Write a capture file. Its link type is Ethernet, or SLL2 as in captures of `tcpdump -i any`."""
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, linktype))
        for number, frame in enumerate(frames):
            if linktype == LINKTYPE_SLL2:
                # SLL2: protocol, reserved, interface index, ARPHRD_ETHER, packet type, address length,
                # address.
                head = struct.pack(">HHIHBB8s", 0x86DD, 0, 3, 1, 0, 6, frame[6:12] + b"\0\0")
                frame = head + frame[14:]
            out.write(struct.pack("<IIII", number, 0, len(frame), len(frame)) + frame)
