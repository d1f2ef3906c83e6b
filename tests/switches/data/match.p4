// Every kind of table.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> a; bit<16> b; bit<32> c; bit<9> d; bit<7> e; bit<64> f; bit<32> result; }
struct headers_t { key_t key; }
struct meta_t { bit<8> n; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.key); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.key); } }

control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    counter(2000, CounterType.packets_and_bytes) seen;
    direct_counter(CounterType.packets_and_bytes) scan_hits;

    action mark(bit<8> at, bit<8> what) {
        hdr.key.result = (hdr.key.result & ~(32w0xff << (at & 3) * 8)) | ((bit<32>)what << ((at & 3) * 8));
    }
    action note() { hdr.key.result = hdr.key.result + 1; }
    action leave() { sm.egress_spec = 3; exit; }
    action wide(bit<64> v, bit<7> w) { hdr.key.f = v; hdr.key.e = w; }

    table pair {
        key = { hdr.key.a : exact; hdr.key.d : exact; }
        actions = { mark; note; leave; wide; @defaultonly NoAction; }
        default_action = note();
        size = 4096;
    }
    table prefix {
        key = { hdr.key.e : exact; hdr.key.c : lpm; }
        actions = { mark; note; NoAction; }
        default_action = NoAction();
        size = 100;
    }
    table scan {
        key = { hdr.key.b : ternary; hdr.key.c : ternary; hdr.key.a : exact; }
        actions = { mark; note; wide; NoAction; }
        default_action = NoAction();
        counters = scan_hits;
        size = 40;
    }
    table span {
        key = { hdr.key.b : range; hdr.key.a : optional; }
        actions = { mark; note; NoAction; }
        default_action = NoAction();
        size = 20;
    }
    table fixed {
        key = { hdr.key.b : ternary; }
        actions = { mark; note; NoAction; }
        default_action = NoAction();
        const entries = {
            0x0100 &&& 0xff00 : mark(3, 1);
            0x0000 &&& 0x8000 : mark(3, 2);
            _ : note();
        }
    }
    apply {
        sm.egress_spec = 2;
        seen.count((bit<32>)hdr.key.d * 4);
        if (pair.apply().hit) { hdr.key.a = hdr.key.a + 1; }
        prefix.apply();
        switch (scan.apply().action_run) {
            mark: { hdr.key.f = hdr.key.f + 1; }
            note: { hdr.key.f = hdr.key.f + 2; }
        }
        if (!span.apply().hit) { hdr.key.d = hdr.key.d ^ 1; }
        fixed.apply();
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply { if (hdr.key.f == 0) { mark_to_drop(sm); } }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
