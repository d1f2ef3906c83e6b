// Elements of header stacks by indices that are known only at run time: read, written, and as indices themselves.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> what; bit<8> i; bit<8> j; bit<32> value; }
header cell_t { bit<8> v; bit<20> w; bit<3> n; bit<1> more; }
struct headers_t { key_t key; cell_t[4] cells; }
struct meta_t { bit<8> at; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.key);
        transition cells;
    }
    state cells {
        packet.extract(hdr.cells.next);
        m.at = (bit<8>)hdr.cells.lastIndex;
        transition select(hdr.cells.last.more) {
            1: cells;
            default: accept;
        }
    }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.key); packet.emit(hdr.cells); } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action put(bit<8> index, bit<20> w) {
        hdr.cells[index & 3].w = w;
    }
    action wide() {
        hdr.key.value = (bit<32>)hdr.cells[hdr.key.i & 3].w + (bit<32>)hdr.cells[hdr.key.j & 3].w;
    }
    table act {
        key = { hdr.key.what : exact; }
        actions = { put; wide; NoAction; }
        const default_action = NoAction();
    }
    apply {
        sm.egress_spec = 2;
        act.apply();
        if (hdr.key.what == 1) {
            hdr.key.value = (bit<32>)hdr.cells[hdr.key.i & 3].w;
        } else if (hdr.key.what == 2) {
            hdr.cells[hdr.key.i & 3].v = hdr.key.j;
        } else if (hdr.key.what == 3) {
            hdr.cells[hdr.key.i & 3].w = hdr.cells[hdr.key.j & 3].w;
        } else if (hdr.key.what == 4) {
            hdr.cells[hdr.cells[hdr.key.i & 3].v & 3].v = hdr.key.j - hdr.key.i;
        } else if (hdr.key.what == 5) {
            if (hdr.cells[hdr.key.i & 3].v > hdr.cells[hdr.key.j & 3].v) { hdr.key.value = 1; }
        } else if (hdr.key.what == 6) {
            hdr.cells[m.at].v = 0xaa;
        }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
