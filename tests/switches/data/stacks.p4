// Frames that change their length: VLAN tags and a label stack, added, removed, pushed and popped.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header vlan_t { bit<3> pcp; bit<1> dei; bit<12> vid; bit<16> type; }
header label_t { bit<20> label; bit<3> tc; bit<1> bottom; bit<8> ttl; }
header note_t { bit<16> length; bit<8> problem; bit<8> top; }

struct headers_t { ethernet_t ethernet; vlan_t vlan; label_t[4] labels; note_t note; }
struct meta_t { bit<8> next; bit<32> length; }

error { BadLabel }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x8100: vlan;
            0x8847: labels;
            0x8800 &&& 0xff00: skip;
            default: accept;
        }
    }
    state vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.type, hdr.vlan.vid) {
            (0x8847, _): labels;
            (0x0800 .. 0x08ff, 5): skip;
            default: accept;
        }
    }
    state labels {
        packet.extract(hdr.labels.next);
        verify(hdr.labels.last.label != 13, error.BadLabel);
        transition select(hdr.labels.last.bottom) {
            0: labels;
            1: peek;
        }
    }
    state peek {
        m.next = packet.lookahead<bit<8>>();
        transition accept;
    }
    state skip {
        packet.advance(32);
        transition accept;
    }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.ethernet); packet.emit(hdr.vlan); packet.emit(hdr.note); packet.emit(hdr.labels); }
}

control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action tag(bit<12> vid) {
        hdr.vlan.setValid();
        hdr.vlan.vid = vid;
        hdr.vlan.type = hdr.ethernet.type;
        hdr.ethernet.type = 0x8100;
    }
    action untag() {
        if (hdr.vlan.isValid()) { hdr.ethernet.type = hdr.vlan.type; }
        hdr.vlan.setInvalid();
    }
    action push(bit<20> label) {
        hdr.labels.push_front(1);
        hdr.labels[0].setValid();
        hdr.labels[0] = { label, 0, 0, 64 };
        hdr.ethernet.type = 0x8847;
    }
    action pop() { hdr.labels.pop_front(1); }
    action pop_two() { hdr.labels.pop_front(2); }
    action copy() { hdr.labels[1] = hdr.labels[0]; hdr.labels[2] = hdr.labels[3]; }
    action stop() { mark_to_drop(sm); exit; }
    table act {
        key = { hdr.ethernet.dst[7:0] : exact @name("what"); }
        actions = { tag; untag; push; pop; pop_two; copy; stop; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    apply {
        act.apply();
        if (hdr.ethernet.src[0:0] == 1) {
            hdr.note.setValid();
            hdr.note.problem = (sm.parser_error == error.NoError) ? 8w0 : ((sm.parser_error == error.BadLabel) ? 8w1 : 8w2);
            hdr.note.top = m.next;
        }
        sm.egress_spec = 2;
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply { if (hdr.note.isValid()) { hdr.note.length = (bit<16>)sm.packet_length; } }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
