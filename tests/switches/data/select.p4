// Action profiles and selectors: hashes over metadata, headers that may be there or not, odd bits.
#include <core.p4>
#include <v1model.p4>

header key_t { bit<8> kind; bit<16> a; bit<32> b; bit<9> c; bit<7> d; bit<64> e; bit<32> result; bit<8> mark; }
header more_t { bit<32> x; bit<16> y; }
header odd_t { bit<5> p; bit<128> q; bit<3> r; }
struct headers_t { key_t key; more_t more; odd_t odd; }
struct meta_t { bit<13> h; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.key);
        transition select(hdr.key.kind) { 1: more; 2: odd; 3: both; default: accept; }
    }
    state more { packet.extract(hdr.more); transition accept; }
    state odd { packet.extract(hdr.odd); transition accept; }
    state both { packet.extract(hdr.more); transition odd; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    action_profile(64) profile;
    @max_group_size(16) action_selector(HashAlgorithm.crc16, 128, 14) by_crc16;
    action_selector(HashAlgorithm.crc32, 128, 32) by_crc32;
    action_selector(HashAlgorithm.identity, 64, 16) by_identity;
    direct_counter(CounterType.packets_and_bytes) hits;

    action mark(bit<32> v) { hdr.key.result = v; }
    action note() { hdr.key.result = hdr.key.result + 1; }
    action wide(bit<64> v, bit<7> w) { hdr.key.e = v; hdr.key.d = w; }

    table direct {
        key = { hdr.key.a : exact; }
        actions = { mark; note; wide; }
        implementation = profile;
        counters = hits;
        size = 64;
    }
    table pick {
        key = {
            hdr.key.b : lpm;
            hdr.key.a : selector;
            hdr.more.x : selector;
            m.h : selector;
            hdr.key.c : selector;
            hdr.odd.p : selector;
            hdr.more.y : selector;
        }
        actions = { mark; note; wide; }
        implementation = by_crc16;
        size = 64;
    }
    table again {
        key = {
            hdr.key.c : exact;
            hdr.key.e : selector;
            hdr.odd.q : selector;
            hdr.key.d : selector;
        }
        actions = { mark; note; NoAction; }
        implementation = by_crc32;
        size = 64;
    }
    table same {
        key = { hdr.key.d : ternary; hdr.key.a : selector; }
        actions = { mark; note; wide; }
        implementation = by_identity;
        size = 16;
    }
    apply {
        sm.egress_spec = 2;
        m.h = (bit<13>)hdr.key.e;
        direct.apply();
        if (pick.apply().hit) { hdr.key.mark = hdr.key.mark | 1; }
        switch (again.apply().action_run) {
            mark: { hdr.key.mark = hdr.key.mark | 2; }
            note: { hdr.key.mark = hdr.key.mark | 4; }
        }
        same.apply();
    }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
