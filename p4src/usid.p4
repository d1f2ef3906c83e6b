// SRv6 micro-segments: the uN behaviour (End with the NEXT-C-SID flavour, RFC 9800 section 4.1.1)
// for F3216 containers: a 32-bit locator block followed by up to six 16-bit uSIDs.
//
//   before  block : uSID 1 : uSID 2 : uSID 3 : uSID 4 : 0 : 0
//   after   block : uSID 2 : uSID 3 : uSID 4 : 0      : 0 : 0
#ifndef MRC_USID_P4
#define MRC_USID_P4

const ipv6_addr_t USID_BLOCK_MASK = 0xffffffff_00000000_00000000_00000000;
const ipv6_addr_t USID_LIST_MASK  = 0x00000000_ffffffff_ffffffff_ffffffff;

control MicroSegment(inout headers_t hdr,
                     inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) my_sid_hits;
    direct_counter(CounterType.packets_and_bytes) next_hop_hits;

    // Consume the active uSID: what is left of it moves up by 16 bits and zeros fill in.
    action un() {
        my_sid_hits.count();
        hdr.ipv6.dst_addr = (hdr.ipv6.dst_addr & USID_BLOCK_MASK)
            | ((hdr.ipv6.dst_addr << 16) & USID_LIST_MASK);
    }

    action not_our_sid() {
        my_sid_hits.count();
        meta.drop = drop_t.NOT_OUR_SID;
    }

    // The SIDs of this switch: block and own uSID, 48 bits.
    table my_sid {
        key = { hdr.ipv6.dst_addr : lpm; }
        actions = { un; not_our_sid; }
        const default_action = not_our_sid();
        counters = my_sid_hits;
        size = 64;
    }

    action forward(port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        next_hop_hits.count();
        standard_metadata.egress_spec = port;
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
    }

    action no_route() {
        next_hop_hits.count();
        meta.drop = drop_t.NO_ROUTE;
    }

    // One static /48 for every neighbour: T1s above, T0s below, the NIC ports of a T0.
    // Nothing ever chooses between two ways: a port that is dead drops.
    table next_hop {
        key = { hdr.ipv6.dst_addr : lpm; }
        actions = { forward; no_route; }
        const default_action = no_route();
        counters = next_hop_hits;
        size = 1024;
    }

    apply {
        if (hdr.ipv6.hop_limit <= 1) {
            meta.drop = drop_t.HOP_LIMIT;
        } else {
            my_sid.apply();
            if (meta.drop == drop_t.NONE) {
                next_hop.apply();
            }
        }
    }
}

#endif
