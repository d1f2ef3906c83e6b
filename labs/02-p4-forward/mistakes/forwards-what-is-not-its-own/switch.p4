// Lab 2: a switch that forwards on uSIDs. Two tables and two actions are yours to write.
#include <core.p4>
#include <v1model.p4>

typedef bit<48>  mac_addr_t;
typedef bit<128> ipv6_addr_t;
typedef bit<9>   port_t;

const bit<16> ETHERTYPE_IPV6 = 0x86dd;

// The block of the fabric are the first 32 bits of an address, and a uSID has 16.
const ipv6_addr_t BLOCK_MASK = 0xffffffff_00000000_00000000_00000000;
const ipv6_addr_t LIST_MASK  = 0x00000000_ffffffff_ffffffff_ffffffff;

header ethernet_t {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16>    ether_type;
}

header ipv6_t {
    bit<4>      version;
    bit<8>      traffic_class;
    bit<20>     flow_label;
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

parser LabParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV6: parse_ipv6;
            default: accept;
        }
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        transition accept;
    }
}

control LabIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // uN: take the own uSID out of the list.
    action un() {
        hdr.ipv6.dst_addr = (hdr.ipv6.dst_addr & BLOCK_MASK) | ((hdr.ipv6.dst_addr << 16) & LIST_MASK);
    }

    // Send to a neighbour: by which port, and with which Ethernet addresses.
    action forward(port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
    }

    // The uSID of this switch.
    table my_sid {
        key = { hdr.ipv6.dst_addr : lpm; }
        actions = { un; NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    // The uSIDs of its neighbours.
    table next_hop {
        key = { hdr.ipv6.dst_addr : lpm; }
        actions = { forward; NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    apply {
        if (!hdr.ipv6.isValid() || hdr.ipv6.hop_limit <= 1) {
            mark_to_drop(standard_metadata);
        } else {
            my_sid.apply();
            if (!next_hop.apply().hit) {
                mark_to_drop(standard_metadata);
            }
        }
    }
}

control LabEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control LabDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv6);
    }
}

control NoChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

V1Switch(LabParser(), NoChecksum(), LabIngress(), LabEgress(), NoChecksum(), LabDeparser()) main;
