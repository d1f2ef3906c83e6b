// A stateful firewall: port 1 is inside; what comes from elsewhere has to belong to a flow that inside began.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<6> dscp; bit<2> ecn; bit<16> length; bit<16> id; bit<3> flags;
    bit<13> offset; bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header tcp_t { bit<16> src; bit<16> dst; bit<32> seq; bit<32> ack; bit<10> rest; bit<6> flags; bit<48> more; }
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; tcp_t tcp; }
struct meta_t { bit<32> first; bit<32> second; bit<1> a; bit<1> b; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.ethernet); packet.extract(hdr.ipv4); packet.extract(hdr.tcp); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    register<bit<1>>(4096) filter_a;
    register<bit<1>>(4096) filter_b;
    action where(bit<32> near, bit<32> far, bit<16> near_port, bit<16> far_port) {
        hash(m.first, HashAlgorithm.crc16, 32w0, { near, far, near_port, far_port, hdr.ipv4.protocol }, 32w4096);
        hash(m.second, HashAlgorithm.crc32, 32w0, { near, far, near_port, far_port, hdr.ipv4.protocol }, 32w4096);
    }
    apply {
        if (!hdr.tcp.isValid()) {
            mark_to_drop(sm);
        } else if (sm.ingress_port == 1) {
            sm.egress_spec = 2;
            where(hdr.ipv4.src, hdr.ipv4.dst, hdr.tcp.src, hdr.tcp.dst);
            if (hdr.tcp.flags & 2 == 2) {
                filter_a.write(m.first, 1);
                filter_b.write(m.second, 1);
            }
        } else {
            sm.egress_spec = 1;
            where(hdr.ipv4.dst, hdr.ipv4.src, hdr.tcp.dst, hdr.tcp.src);
            filter_a.read(m.a, m.first);
            filter_b.read(m.b, m.second);
            if (m.a == 0 || m.b == 0) { mark_to_drop(sm); }
        }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout meta_t m) {
    apply {
        update_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn,
            hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol,
            hdr.ipv4.src, hdr.ipv4.dst }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
