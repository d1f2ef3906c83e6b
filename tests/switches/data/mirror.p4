// Clones what comes in, and names no multicast group anywhere: clones go to session 5, marked as such.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> a; bit<8> instance; }
struct headers_t { key_t key; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.key); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        if (hdr.key.a == 1) { clone(CloneType.I2E, 5); }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply { hdr.key.instance = (bit<8>)sm.instance_type; }
}
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
