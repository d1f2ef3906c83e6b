// What a queue tells: written into the frame behind it. The first byte says which port it leaves by, 0 a group.
#include <core.p4>
#include <v1model.p4>

header report_t {
    bit<8> port; bit<8> rid; bit<32> enq_timestamp; bit<32> enq_qdepth; bit<32> deq_timedelta; bit<32> deq_qdepth;
    bit<48> ingress; bit<48> egress;
}
struct headers_t { report_t report; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.report); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        if (hdr.report.port == 0) { sm.mcast_grp = 1; } else { sm.egress_spec = (bit<9>)hdr.report.port; }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        hdr.report.rid = (bit<8>)sm.egress_rid;
        hdr.report.enq_timestamp = sm.enq_timestamp;
        hdr.report.enq_qdepth = (bit<32>)sm.enq_qdepth;
        hdr.report.deq_timedelta = sm.deq_timedelta;
        hdr.report.deq_qdepth = (bit<32>)sm.deq_qdepth;
        hdr.report.ingress = sm.ingress_global_timestamp;
        hdr.report.egress = sm.egress_global_timestamp;
    }
}
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
