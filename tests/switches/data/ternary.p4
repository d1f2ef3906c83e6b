// Tables too large to be searched entry by entry.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> a; bit<16> b; bit<32> c; bit<9> d; bit<7> e; bit<128> f; bit<32> first; bit<32> second; }
struct headers_t { key_t key; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.key); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.key); } }

control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    direct_counter(CounterType.packets_and_bytes) hits;
    action first(bit<32> v) { hdr.key.first = v; }
    action second(bit<32> v) { hdr.key.second = v; }
    table masks {
        key = { hdr.key.f : ternary; hdr.key.a : exact; hdr.key.c : lpm; hdr.key.b : ternary; }
        actions = { first; NoAction; }
        counters = hits;
        size = 4096;
    }
    table ranges {
        key = { hdr.key.b : range; hdr.key.d : range; hdr.key.e : optional; }
        actions = { second; NoAction; }
        size = 1000;
    }
    apply {
        sm.egress_spec = 2;
        if (masks.apply().miss) { hdr.key.first = 99; }
        ranges.apply();
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
