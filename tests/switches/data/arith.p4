// Every operation on fields, chosen by a byte of the frame, so that random frames reach all of them.
#include <core.p4>
#include <v1model.p4>

header in_t {
    bit<8>   op;
    bit<8>   by;
    bit<48>  a;
    bit<48>  b;
    bit<9>   p;
    bit<20>  q;
    bit<3>   r;
    int<16>  s;
    int<16>  t;
    bit<128> w;
    bit<128> x;
}

struct headers_t { in_t in_; }
struct meta_t { bit<48> keep; bool flag; }

parser P(packet_in packet, out headers_t hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.in_); transition accept; }
}
control V(inout headers_t hdr, inout meta_t m) { apply { } }
control C(inout headers_t hdr, inout meta_t m) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.in_); } }

control I(inout headers_t h, inout meta_t m, inout standard_metadata_t sm) {
    action add()      { h.in_.a = h.in_.a + h.in_.b; h.in_.w = h.in_.w + h.in_.x; h.in_.q = h.in_.q + 77; }
    action sub()      { h.in_.a = h.in_.a - h.in_.b; h.in_.w = h.in_.w - h.in_.x; h.in_.r = h.in_.r - 1; }
    action mul()      { h.in_.a = h.in_.a * h.in_.b; h.in_.w = h.in_.w * h.in_.x; h.in_.p = h.in_.p * 3; }
    action logic()    { h.in_.a = (h.in_.a & h.in_.b) | ~h.in_.a; h.in_.w = (h.in_.w ^ h.in_.x) | 1; }
    action shl()      { h.in_.a = h.in_.a << h.in_.by; h.in_.w = h.in_.w << h.in_.by; h.in_.q = h.in_.q << 5; }
    action shr()      { h.in_.a = h.in_.a >> h.in_.by; h.in_.w = h.in_.w >> h.in_.by; h.in_.q = h.in_.q >> 5; }
    action sshr()     { h.in_.s = h.in_.s >> h.in_.by; h.in_.t = h.in_.t >> 3; }
    action sat()      { h.in_.a = h.in_.a |+| h.in_.b; h.in_.q = h.in_.q |-| 1000; h.in_.s = h.in_.s |+| h.in_.t; }
    action ssub()     { h.in_.s = h.in_.s - h.in_.t; h.in_.t = h.in_.s * 5; }
    action cut()      { h.in_.w = (bit<128>)h.in_.a ++ h.in_.w[79:0] == 0 ? 128w1 : (bit<128>)h.in_.q; }
    action cat()      { h.in_.w = h.in_.a ++ h.in_.b ++ h.in_.w[31:0]; h.in_.p = h.in_.w[100:92]; }
    action slice()    { h.in_.w[70:33] = h.in_.x[60:23]; h.in_.a[15:8] = h.in_.by; h.in_.q[19:17] = h.in_.r; }
    action compare()  {
        h.in_.r = 0;
        if (h.in_.a < h.in_.b) { h.in_.r = h.in_.r | 1; }
        if (h.in_.s < h.in_.t) { h.in_.r = h.in_.r | 2; } else { h.in_.by = 7; }
        if (h.in_.w >= h.in_.x || h.in_.p == 5 && h.in_.q != 9) { h.in_.r = h.in_.r | 4; }
    }
    action shift()    { h.in_.w = (h.in_.w & 0xffffffff_00000000_00000000_00000000) | ((h.in_.w << 16) & 0xffffffff_ffffffff_ffffffff); }
    action choose()   { h.in_.a = h.in_.p > 100 ? h.in_.b : (bit<48>)h.in_.q; m.flag = h.in_.r == 2; h.in_.by = m.flag ? 8w1 : 8w0; }
    action cast()     { h.in_.s = (int<16>)(bit<16>)h.in_.q[15:0]; h.in_.w = (bit<128>)(bit<64>)h.in_.x[63:0] + 1; h.in_.a = (bit<48>)(bit<16>)h.in_.t; }
    action signext()  { h.in_.w = (bit<128>)(int<128>)h.in_.s; h.in_.a = (bit<48>)(int<48>)h.in_.t; }
    action length()   { h.in_.a = (bit<48>)sm.packet_length; h.in_.p = sm.ingress_port; }
    table t {
        key = { h.in_.op : exact; }
        actions = { add; sub; mul; logic; shl; shr; sshr; sat; ssub; cut; cat; slice; compare; shift; choose; cast; signext; length; }
        const default_action = add();
        const entries = {
            1 : sub(); 2 : mul(); 3 : logic(); 4 : shl(); 5 : shr(); 6 : sshr(); 7 : sat(); 8 : ssub(); 9 : cut();
            10 : cat(); 11 : slice(); 12 : compare(); 13 : shift(); 14 : choose(); 15 : cast(); 16 : signext(); 17 : length();
        }
    }
    apply { t.apply(); sm.egress_spec = 2; }
}
control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
