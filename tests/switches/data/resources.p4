// Meters and counters, direct and not, an idle timeout, and a default that can be set.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> kind; bit<16> a; bit<8> packets; bit<8> bytes; bit<8> direct; bit<8> mark; bit<64> pad; }
struct headers_t { key_t key; }
struct meta_t { bit<2> color; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.key); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.key); } }

control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    meter(8, MeterType.packets) by_packets;
    meter(8, MeterType.bytes) by_bytes;
    direct_meter<bit<2>>(MeterType.bytes) each;
    direct_counter(CounterType.packets_and_bytes) hits;
    counter(8, CounterType.packets_and_bytes) kinds;

    action mark(bit<8> v) { hdr.key.mark = v; each.read(m.color); hits.count(); }
    action note() { hdr.key.mark = hdr.key.mark + 1; each.read(m.color); hits.count(); }
    table limited {
        key = { hdr.key.a : exact; }
        actions = { mark; note; NoAction; }
        meters = each;
        counters = hits;
        support_timeout = true;
        default_action = note();
        size = 64;
    }
    apply {
        sm.egress_spec = 2;
        hdr.key.packets = 9;
        hdr.key.bytes = 9;
        by_packets.execute_meter((bit<32>)hdr.key.kind, hdr.key.packets);
        by_bytes.execute_meter((bit<32>)hdr.key.kind, hdr.key.bytes);
        kinds.count((bit<32>)hdr.key.kind);
        m.color = 3;
        limited.apply();
        hdr.key.direct = (bit<8>)m.color;
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
