// uN (RFC 9800 section 4.1.1) and nothing else: what `un.ll` does by hand, as a P4 program.
#include <core.p4>
#include <v1model.p4>

typedef bit<48>  mac_addr_t;
typedef bit<128> ipv6_addr_t;
typedef bit<9>   port_t;

const ipv6_addr_t BLOCK_MASK = 0xffffffff_00000000_00000000_00000000;
const ipv6_addr_t LIST_MASK  = 0x00000000_ffffffff_ffffffff_ffffffff;
const ipv6_addr_t REST_MASK  = 0x00000000_0000ffff_ffffffff_ffffffff;

header ethernet_t {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16>    ether_type;
}

header ipv6_t {
    bit<32>     first_word;
    bit<16>     payload_len;
    bit<8>      next_hdr;
    bit<8>      hop_limit;
    ipv6_addr_t src_addr;
    ipv6_addr_t dst_addr;
}

struct headers_t {
    ethernet_t ethernet;
    ipv6_t     ipv6;
}

struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            0x86dd: ipv6;
            default: accept;
        }
    }
    state ipv6 {
        packet.extract(hdr.ipv6);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Compute(inout headers_t hdr, inout metadata_t meta) { apply { } }
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { apply { } }

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action un() {
        hdr.ipv6.dst_addr = (hdr.ipv6.dst_addr & BLOCK_MASK) | ((hdr.ipv6.dst_addr << 16) & LIST_MASK);
    }

    action forward(port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        standard.egress_spec = port;
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
    }

    action drop() {
        mark_to_drop(standard);
    }

    table my_sid {
        key = { hdr.ipv6.dst_addr : lpm; }
        actions = { un; drop; }
        const default_action = drop();
        size = 64;
    }

    table next_hop {
        key = { hdr.ipv6.dst_addr : lpm; }
        actions = { forward; drop; }
        const default_action = drop();
        size = 1024;
    }

    apply {
        if (!hdr.ipv6.isValid() || hdr.ipv6.hop_limit <= 1 || (hdr.ipv6.dst_addr & REST_MASK) == 0) {
            drop();
        } else if (my_sid.apply().hit) {
            next_hop.apply();
        }
    }
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv6);
    }
}

V1Switch(P(), Verify(), I(), E(), Compute(), D()) main;
