// Checksums verified and updated: over headers that may be there or not, odd bits, and the payload.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> kind; bit<8> note; bit<16> cut; bit<16> fixed; bit<8> narrow; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> length; bit<16> id; bit<3> flags; bit<13> offset;
    bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header udp_t { bit<16> src; bit<16> dst; bit<16> length; bit<16> checksum; }
header odd_t { bit<5> a; bit<11> b; bit<8> c; }
struct headers_t { key_t key; ipv4_t ipv4; udp_t udp; odd_t odd; }
struct meta_t { bit<9> port; bit<16> seen; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.key);
        m.seen = hdr.key.fixed;
        transition select(hdr.key.kind) { 1: ipv4; 2: udp; 3: both; 4: odd; default: accept; }
    }
    state ipv4 { packet.extract(hdr.ipv4); transition accept; }
    state udp { packet.extract(hdr.udp); transition accept; }
    state both { packet.extract(hdr.ipv4); packet.extract(hdr.udp); transition accept; }
    state odd { packet.extract(hdr.odd); transition udp; }
}
control V(inout headers_t hdr, inout meta_t m) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, { hdr.ipv4.version, hdr.ipv4.ihl,
            hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl,
            hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }, hdr.ipv4.checksum, HashAlgorithm.csum16);
        verify_checksum_with_payload(hdr.udp.isValid(), { hdr.ipv4.src, hdr.ipv4.dst, hdr.odd.a, hdr.odd.b,
            hdr.odd.c, 8w0, 8w17, hdr.udp.src, hdr.udp.dst, hdr.udp.length }, hdr.udp.checksum,
            HashAlgorithm.csum16);
        verify_checksum(hdr.key.note == 1, { hdr.key.kind, hdr.key.cut }, m.seen, HashAlgorithm.crc16);
    }
}
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        m.port = sm.ingress_port;
        hdr.key.note = (bit<8>)sm.checksum_error;
        if (hdr.ipv4.isValid()) { hdr.ipv4.ttl = hdr.ipv4.ttl - 1; }
        if (hdr.key.kind == 5) { hdr.udp.setValid(); hdr.udp.dst = 7; }
        if (hdr.key.cut != 0) { truncate((bit<32>)hdr.key.cut); }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout meta_t m) {
    apply {
        update_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.ihl,
            hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl,
            hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }, hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(true, { hdr.ipv4.src, hdr.ipv4.dst, hdr.odd.a, hdr.odd.b,
            hdr.odd.c, 8w0, 8w17, hdr.udp.src, hdr.udp.dst, hdr.udp.length }, hdr.udp.checksum,
            HashAlgorithm.csum16);
        update_checksum(hdr.key.kind != 9, { m.port, hdr.key.kind, hdr.udp.checksum }, hdr.key.fixed,
            HashAlgorithm.crc16);
        update_checksum(true, { hdr.ipv4 }, hdr.key.narrow, HashAlgorithm.crc32);
    }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
