// A calculator with an Ethertype of its own: it answers where the question came from.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header calc_t { bit<16> magic; bit<8> version; bit<8> op; bit<32> a; bit<32> b; bit<32> result; }
struct headers_t { ethernet_t ethernet; calc_t calc; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) { 0x88B5: check; default: accept; }
    }
    state check {
        transition select(packet.lookahead<calc_t>().magic, packet.lookahead<calc_t>().version) {
            (0x5034, 1): calc;
            default: accept;
        }
    }
    state calc { packet.extract(hdr.calc); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action answer(bit<32> value) {
        bit<48> asker = hdr.ethernet.src;
        hdr.calc.result = value;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = asker;
        sm.egress_spec = sm.ingress_port;
    }
    action plus() { answer(hdr.calc.a + hdr.calc.b); }
    action minus() { answer(hdr.calc.a - hdr.calc.b); }
    action conjunction() { answer(hdr.calc.a & hdr.calc.b); }
    action disjunction() { answer(hdr.calc.a | hdr.calc.b); }
    action exclusive() { answer(hdr.calc.a ^ hdr.calc.b); }
    action drop() { mark_to_drop(sm); }
    table calculate {
        key = { hdr.calc.op : exact; }
        actions = { plus; minus; conjunction; disjunction; exclusive; drop; }
        const default_action = drop();
        const entries = {
            0x2B : plus(); 0x2D : minus(); 0x26 : conjunction(); 0x7C : disjunction(); 0x5E : exclusive();
        }
    }
    apply { if (hdr.calc.isValid()) { calculate.apply(); } else { drop(); } }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
