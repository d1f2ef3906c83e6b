// Digests: of several that one frame asks for, the last is made, from what the fields are at the end of ingress.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> what; bit<48> mac; bit<128> address; bit<64> pad; }
struct headers_t { key_t key; }
struct meta_t { }
struct learn_t { bit<48> mac; bit<9> port; }
struct seen_t { bit<128> address; bit<8> what; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.key); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.key); } }

control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        if (hdr.key.what & 1 == 1) { digest<learn_t>(1, { hdr.key.mac, sm.ingress_port }); }
        if (hdr.key.what & 2 == 2) { digest<seen_t>(1, { hdr.key.address, hdr.key.what }); }
        if (hdr.key.what & 4 == 4) { mark_to_drop(sm); }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
