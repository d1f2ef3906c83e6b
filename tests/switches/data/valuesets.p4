// Parser value sets: of one field, and of a structure with several match kinds.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<16> type; bit<8> a; bit<24> b; bit<9> c; bit<7> d; }
header note_t { bit<8> way; }
struct headers_t { note_t note; key_t key; note_t more; }
struct meta_t { }
struct pair_t {
    bit<8> a;
    @match(ternary) bit<24> b;
    @match(range) bit<9> c;
    @match(lpm) bit<7> d;
}

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    value_set<bit<16>>(4) types;
    value_set<pair_t>(8) pairs;
    state start {
        packet.extract(hdr.key);
        transition select(hdr.key.type) {
            types: special;
            0x0800: accept;
            default: look;
        }
    }
    state special {
        packet.extract(hdr.more);
        transition accept;
    }
    state look {
        transition select(hdr.key.a, hdr.key.b, hdr.key.c, hdr.key.d) {
            pairs: special;
            default: accept;
        }
    }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.note); packet.emit(hdr.key); packet.emit(hdr.more); }
}
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        hdr.note.setValid();
        hdr.note.way = 0;
        if (hdr.more.isValid()) {
            hdr.note.way = hdr.more.way ^ 0xff;
        }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
