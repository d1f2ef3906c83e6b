// One large table of each kind, one of which a frame looks into: its EtherType says which.
#include <core.p4>
#include <v1model.p4>

typedef bit<9> port_t;

const bit<16> EXACT   = 0x88b5;  // IEEE 802.1's for experiments, and the next two
const bit<16> PREFIX  = 0x88b6;
const bit<16> TERNARY = 0x88b7;

header ethernet_t {
    bit<48> dst_addr;
    bit<48> src_addr;
    bit<16> ether_type;
}

header key_t {
    bit<32> key;
    bit<32> other;
}

struct headers_t {
    ethernet_t ethernet;
    key_t      key;
}

struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.key);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Compute(inout headers_t hdr, inout metadata_t meta) { apply { } }
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { apply { } }

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action forward(port_t port) {
        standard.egress_spec = port;
    }

    action drop() {
        mark_to_drop(standard);
    }

    table exact_table {
        key = { hdr.key.key : exact; }
        actions = { forward; drop; }
        const default_action = drop();
        size = 131072;
    }

    table prefix_table {
        key = { hdr.key.key : lpm; }
        actions = { forward; drop; }
        const default_action = drop();
        size = 131072;
    }

    table ternary_table {
        key = { hdr.key.key : ternary; hdr.key.other : ternary; }
        actions = { forward; drop; }
        const default_action = drop();
        size = 131072;
    }

    apply {
        if (hdr.ethernet.ether_type == EXACT) {
            exact_table.apply();
        } else if (hdr.ethernet.ether_type == PREFIX) {
            prefix_table.apply();
        } else if (hdr.ethernet.ether_type == TERNARY) {
            ternary_table.apply();
        } else {
            drop();
        }
    }
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.key);
    }
}

V1Switch(P(), Verify(), I(), E(), Compute(), D()) main;
