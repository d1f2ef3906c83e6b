// Keys, parameters and registers of more than 128 bits, and assertions between reading and writing a register.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> what; bit<160> a; bit<256> b; bit<8> cell; bit<200> note; }
struct headers_t { key_t key; }
struct meta_t { bit<256> old; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.key); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.key); } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    register<bit<256>>(4) cells;
    action mark(bit<200> note) { hdr.key.note = hdr.key.note ^ note; }
    action keep(bit<8> way) {
        cells.read(m.old, (bit<32>)hdr.key.cell);
        assert(hdr.key.a != 7);
        cells.write((bit<32>)hdr.key.cell, m.old + hdr.key.b);
        hdr.key.b = m.old;
        hdr.key.what = way;
    }
    table one {
        key = { hdr.key.a : exact; hdr.key.what : exact; }
        actions = { mark; NoAction; }
    }
    table two {
        key = { hdr.key.b : ternary; hdr.key.what : exact; }
        actions = { mark; NoAction; }
    }
    table three {
        key = { hdr.key.a : lpm; }
        actions = { mark; keep; NoAction; }
    }
    apply {
        sm.egress_spec = 2;
        one.apply();
        two.apply();
        three.apply();
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
