// Counting and drawing numbers in an action that reads and writes registers.
#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> op; bit<8> cell; bit<64> drawn; bit<64> total; }
struct headers_t { in_t in_; }
struct meta_t { bit<64> old; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.in_); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.in_); } }

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t sm) {
    register<bit<64>>(16) sums;
    counter(64, CounterType.packets_and_bytes) seen;
    action add() {
        sums.read(m.old, (bit<32>)h.in_.cell);
        if (h.in_.op == 1) { seen.count((bit<32>)m.old); }
        random(h.in_.drawn, 5, 9);
        m.old = m.old + 1;
        sums.write((bit<32>)h.in_.cell, m.old);
        seen.count(40 + (bit<32>)h.in_.op);
        h.in_.total = m.old;
    }
    apply {
        sm.egress_spec = 2;
        if (h.in_.op != 0) { add(); }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
