// Clones of ingress and egress, resubmit and recirculate, each with and without metadata that is preserved.
#include <core.p4>
#include <v1model.p4>

// What came of a frame on its way is written into `way`: how it was parsed, what ingress and egress saw.
header key_t {
    bit<8> op;
    bit<8> session;
    bit<8> count;
    bit<8> fields;
}
header way_t {
    bit<8> parsed_type;
    bit<8> type;
    bit<8> rid;
    bit<16> port;
    bit<16> from;
    bit<16> length;
    bit<16> first;
    bit<48> second;
    bit<8> rounds;
}
header more_t { bit<32> a; }
struct headers_t { key_t key; way_t way; more_t more; }
struct meta_t {
    @field_list(1, 2)
    bit<16> first;
    @field_list(2)
    bit<48> second;
    bit<16> third;
    @field_list(1, 2, 3)
    bit<8> rounds;
    bit<8> parsed_type;
}

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        m.parsed_type = (bit<8>)sm.instance_type;
        packet.extract(hdr.key);
        packet.extract(hdr.way);
        transition select(hdr.key.op) { 0x40 &&& 0x40: more; default: accept; }
    }
    state more { packet.extract(hdr.more); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    counter(8, CounterType.packets_and_bytes) came;
    action clone_2(bit<32> session) { clone_preserving_field_list(CloneType.I2E, session, 2); }
    apply {
        came.count(sm.instance_type);
        sm.egress_spec = 2;
        m.third = 77;
        if (sm.instance_type == 0) {
            m.first = (bit<16>)hdr.key.count + 1000;
            m.second = 0xA00000000 + (bit<48>)hdr.key.session;
        }
        // What an ingress clone is not to see, and a frame that is resubmitted neither.
        hdr.way.rounds = hdr.way.rounds + 1;
        if (hdr.key.op & 7 == 1) {
            clone(CloneType.I2E, 9);
            if (hdr.key.fields == 1) {
                clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.key.session, 1);
            } else if (hdr.key.fields == 2) {
                clone_2((bit<32>)hdr.key.session);
            } else {
                clone(CloneType.I2E, (bit<32>)hdr.key.session);
            }
            m.first = m.first + 1;  // the clone gets the value at the end of ingress
        } else if (hdr.key.op & 7 == 2) {
            if (m.rounds < hdr.key.count) {
                m.rounds = m.rounds + 1;
                if (hdr.key.fields == 2) { resubmit_preserving_field_list(2); }
                else if (hdr.key.fields == 3) { resubmit_preserving_field_list(4); }  // without end
                else { resubmit_preserving_field_list(3); }
            }
            hdr.more.setValid();
            hdr.more.a = 5;
        }
        if (hdr.key.op & 8 != 0) { mark_to_drop(sm); }
        if (hdr.key.op & 16 != 0) { sm.mcast_grp = 1; }
        if (hdr.key.op & 32 != 0) { truncate(40); }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    counter(8, CounterType.packets_and_bytes) went;
    apply {
        went.count(sm.instance_type);
        hdr.way.parsed_type = m.parsed_type;
        hdr.way.type = (bit<8>)sm.instance_type;
        hdr.way.rid = (bit<8>)sm.egress_rid;
        hdr.way.port = (bit<16>)sm.egress_port;
        hdr.way.from = (bit<16>)sm.ingress_port;
        hdr.way.length = (bit<16>)sm.packet_length;
        hdr.way.first = m.first + m.third;
        hdr.way.second = m.second;
        if (hdr.key.op & 7 == 3) {
            // A clone of a clone too, until there have been enough.
            if (m.rounds < hdr.key.count) {
                m.rounds = m.rounds + 1;
                if (hdr.key.fields == 0) {
                    hdr.key.op = 0;
                    clone(CloneType.E2E, (bit<32>)hdr.key.session);
                } else {
                    clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.key.session, 2);
                }
            }
            hdr.way.rounds = hdr.way.rounds + 1;
            if (hdr.key.count == 3) { hdr.more.setValid(); hdr.more.a = (bit<32>)m.first; }
            if (hdr.key.count == 4) { mark_to_drop(sm); }
        } else if (hdr.key.op & 7 == 4) {
            if (m.rounds < hdr.key.count) {
                m.rounds = m.rounds + 1;
                if (hdr.key.fields == 2) { recirculate_preserving_field_list(2); }
                else if (hdr.key.fields == 3) { recirculate_preserving_field_list(4); }  // without end
                else { recirculate_preserving_field_list(3); }
            }
            if (hdr.key.fields == 4) { hdr.more.setValid(); hdr.more.a = 9; hdr.key.op = hdr.key.op | 0x40; }
        } else if (hdr.key.op & 7 == 5) {
            if (sm.egress_rid == 2) { truncate(30); }
        }
    }
}
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
