// The segments of this switch: uN, which is End with the NEXT-C-SID flavour (RFC 9800 section 4.1.1) for F3216
// containers, a 32-bit locator block followed by up to six 16-bit uSIDs; and End and End.X on a classic list.
//
//   before  block : uSID 1 : uSID 2 : uSID 3 : uSID 4 : 0 : 0
//   after   block : uSID 2 : uSID 3 : uSID 4 : 0      : 0 : 0
#ifndef MRC_USID_P4
#define MRC_USID_P4

const ipv6_addr_t USID_BLOCK_MASK = 0xffffffff_00000000_00000000_00000000;
const ipv6_addr_t USID_LIST_MASK  = 0x00000000_ffffffff_ffffffff_ffffffff;
const ipv6_addr_t USID_REST_MASK  = 0x00000000_0000ffff_ffffffff_ffffffff;

control MicroSegment(inout headers_t hdr,
                     inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) my_sid_hits;
    direct_counter(CounterType.packets_and_bytes) next_hop_hits;

    SegmentList() segment_list;

    // Consume the active uSID: what is left of it moves up by 16 bits and zeros fill in. A container that is used up
    // ends as any segment does.
    action shift() {
        if ((hdr.ipv6.dst_addr & USID_REST_MASK) == 0) {
            meta.list = 1;
        } else {
            hdr.ipv6.dst_addr = (hdr.ipv6.dst_addr & USID_BLOCK_MASK)
                | ((hdr.ipv6.dst_addr << 16) & USID_LIST_MASK);
        }
    }

    action un() {
        my_sid_hits.count();
        shift();
    }

    action un_flavored(bit<1> psp, bit<1> usd) {
        my_sid_hits.count();
        meta.psp = psp;
        meta.usd = usd;
        shift();
    }

    action end(bit<1> psp, bit<1> usd) {
        my_sid_hits.count();
        meta.list = 1;
        meta.psp = psp;
        meta.usd = usd;
    }

    action send(port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
    }

    action end_x(bit<1> psp, bit<1> usd, port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        my_sid_hits.count();
        meta.list = 1;
        meta.psp = psp;
        meta.usd = usd;
        meta.adjacent = 1;
        send(port, src_mac, dst_mac);
    }

    // The SIDs of this switch: of a uN block and own uSID, 48 bits; of others whatever they were given.
    table my_sid {
        key = { hdr.ipv6.dst_addr : lpm; }
        actions = { un; un_flavored; end; end_x; NoAction; }
        const default_action = NoAction();
        counters = my_sid_hits;
        size = 64;
    }

    action forward(port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        next_hop_hits.count();
        send(port, src_mac, dst_mac);
    }

    // One static /48 for every neighbour: T1s above, T0s below, the NIC ports of a T0.
    // Nothing ever chooses between two ways: a port that is dead drops.
    table next_hop {
        key = { hdr.ipv6.dst_addr : lpm; }
        actions = { forward; NoAction; }
        const default_action = NoAction();
        counters = next_hop_hits;
        size = 1024;
    }

    apply {
        if (hdr.ipv6.hop_limit <= 1) {
            meta.drop = drop_t.HOP_LIMIT;
        } else if (!my_sid.apply().hit) {
            meta.drop = drop_t.NOT_OUR_SID;
        } else {
            if (meta.list == 1) {
                segment_list.apply(hdr, meta);
            }
            if (meta.drop == drop_t.NONE && meta.adjacent == 0) {
                if (!next_hop.apply().hit) {
                    meta.drop = drop_t.NO_ROUTE;
                }
            }
        }
    }
}

#endif
