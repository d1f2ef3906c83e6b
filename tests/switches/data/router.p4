// An IPv4 router with a tunnel: routes by longest prefix, counts the TTL down, and takes tunnelled packets by
// the tunnel's number alone.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<6> dscp; bit<2> ecn; bit<16> length; bit<16> id; bit<3> flags;
    bit<13> offset; bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header tunnel_t { bit<16> type; bit<16> id; }
struct headers_t { ethernet_t ethernet; tunnel_t tunnel; ipv4_t ipv4; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) { 0x800: ipv4; 0x1212: tunnel; default: accept; }
    }
    state tunnel {
        packet.extract(hdr.tunnel);
        transition select(hdr.tunnel.type) { 0x800: ipv4; default: accept; }
    }
    state ipv4 { packet.extract(hdr.ipv4); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn,
            hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol,
            hdr.ipv4.src, hdr.ipv4.dst }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action drop() { mark_to_drop(sm); }
    action route(bit<48> mac, bit<9> port) {
        sm.egress_spec = port;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
    action into(bit<16> id, bit<9> port) {
        sm.egress_spec = port;
        hdr.tunnel.setValid();
        hdr.tunnel.type = hdr.ethernet.type;
        hdr.tunnel.id = id;
        hdr.ethernet.type = 0x1212;
    }
    action along(bit<9> port) { sm.egress_spec = port; }
    action out_of(bit<9> port) {
        sm.egress_spec = port;
        hdr.ethernet.type = hdr.tunnel.type;
        hdr.tunnel.setInvalid();
    }
    table routes {
        key = { hdr.ipv4.dst : lpm; }
        actions = { route; into; drop; }
        default_action = drop();
    }
    table tunnels {
        key = { hdr.tunnel.id : exact; }
        actions = { along; out_of; drop; }
        default_action = drop();
    }
    apply {
        if (sm.checksum_error == 1 || (hdr.ipv4.isValid() && hdr.ipv4.ttl <= 1)) {
            drop();
        } else if (hdr.tunnel.isValid()) {
            tunnels.apply();
        } else if (hdr.ipv4.isValid()) {
            routes.apply();
        } else {
            drop();
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
