#ifndef MRC_PARSER_P4
#define MRC_PARSER_P4

parser MrcParser(packet_in packet,
                 out headers_t hdr,
                 inout metadata_t meta,
                 inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV6: parse_ipv6;
            default: accept;
        }
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.next_hdr) {
            NEXT_IPV6: parse_inner_ipv6;
            NEXT_UDP: parse_udp;
            NEXT_ROUTING: parse_srh;
            default: accept;
        }
    }

    // The list is passed over segment by segment, since its length is only known now.
    state parse_srh {
        packet.extract(hdr.srh);
        meta.srh_rest = hdr.srh.hdr_ext_len;
        meta.srh_ahead = hdr.srh.segments_left;
        transition select(hdr.srh.routing_type, hdr.srh.hdr_ext_len) {
            (ROUTING_SRH, 0): parse_behind_srh;
            (ROUTING_SRH, 1): parse_odd_tlv;
            (ROUTING_SRH, 2 .. MAX_SRH_LEN): parse_segment;
            default: accept;
        }
    }

    state parse_segment {
        transition select(meta.srh_ahead) {
            1: parse_next_segment;
            default: parse_any_segment;
        }
    }

    state parse_next_segment {
        meta.next_segment = packet.lookahead<ipv6_addr_t>();
        transition parse_any_segment;
    }

    state parse_any_segment {
        packet.extract(hdr.segments.next);
        meta.srh_rest = meta.srh_rest - 2;
        meta.srh_ahead = meta.srh_ahead - 1;
        transition select(meta.srh_rest) {
            0: parse_behind_srh;
            1: parse_odd_tlv;
            default: parse_segment;
        }
    }

    state parse_odd_tlv {
        packet.extract(hdr.odd_tlv);
        transition parse_behind_srh;
    }

    state parse_behind_srh {
        meta.srh_read = 1;
        transition select(hdr.srh.next_hdr) {
            NEXT_IPV6: parse_carried_ipv6;
            default: accept;
        }
    }

    state parse_carried_ipv6 {
        packet.extract(hdr.inner_ipv6);
        transition accept;
    }

    state parse_inner_ipv6 {
        packet.extract(hdr.inner_ipv6);
        transition select(hdr.inner_ipv6.next_hdr) {
            NEXT_UDP: parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            PROBE_PORT: parse_probe;
            default: parse_bth;
        }
    }

    state parse_bth {
        packet.extract(hdr.bth);
        transition accept;
    }

    state parse_probe {
        packet.extract(hdr.probe);
        meta.hops_before = hdr.probe.used;
        transition select(hdr.probe.used) {
            0: parse_hop;
            1 .. MAX_HOPS - 1: parse_earlier_hop;
            default: accept;
        }
    }

    state parse_earlier_hop {
        packet.extract(hdr.earlier_hops.next);
        meta.hops_before = meta.hops_before - 1;
        transition select(meta.hops_before) {
            0: parse_hop;
            default: parse_earlier_hop;
        }
    }

    state parse_hop {
        packet.extract(hdr.hop);
        transition accept;
    }
}

control MrcDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.srh);
        packet.emit(hdr.segments);
        packet.emit(hdr.odd_tlv);
        packet.emit(hdr.inner_ipv6);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
        packet.emit(hdr.probe);
        packet.emit(hdr.earlier_hops);
        packet.emit(hdr.hop);
    }
}

// IPv6 has no header checksum, and UDP's is zero under an ICRC.
control MrcVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control MrcComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

#endif
