// The MRC fabric switch: forwards on the segment list that the sender chose, and on nothing else.
//
// There is no routing protocol, no ECMP and no reroute. What a switch knows is static: its own uSIDs
// (my_sid) and one /48 for each neighbour (next_hop). See docs/switch-program.md.
#include <core.p4>
#include <v1model.p4>

#include "headers.p4"
#include "parser.p4"
#include "ecn.p4"
#include "srh.p4"
#include "usid.p4"
#include "ecmp.p4"
#include "queue.p4"
#include "trim.p4"
#include "fault.p4"
#include "probe.p4"

control MrcIngress(inout headers_t hdr,
                   inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    counter(PORT_COUNT, CounterType.packets_and_bytes) port_rx;
    counter(DROP_COUNT, CounterType.packets_and_bytes) drops;
    counter(PORT_COUNT * DROP_COUNT, CounterType.packets_and_bytes) port_drops;  // by ingress port * 16 + reason

    Fault() ingress_fault;
    MicroSegment() micro_segment;
    Ecmp() ecmp;
    TrimLength() trim_length;
    PortQueue() port_queue;
    EcnMark() ecn_mark;
    Trim() trim;
    Probe() probe;
    Unpack() unpack;

    apply {
        port_rx.count((bit<32>)standard_metadata.ingress_port);
        ingress_fault.apply(hdr, standard_metadata.ingress_port, drop_t.FAULT_INGRESS, meta, standard_metadata);
        if (meta.drop == drop_t.NONE) {
            if (hdr.ipv6.isValid()) {
                micro_segment.apply(hdr, meta, standard_metadata);
                if (meta.drop == drop_t.NOT_OUR_SID || meta.drop == drop_t.NO_ROUTE) {
                    ecmp.apply(hdr, meta, standard_metadata);
                }
                if (meta.drop == drop_t.NONE) {
                    trim_length.apply(hdr, meta);
                    port_queue.apply(hdr, meta, standard_metadata);
                    ecn_mark.apply(hdr, meta, standard_metadata);
                    if (meta.trim == 1) {
                        trim.apply(hdr, meta, standard_metadata);
                    }
                    probe.apply(hdr, meta, standard_metadata);
                    if (meta.unpack == 1) {
                        unpack.apply(hdr);
                    }
                }
            } else {
                meta.drop = drop_t.NOT_IPV6;
            }
        }
        if (meta.drop != drop_t.NONE) {
            drops.count((bit<32>)(bit<8>)meta.drop);
            port_drops.count(((bit<32>)standard_metadata.ingress_port << 4) | (bit<32>)(bit<8>)meta.drop);
            mark_to_drop(standard_metadata);
        }
    }
}

control MrcEgress(inout headers_t hdr,
                  inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    counter(PORT_COUNT, CounterType.packets_and_bytes) port_tx;
    counter(PORT_COUNT, CounterType.packets_and_bytes) port_tx_high;
    counter(DROP_COUNT, CounterType.packets_and_bytes) egress_drops;

    Fault() egress_fault;

    apply {
        egress_fault.apply(hdr, standard_metadata.egress_port, drop_t.FAULT_EGRESS, meta, standard_metadata);
        if (meta.drop != drop_t.NONE) {
            egress_drops.count((bit<32>)(bit<8>)meta.drop);
            mark_to_drop(standard_metadata);
        } else {
            port_tx.count((bit<32>)standard_metadata.egress_port);
            if (standard_metadata.priority != 0) {
                port_tx_high.count((bit<32>)standard_metadata.egress_port);
            }
        }
    }
}

V1Switch(MrcParser(),
         MrcVerifyChecksum(),
         MrcIngress(),
         MrcEgress(),
         MrcComputeChecksum(),
         MrcDeparser()) main;
