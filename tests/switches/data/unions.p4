// Header unions: one of two headers behind a tag, changed into the other; and a stack of options, each a union.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> what; bit<8> kind; }
header short_t { bit<16> s; }
header long_t { bit<32> l; bit<8> more; }
header kind_t { bit<8> kind; }
header_union body_t { short_t small; long_t big; }
struct headers_t { key_t key; body_t body; body_t other; kind_t seen; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.key);
        transition select(hdr.key.kind) {
            1: small;
            2: big;
            3: both;
            4: two;
            default: accept;
        }
    }
    state small { packet.extract(hdr.body.small); transition accept; }
    state big { packet.extract(hdr.body.big); transition accept; }
    state both {  // what was extracted first is gone
        packet.extract(hdr.body.small);
        packet.extract(hdr.body.big);
        transition accept;
    }
    state two {
        packet.extract(hdr.body.small);
        packet.extract(hdr.other.small);
        transition accept;
    }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.key); packet.emit(hdr.seen); packet.emit(hdr.body); packet.emit(hdr.other); }
}
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        if (hdr.key.what == 1) {
            hdr.body.big.setValid();
            hdr.body.big.l = 0x01020304;
            hdr.body.big.more = 5;
        } else if (hdr.key.what == 2) {
            hdr.body.small.setValid();
            hdr.body.small.s = 0xbeef;
        } else if (hdr.key.what == 3) {
            hdr.body.small.setInvalid();
        } else if (hdr.key.what == 4) {
            hdr.other = hdr.body;
        } else if (hdr.key.what == 5) {
            hdr.other.small = hdr.body.small;
        } else if (hdr.key.what == 6) {
            if (hdr.body == hdr.other) { hdr.key.what = 66; }
        } else if (hdr.key.what == 7) {
            if (hdr.body.small == hdr.other.small) { hdr.key.what = 77; }
        }
        if (hdr.body.isValid()) {
            hdr.seen.setValid();
            hdr.seen.kind = hdr.body.small.isValid() ? 8w1 : 8w2;
        }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
