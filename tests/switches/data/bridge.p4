// A learning-free bridge: frames to an unknown address go to all ports but the one they came from.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
struct headers_t { ethernet_t ethernet; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.ethernet); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action flood() { sm.mcast_grp = 1; }
    action send(bit<9> port) { sm.egress_spec = port; }
    action drop() { mark_to_drop(sm); }
    table addresses {
        key = { hdr.ethernet.dst : exact; }
        actions = { flood; send; drop; }
        default_action = flood();
    }
    apply { if (hdr.ethernet.isValid()) { addresses.apply(); } else { drop(); } }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply { if (sm.egress_port == sm.ingress_port) { mark_to_drop(sm); } }
}
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
