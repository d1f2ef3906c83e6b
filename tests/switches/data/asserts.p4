// Assertions in ingress, in egress, in an action, and in copies; and messages for the log.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> group; bit<8> a; bit<8> b; bit<8> rid; }
struct headers_t { key_t key; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.key); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action check(bit<8> limit) {
        assume(hdr.key.b < limit);
        hdr.key.b = hdr.key.b + 1;
    }
    table checks { key = { hdr.key.a : exact; } actions = { check; NoAction; } default_action = check(200); }
    apply {
        log_msg("a is {}", { hdr.key.a });
        assert(hdr.key.a != 7);
        sm.egress_spec = 2;
        sm.mcast_grp = (bit<16>)hdr.key.group;
        checks.apply();
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        hdr.key.rid = (bit<8>)sm.egress_rid;
        assert(hdr.key.a != 9 || sm.egress_rid == 2);
    }
}
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
