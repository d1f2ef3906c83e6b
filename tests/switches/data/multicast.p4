// Multicast: copies that egress tells apart, makes longer and shorter, or drops.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<16> group; bit<8> op; bit<8> rid; bit<16> port; bit<16> length; bit<8> type; }
header more_t { bit<32> a; bit<16> sum; }
struct headers_t { key_t key; more_t[3] more; }
struct meta_t { bit<16> seen; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.key);
        transition select(hdr.key.op) { 1: more; default: accept; }
    }
    state more { packet.extract(hdr.more.next); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        m.seen = hdr.key.group + 1;
        sm.egress_spec = 2;
        sm.mcast_grp = hdr.key.group;
        if (hdr.key.op == 2) { hdr.more.push_front(1); hdr.more[0].setValid(); hdr.more[0].a = 7; }
        if (hdr.key.op == 3) { mark_to_drop(sm); }
        if (hdr.key.op == 4) { sm.egress_spec = 511; }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    counter(8, CounterType.packets_and_bytes) copies;
    apply {
        hdr.key.rid = (bit<8>)sm.egress_rid;
        hdr.key.port = (bit<16>)sm.egress_port;
        hdr.key.length = (bit<16>)sm.packet_length;
        hdr.key.type = (bit<8>)sm.instance_type;
        copies.count((bit<32>)sm.egress_rid);
        if (sm.egress_rid == 1) {
            hdr.more.push_front(1);
            hdr.more[0].setValid();
            hdr.more[0].a = (bit<32>)m.seen;
        } else if (sm.egress_rid == 2) {
            hdr.more.pop_front(1);
        } else if (sm.egress_rid == 3) {
            m.seen = m.seen + 1;
            hdr.more[2].setValid();
            hdr.more[2].a = (bit<32>)m.seen;
        } else if (sm.egress_rid == 4 && sm.egress_port == 3) {
            mark_to_drop(sm);
        }
    }
}
control C(inout headers_t hdr, inout meta_t m) {
    apply {
        update_checksum_with_payload(hdr.more[0].isValid(), { hdr.key, hdr.more[0].a }, hdr.more[0].sum,
            HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
