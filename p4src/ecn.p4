// Congestion marks on the outer header, as RED does it: never below one depth of the queue, always from another on,
// and in between with a probability that grows with the depth.
//
// Ports to NICs get no entry. So a mark says that a path is congested, and never that a receiver is (incast).
#ifndef MRC_ECN_P4
#define MRC_ECN_P4

const bit<2> ECN_NOT_ECT = 0;  // RFC 3168: the sender does not know about marks
const bit<2> ECN_CE      = 3;

control EcnMark(inout headers_t hdr,
                inout metadata_t meta,
                inout standard_metadata_t standard_metadata) {
    counter(PORT_COUNT, CounterType.packets_and_bytes) marked;

    // Marks between two depths, given as `from` and `span` (above 0) in ticks of waiting.
    action red(bit<32> from, bit<32> span) {
        bit<32> draw;
        random(draw, 0, 0xffff);
        if (meta.wait > (ticks_t)from && (ticks_t)draw * (ticks_t)span < (meta.wait - (ticks_t)from) << 16) {
            hdr.ipv6.ecn = ECN_CE;
            marked.count((bit<32>)standard_metadata.egress_spec);
        }
    }

    table marking {
        key = { standard_metadata.egress_spec : exact @name("port"); }
        actions = { red; NoAction; }
        const default_action = NoAction();
        size = PORT_COUNT;
    }

    apply {
        if (hdr.ipv6.ecn != ECN_NOT_ECT && meta.wait != 0) {
            marking.apply();
        }
    }
}

#endif
