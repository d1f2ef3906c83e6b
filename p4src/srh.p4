// Classic segment lists: the End behaviour on a Segment Routing Header (RFC 8754, RFC 8986 section 4.1), with the
// flavours PSP and USD (section 4.16). A container of uSIDs that is used up comes here too (RFC 9800 section 4.1.1).
//
//   Ethernet | IPv6 | SRH: ... Segments Left | segment 0 (the last) | ... | segment n (the first) | TLVs | what it carries
//
// The parser has passed over the list and remembered the segment that comes next, so nothing here looks for it. Lists
// of up to MAX_SEGMENTS segments are read; TLVs take room from them.
#ifndef MRC_SRH_P4
#define MRC_SRH_P4

control SegmentList(inout headers_t hdr, inout metadata_t meta) {
    // Where the list has ended, what the frame carries would be for this switch to take in. It takes in nothing, but
    // with USD it unpacks: the outer headers go when the port is known (see Unpack).
    action unpack() {
        meta.unpack = 1;
        hdr.ipv6.dst_addr = hdr.inner_ipv6.dst_addr;
        hdr.inner_ipv6.hop_limit = hdr.inner_ipv6.hop_limit - 1;
    }

    action next_segment() {
        hdr.srh.segments_left = hdr.srh.segments_left - 1;
        hdr.ipv6.dst_addr = meta.next_segment;
    }

    // PSP: the last node but one takes the used-up header out.
    action pop() {
        hdr.ipv6.next_hdr = hdr.srh.next_hdr;
        hdr.ipv6.payload_len = hdr.ipv6.payload_len - SRH_BYTES - ((bit<16>)hdr.srh.hdr_ext_len << 3);
        hdr.srh.setInvalid();
        hdr.segments[0].setInvalid();
        hdr.segments[1].setInvalid();
        hdr.segments[2].setInvalid();
        hdr.segments[3].setInvalid();
        hdr.segments[4].setInvalid();
        hdr.segments[5].setInvalid();
        hdr.segments[6].setInvalid();
        hdr.segments[7].setInvalid();
        hdr.odd_tlv.setInvalid();
    }

    apply {
        bit<16> entries = (bit<16>)hdr.srh.last_entry + 1;
        if (hdr.ipv6.next_hdr == NEXT_ROUTING && meta.srh_read == 0) {
            meta.drop = drop_t.SRH_UNREAD;
        } else if (!hdr.srh.isValid() || hdr.srh.segments_left == 0) {
            if (meta.usd == 0 || !hdr.inner_ipv6.isValid()) {
                meta.drop = drop_t.LIST_ENDED;
            } else if (hdr.inner_ipv6.hop_limit <= 1) {
                meta.drop = drop_t.HOP_LIMIT;
            } else {
                unpack();
            }
        } else if (entries << 1 > (bit<16>)hdr.srh.hdr_ext_len || (bit<16>)hdr.srh.segments_left > entries) {
            meta.drop = drop_t.SRH_WRONG;
        } else {
            next_segment();
            if (meta.psp == 1 && hdr.srh.segments_left == 0) {
                pop();
            }
        }
    }
}

// Takes the outer headers off a frame that is unpacked, behind all that decided by them. A mark stays: RFC 6040.
control Unpack(inout headers_t hdr) {
    apply {
        if (hdr.ipv6.ecn == ECN_CE && hdr.inner_ipv6.ecn != ECN_NOT_ECT) {
            hdr.inner_ipv6.ecn = ECN_CE;
        }
        hdr.ipv6.setInvalid();
        hdr.srh.setInvalid();
        hdr.segments[0].setInvalid();
        hdr.segments[1].setInvalid();
        hdr.segments[2].setInvalid();
        hdr.segments[3].setInvalid();
        hdr.segments[4].setInvalid();
        hdr.segments[5].setInvalid();
        hdr.segments[6].setInvalid();
        hdr.segments[7].setInvalid();
        hdr.odd_tlv.setInvalid();
    }
}

#endif
