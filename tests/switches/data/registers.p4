// Registers that are read, written, and both in one action.
#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> op; bit<32> at; bit<64> v; bit<100> w; bit<4> pad; }
struct headers_t { in_t in_; }
struct meta_t { bit<64> old; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.in_); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.in_); } }

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t sm) {
    register<bit<64>>(64) sums;
    register<bit<100>>(64) wide;
    register<bit<9>>(1) last;

    action get() { sums.read(h.in_.v, h.in_.at); }
    action add() {
        sums.read(m.old, h.in_.at);
        m.old = m.old + 1;
        sums.write(h.in_.at, m.old);
    }
    action put() { sums.write(h.in_.at, h.in_.v); }
    action swap() {
        bit<100> before;
        wide.read(before, h.in_.at);
        wide.write(h.in_.at, h.in_.w);
        h.in_.w = before;
    }
    action remember() { last.write(0, (bit<9>)h.in_.v); }
    action recall() { bit<9> seen; last.read(seen, 0); h.in_.v = (bit<64>)seen; }
    table t {
        key = { h.in_.op : exact; }
        actions = { get; add; put; swap; remember; recall; }
        const default_action = get();
        const entries = { 1 : add(); 2 : put(); 3 : swap(); 4 : remember(); 5 : recall(); }
    }
    apply { t.apply(); sm.egress_spec = 2; }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
