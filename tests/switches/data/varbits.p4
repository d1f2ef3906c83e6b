// Fields of variable length: IPv4 options under a checksum, taken away and copied, a stack of them, and a skip.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> what; bit<8> kind; bit<16> length; bit<8> problem; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> length;
    bit<16> id; bit<16> fragment; bit<8> ttl; bit<8> protocol; bit<16> checksum;
    bit<32> src; bit<32> dst;
    varbit<320> options;
}
header tlv_t { bit<8> type; bit<8> size; varbit<72> value; bit<8> end; }
header mark_t { bit<16> length; bit<8> tail; }
struct headers_t { key_t key; mark_t mark; ipv4_t spare; ipv4_t ipv4; tlv_t[3] tlvs; mark_t last; }
struct meta_t { bit<32> bits; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.key);
        transition select(hdr.key.kind) {
            1: ipv4;
            2: tlv;
            3: skip;
            default: accept;
        }
    }
    state ipv4 {
        m.bits = (bit<32>)(packet.lookahead<bit<8>>()[3:0]) * 32 - 160;
        packet.extract(hdr.ipv4, m.bits);
        transition select(hdr.ipv4.protocol) {
            7: last;
            8: tlv;
            default: accept;
        }
    }
    state tlv {
        m.bits = (bit<32>)(packet.lookahead<bit<16>>()[7:0]);
        packet.extract(hdr.tlvs.next, m.bits);
        transition select(hdr.tlvs.last.end, hdr.tlvs.last.type) {
            (1, _): tlv;
            (2, 0 .. 127): last;
            default: accept;
        }
    }
    state skip {
        packet.advance((bit<32>)hdr.key.length);
        transition last;
    }
    state last {
        packet.extract(hdr.last);
        transition accept;
    }
}
control V(inout headers_t hdr, inout meta_t m) {
    apply {
        verify_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.fragment,
              hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.options },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control C(inout headers_t hdr, inout meta_t m) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.key.what != 9,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.fragment,
              hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.options },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.key); packet.emit(hdr.mark); packet.emit(hdr.spare); packet.emit(hdr.ipv4);
        packet.emit(hdr.tlvs); packet.emit(hdr.last);
    }
}
control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        if (sm.parser_error != error.NoError) {
            if (sm.parser_error == error.PacketTooShort) { hdr.key.problem = 1; }
            else if (sm.parser_error == error.HeaderTooShort) { hdr.key.problem = 2; }
            else if (sm.parser_error == error.ParserInvalidArgument) { hdr.key.problem = 3; }
            else if (sm.parser_error == error.StackOutOfBounds) { hdr.key.problem = 4; }
            else { hdr.key.problem = 5; }
        } else if (sm.checksum_error == 1) {
            hdr.key.problem = 6;
        }
        if (hdr.key.what == 1) {
            hdr.ipv4.ttl = hdr.ipv4.ttl |-| 1;
        } else if (hdr.key.what == 2) {
            hdr.spare = hdr.ipv4;
            hdr.ipv4.setInvalid();
        } else if (hdr.key.what == 3) {
            hdr.spare = hdr.ipv4;
            hdr.spare.src = 0x0a0b0c0d;
        } else if (hdr.key.what == 4) {
            hdr.tlvs.pop_front(1);
        } else if (hdr.key.what == 5) {
            hdr.tlvs.push_front(1);
            hdr.tlvs[0] = hdr.tlvs[1];
        } else if (hdr.key.what == 6 && hdr.tlvs[1].isValid()) {
            hdr.tlvs[0].value = hdr.tlvs[1].value;
        } else if (hdr.key.what == 7) {
            hdr.tlvs[0].setInvalid();
        } else if (hdr.key.what == 8 && hdr.ipv4.isValid()) {
            hdr.spare.setValid();
            hdr.spare.version = 4;
            hdr.spare.ihl = hdr.ipv4.ihl;
            hdr.spare.options = hdr.ipv4.options;
        }
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    apply {
        hdr.mark.setValid();
        hdr.mark.length = (bit<16>)sm.packet_length;
        hdr.mark.tail = hdr.key.kind;
    }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
