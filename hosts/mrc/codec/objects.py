"""Packets that cross a simulated network as objects: no frame is written, and no ICRC is made.

Both ends must be endpoints of this kind: `Endpoint(..., objects=True)`. Everything but the form of the
packets is as with frames: the same packets at the same times, completions, marks, counters and events. The
driver of `mrclab.hosts.rdma.endpoint` works in the same way, with two verbs under other names:

    for port, packet in endpoint.packets_to_send(now_ns, free_ports, limit): ...
    endpoint.receive_packet(port, packet, now_ns)

The fields of a packet that a network reads, and the changes that it may make:

* `packet.flow` is one object for all packets of one EV and class of a queue pair: `src` and `dst`, `ev`,
  `outer_dst` (the uSID container; None for EVs that switches hash), `dscp`. `flow.route` is the network's
  own: it may keep there the number of the route that it computed once. It keeps no object there: packets are
  not tracked by Python's collector, so none may refer to what refers to a network.
* `packet.frame_bytes` is the length of the frame that it stands for.
* `packet.ce = True` marks it; `packet.cut(dscp, frame_bytes)` trims a `DataPacket`.

A duplicate may be the same object: receivers change nothing. With `payloads` the receiver copies a write's
data into its memory, as with frames. Without, nothing is written into memory regions, so all of a
simulation's regions, and the data of its writes, may share one buffer; addresses and keys are checked.
"""

from __future__ import annotations

from mrclab.hosts.mrc.codec.packets import DATA_OVERHEAD, PacketBuilder, opcode_of
from mrclab.hosts.mrc.codec.values import NOMINAL_EXTRA_BYTES, ControlPacket, DataPacket, SackPacket
from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.evs.ev import Ev
from mrclab.hosts.mrc.frames import FrameOptions
from mrclab.hosts.mrc.outstanding.scoreboard import SentPacket
from mrclab.hosts.mrc.wire import BTH_TIMESTAMP, TSETH_LEN, timestamp
from mrclab.hosts.rdma.frames import Flow
from mrclab.hosts.rdma.headers import BTH_LEN, BTH_OFFSET, ICRC_LEN, IMM_LEN, UDP_LEN
from mrclab.hosts.rdma.psn import PSN_MASK


class ObjectBuilder(PacketBuilder):
    """Builds the packets of one endpoint as objects."""

    def __init__(self, config: MrcConfig, options: FrameOptions, *, payloads: bool = False) -> None:
        super().__init__(config, options)
        self._payloads = payloads

    def probe(self, ev: Ev, tclass: int, opcode: int, dest_qpn: int, psn: int, extension: bytes) -> object:
        """Return a packet without payload: BTH and one extension header."""
        size = UDP_LEN + BTH_LEN + len(extension) + ICRC_LEN + NOMINAL_EXTRA_BYTES
        packet = ControlPacket(dest_qpn, size, opcode, psn & PSN_MASK, extension)
        packet.flow = flow_of(ev, tclass)
        return packet

    def sack(self, ev: Ev, packet: SackPacket, context_ids: int, ooo_count: int) -> object:
        """Return a SACK."""
        packet.flow = flow_of(ev, self.tc_control)
        return packet

    def data(self, now_ns: int, packet: SentPacket, dest_qpn: int, flags: int, tclass: int) -> object:
        """Return a data packet; `flags` are those of the BTH's last word, at their place."""
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
    """Return the flow of packets on an EV in a traffic class, made once."""
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
