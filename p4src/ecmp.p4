// ECMP, for what we compare MRC with: plain IPv6 frames, whose way the switches choose.
//
// A route leads to a port or to a group of ports, of which a hash over the flow chooses one; more places in a group are
// more weight. Nothing here notices that a port is dead: the controller takes it out of the group, as a routing
// protocol would, or the target does where it watches the port.
//
// A route may also leave the choice to the frame: with structured EVs, MRC's EV names the uplink by some of its bits,
// and each tier on the way up reads bits of its own. The way down is ordinary routing.
//
// Frames that follow a segment list never come here, so all kinds share a fabric.
#ifndef MRC_ECMP_P4
#define MRC_ECMP_P4

control Ecmp(inout headers_t hdr,
             inout metadata_t meta,
             inout standard_metadata_t standard_metadata) {
    @max_group_size(128)
    action_selector(HashAlgorithm.crc32, 2048, 32) ways;

    action send_to(port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        meta.drop = drop_t.NONE;
        standard_metadata.egress_spec = port;
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
    }

    // The way up is in the EV, whose low half MRC sends as the UDP source port and whose high half in the flow label:
    // in the bits that are left after `shift` of them, under `mask`.
    action read_ev(bit<8> shift, bit<16> mask) {
        meta.by_ev = 1;
        meta.uplink = (bit<16>)((hdr.ipv6.flow_label[15:0] ++ meta.src_port) >> shift) & mask;
    }

    table route {
        key = {
            hdr.ipv6.dst_addr   : lpm;
            hdr.ipv6.src_addr   : selector;
            hdr.ipv6.dst_addr   : selector;
            hdr.ipv6.flow_label : selector;
            meta.protocol       : selector;
            meta.src_port       : selector;
            meta.dst_port       : selector;
        }
        actions = { send_to; read_ev; NoAction; }
        implementation = ways;
        size = 2048;
    }

    // The port of each uplink that an EV can name. One that is not there drops.
    table uplink {
        key = { meta.uplink : exact @name("uplink"); }
        actions = { send_to; NoAction; }
        const default_action = NoAction();
        size = 1024;
    }

    // Comes with the reason for a drop, which stands where there is no route.
    apply {
        meta.protocol = hdr.ipv6.next_hdr;
        if (hdr.inner_ipv6.isValid()) {
            meta.protocol = hdr.inner_ipv6.next_hdr;
        }
        if (hdr.udp.isValid()) {
            meta.src_port = hdr.udp.src_port;
            meta.dst_port = hdr.udp.dst_port;
        }
        route.apply();
        if (meta.by_ev == 1) {
            uplink.apply();
        }
    }
}

#endif
