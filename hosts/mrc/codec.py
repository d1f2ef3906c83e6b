"""Encode and decode MRC packets: as frames of bytes, or as objects for a simulated network.

Only this module converts data packets and SACKs to bytes and back. The headers before the BTH are fixed for
one path, traffic class and length, so they are cached with the EV. For each data packet, only BTH, METH and
RETH are packed (with one `Struct` call), and the payload is copied and its CRC computed.

`ObjectBuilder` makes objects in place of frames, without an ICRC. To use objects, make both endpoints with
`Endpoint(..., objects=True)`. Times, completions, marks, counters and events are the same as with frames. The
driver (see `mrclab.hosts.rdma.endpoint`) calls these two methods for objects:

    for port, packet in endpoint.packets_to_send(now_ns, free_ports, limit): ...
    endpoint.receive_packet(port, packet, now_ns)

The simulated network reads and changes these fields of a packet:

* `packet.flow` is one object for all packets of one EV and class of a queue pair. It has `src`, `dst`, `ev`,
  `outer_dst` (the uSID container; None if switches hash the EV) and `dscp`. In `flow.route` the network may
  store the number of a computed route. The network must not store an object there: Python's garbage collector
  ignores packets, so it could not free a cycle of references through a packet.
* `packet.frame_bytes` is the length of the frame that the object stands for.
* `packet.ce = True` sets the mark CE of the packet; `packet.cut(dscp, frame_bytes)` trims a `DataPacket`.

The network may deliver the same object twice, because receivers do not change packets. If the endpoint has
`payloads=True`, the receiver copies a write's data into its memory. Otherwise the receiver writes nothing,
but still checks addresses and keys. Then all memory regions and writes of a simulation may share one buffer.
"""

from __future__ import annotations

from typing import Final

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.evs.ev import Ev
from mrclab.hosts.mrc.outstanding import SentPacket
from mrclab.hosts.mrc.packets import NOMINAL_EXTRA_BYTES, ControlPacket, DataPacket, FrameOptions, SackPacket
from mrclab.hosts.mrc.wire import (
    BTH_TIMESTAMP,
    CC_TYPE_SACK,
    DATA_STRUCT,
    DATA_TS_STRUCT,
    METH_LEN,
    SACK_STRUCT,
    SETH_MARK_SHIFT,
    SETH_PROBE_REPLY,
    TSETH_FTYPE,
    TSETH_LEN,
    Opcode,
    timestamp,
)
from mrclab.hosts.rdma.frames import (
    BTH_LEN,
    BTH_OFFSET,
    BTH_STRUCT,
    ICRC_LEN,
    IMM_LEN,
    IMM_STRUCT,
    PSN_MASK,
    RETH_LEN,
    UDP_LEN,
    UDP_OFFSET,
    Flow,
    seal,
    seal_payload,
    traffic_class,
)

DATA_OVERHEAD: Final = UDP_LEN + BTH_LEN + METH_LEN + RETH_LEN + ICRC_LEN
"""UDP length of a data packet that has no payload, no TSETH and no immediate data, in bytes."""
_ONLY: Final = int(Opcode.WRITE_ONLY)
_ONLY_IMM: Final = int(Opcode.WRITE_ONLY_IMM)
_FIRST: Final = int(Opcode.WRITE_FIRST)
_MIDDLE: Final = int(Opcode.WRITE_MIDDLE)
_LAST: Final = int(Opcode.WRITE_LAST)
_LAST_IMM: Final = int(Opcode.WRITE_LAST_IMM)
_SACK: Final = Opcode.SACK << 24
_TS_BIT: Final = BTH_TIMESTAMP << 24
_DATA_END: Final = BTH_OFFSET + DATA_STRUCT.size
_DATA_TS_END: Final = BTH_OFFSET + DATA_TS_STRUCT.size
_TSETH_START: Final = BTH_OFFSET + BTH_LEN + METH_LEN
_SACK_END: Final = BTH_OFFSET + SACK_STRUCT.size
_NOMINAL: Final = ICRC_LEN - UDP_OFFSET + NOMINAL_EXTRA_BYTES
"""Bytes to add to the ICRC's offset in a frame, to get the packet's nominal size (UDP length + 40)."""


def opcode_of(packet: SentPacket) -> int:
    """Return the opcode of a data packet: it depends on the position of the packet in its message."""
    request, offset = packet.request, packet.offset
    if offset + packet.length < request.length:
        return _MIDDLE if offset else _FIRST
    if request.imm is None:
        return _LAST if offset else _ONLY
    return _LAST_IMM if offset else _ONLY_IMM


class PacketBuilder:
    """A builder of one endpoint's frames, as bytes. The subclass `ObjectBuilder` builds objects instead."""

    def __init__(self, config: MrcConfig, options: FrameOptions) -> None:
        self._options = options
        self._pkey = config.pkey
        self._timestamps = config.timestamps
        dscp = config.dscp
        self.tc_control = traffic_class(dscp.control, ecn_capable=False)
        self._tc_trimmable = traffic_class(dscp.trimmable, ecn_capable=True)
        self._tc_trimmable_retx = traffic_class(dscp.trimmable_retx, ecn_capable=True)

    def control(self, ev: Ev, opcode: int, dest_qpn: int, psn: int, extension: bytes) -> object:
        """Return a control packet: BTH and one extension header, with the DSCP of control packets."""
        return self.probe(ev, self.tc_control, opcode, dest_qpn, psn, extension)

    def probe(self, ev: Ev, tclass: int, opcode: int, dest_qpn: int, psn: int, extension: bytes) -> object:
        """Return a packet without payload: BTH and one extension header."""
        middle = BTH_STRUCT.pack(opcode, 0, self._pkey, dest_qpn, psn & PSN_MASK) + extension
        return self.seal(ev, tclass, middle)

    def seal(self, ev: Ev, tclass: int, middle: bytes) -> bytes:
        """Return a packet without payload; ``middle`` holds its headers from the BTH on."""
        head, crc = ev.head(self._options, tclass, UDP_LEN + len(middle) + ICRC_LEN)
        return seal(head, crc, middle)

    def sack(self, ev: Ev, packet: SackPacket, context_ids: int, ooo_count: int) -> object:
        """Return a SACK. `ObjectBuilder` ignores `context_ids` and `ooo_count`."""
        middle = SACK_STRUCT.pack(
            _SACK | self._pkey,
            packet.qpn,
            packet.cack_psn,
            packet.mark << SETH_MARK_SHIFT | (SETH_PROBE_REPLY if packet.probe_reply else 0),
            packet.ack_psn_offset,
            packet.entropy,
            context_ids,
            packet.cack_psn,
            CC_TYPE_SACK << 12 | packet.mpr,
            packet.sack_offset,
            packet.bitmap,
            packet.tx_timestamp << 16 | ooo_count,
            packet.rcvd_units | packet.penalty << 24 | packet.restore_cwnd << 31,
        )
        return self.seal(ev, self.tc_control, middle)

    def data(self, now_ns: int, packet: SentPacket, dest_qpn: int, flags: int, tclass: int) -> object:
        """Return a data packet; `flags` are the upper 8 bits of the BTH's last word, already shifted."""
        request, ev = packet.request, packet.ev
        offset, length = packet.offset, packet.length
        imm = request.imm
        if imm is not None and offset + length < request.length:
            imm = None
        pad = -length & 3
        udp_length = DATA_OVERHEAD + length + pad
        first = opcode_of(packet) << 24 | pad << 20 | self._pkey
        message = request.rqmsn << 16 | request.msn
        if self._timestamps:
            udp_length += TSETH_LEN
            middle = DATA_TS_STRUCT.pack(
                first,
                dest_qpn,
                flags | _TS_BIT | packet.psn & PSN_MASK,
                message,
                timestamp(now_ns) << 16 | TSETH_FTYPE,
                request.va + offset,
                request.rkey,
                request.length,
            )
        else:
            middle = DATA_STRUCT.pack(
                first,
                dest_qpn,
                flags | packet.psn & PSN_MASK,
                message,
                request.va + offset,
                request.rkey,
                request.length,
            )
        if imm is not None:
            udp_length += IMM_LEN
            middle += IMM_STRUCT.pack(imm)
        payload: memoryview | bytes = request.data[offset : offset + length]
        if pad:
            payload = bytes(payload) + b"\0" * pad
        found = ev.heads.get(udp_length << 8 | tclass)
        head, crc = self._new_head(ev, tclass, udp_length) if found is None else found
        return seal_payload(head, crc, middle, payload)

    def _new_head(self, ev: Ev, tclass: int, udp_length: int) -> tuple[bytes, int]:
        """Return the headers before the BTH and the ICRC's start value. Cache a retransmission's headers."""
        if tclass == self._tc_trimmable:
            ev.head(self._options, self._tc_trimmable_retx, udp_length)
        return ev.head(self._options, tclass, udp_length)


def read_stamp(view: memoryview, flags_psn: int) -> int | None:
    """Return the timestamp of a trimmed data packet, which has lost its payload; None without TSETH."""
    if not flags_psn & _TS_BIT or len(view) < _TSETH_START + 2:
        return None
    return view[_TSETH_START] << 8 | view[_TSETH_START + 1]


def read_data(view: memoryview, timestamps: bool) -> DataPacket | None:
    """Return the data packet of a frame; None if the frame is too short for its headers.

    The caller has checked the ICRC. `timestamps`: expect a TSETH. If this expectation is wrong, the headers
    are unpacked twice.
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
        timestamps = last & _TS_BIT != 0
        if timestamps and end < _DATA_TS_END:
            return None
    if timestamps:
        fields = DATA_TS_STRUCT.unpack_from(view, BTH_OFFSET)
        first, qpn, last, message, stamp, va, rkey, total = fields
        if last & _TS_BIT:
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
    """Return the SACK of a frame, whose ICRC the caller has checked; None if the frame is too short."""
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


class ObjectBuilder(PacketBuilder):
    """A builder of one endpoint's packets, as objects."""

    def __init__(self, config: MrcConfig, options: FrameOptions, *, payloads: bool = False) -> None:
        super().__init__(config, options)
        self._payloads = payloads

    def probe(self, ev: Ev, tclass: int, opcode: int, dest_qpn: int, psn: int, extension: bytes) -> object:
        """Return a control packet: BTH and one extension header, without payload."""
        size = UDP_LEN + BTH_LEN + len(extension) + ICRC_LEN + NOMINAL_EXTRA_BYTES
        packet = ControlPacket(dest_qpn, size, opcode, psn & PSN_MASK, extension)
        packet.flow = flow_of(ev, tclass)
        return packet

    def sack(self, ev: Ev, packet: SackPacket, context_ids: int, ooo_count: int) -> object:
        """Return a SACK."""
        packet.flow = flow_of(ev, self.tc_control)
        return packet

    def data(self, now_ns: int, packet: SentPacket, dest_qpn: int, flags: int, tclass: int) -> object:
        """Return a data packet; `flags` are the upper 8 bits of the BTH's last word, already shifted."""
        request, offset, length = packet.request, packet.offset, packet.length
        size = DATA_OVERHEAD + NOMINAL_EXTRA_BYTES + length + (-length & 3)
        stamp = 0
        if self._timestamps:
            size += TSETH_LEN
            stamp = timestamp(now_ns)
            flags |= BTH_TIMESTAMP << 24
        imm = request.imm
        if imm is not None:
            if offset + length < request.length:
                imm = None
            else:
                size += IMM_LEN
        made = DataPacket(
            dest_qpn,
            size,
            opcode_of(packet),
            flags | packet.psn & PSN_MASK,
            request.rqmsn,
            request.msn,
            stamp,
            request.va + offset,
            request.rkey,
            request.length,
            imm,
            request.data[offset : offset + length] if self._payloads else None,
            length,
        )
        made.flow = flow_of(packet.ev, tclass)
        return made


def flow_of(ev: Ev, tclass: int) -> Flow:
    """Return the flow of the packets on an EV in a traffic class, from a cache."""
    if ev.flow is not None and ev.flow_tclass == tclass:
        return ev.flow
    if ev.other_flow is not None and ev.other_tclass == tclass:
        return ev.other_flow
    flows = ev.flows
    if flows is None:
        flows = ev.flows = {}
    found = flows.get(tclass)
    if found is None:
        paths = ev.plane.paths
        found = flows[tclass] = Flow(BTH_OFFSET, 0, 0, ev.value, paths.src, paths.dst, tclass, ())
        found.outer_dst = ev.path.outer_dst
    ev.other_flow, ev.other_tclass = ev.flow, ev.flow_tclass
    ev.flow, ev.flow_tclass = found, tclass
    return found
