// Source routing by a stack of ports, equal-cost paths by a hash of the flow, and a record that each switch
// pushes in front of those before it.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<6> dscp; bit<2> ecn; bit<16> length; bit<16> id; bit<3> flags;
    bit<13> offset; bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header hop_t { bit<1> last; bit<15> port; }
header count_t { bit<16> count; }
header record_t { bit<32> switch_id; bit<32> length; }
struct headers_t { ethernet_t ethernet; hop_t[4] hops; ipv4_t ipv4; count_t count; record_t[4] records; }
struct meta_t { bit<16> bucket; bit<16> left; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) { 0x800: ipv4; 0x1234: hops; default: accept; }
    }
    state hops {
        packet.extract(hdr.hops.next);
        transition select(hdr.hops.last.last) { 1: ipv4; default: hops; }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.ihl == 5, error.HeaderTooShort);
        transition select(hdr.ipv4.protocol) { 253: count; default: accept; }
    }
    state count {
        packet.extract(hdr.count);
        m.left = hdr.count.count;
        transition select(hdr.count.count) { 0: accept; default: records; }
    }
    state records {
        packet.extract(hdr.records.next);
        m.left = m.left - 1;
        transition select(m.left) { 0: accept; default: records; }
    }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action drop() { mark_to_drop(sm); }
    action spread(bit<16> base, bit<32> count) {
        hash(m.bucket, HashAlgorithm.crc16, base, { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol }, count);
    }
    action hop(bit<9> port) { sm.egress_spec = port; hdr.ipv4.ttl = hdr.ipv4.ttl - 1; }
    table group { key = { hdr.ipv4.dst : lpm; } actions = { spread; drop; } default_action = drop(); }
    table next { key = { m.bucket : exact; } actions = { hop; drop; } default_action = drop(); }
    apply {
        if (sm.parser_error != error.NoError || !hdr.ipv4.isValid()) {
            drop();
        } else if (hdr.hops[0].isValid()) {
            sm.egress_spec = (bit<9>)hdr.hops[0].port;
            if (hdr.hops[0].last == 1) { hdr.ethernet.type = 0x800; }
            hdr.hops.pop_front(1);
        } else if (group.apply().hit) {
            next.apply();
        }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action record(bit<32> id) {
        hdr.count.count = hdr.count.count + 1;
        hdr.records.push_front(1);
        hdr.records[0].setValid();
        hdr.records[0].switch_id = id;
        hdr.records[0].length = sm.packet_length;
        hdr.ipv4.length = hdr.ipv4.length + 8;
    }
    table trace { actions = { record; NoAction; } default_action = NoAction(); }
    apply { if (hdr.count.isValid() && hdr.count.count < 4) { trace.apply(); } }
}
control C(inout headers_t hdr, inout meta_t m) {
    apply {
        update_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn,
            hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol,
            hdr.ipv4.src, hdr.ipv4.dst }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
