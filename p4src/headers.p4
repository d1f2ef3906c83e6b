// Headers the switch reads. Whatever follows the outer IPv6 header is opaque to it:
// a transit node of an SRv6 fabric never looks at what the sender encapsulated.
#ifndef MRC_HEADERS_P4
#define MRC_HEADERS_P4

typedef bit<48>  mac_addr_t;
typedef bit<128> ipv6_addr_t;
typedef bit<9>   port_t;

const bit<16> ETHERTYPE_IPV6 = 0x86dd;

// Port-indexed arrays cover every value of a 9-bit port, so that no index can fall outside.
const bit<32> PORT_COUNT = 512;

header ethernet_t {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16>    ether_type;
}

// RFC 8200 section 3.
header ipv6_t {
    bit<4>      version;
    bit<6>      dscp;
    bit<2>      ecn;
    bit<20>     flow_label;
    bit<16>     payload_len;
    bit<8>      next_hdr;
    bit<8>      hop_limit;
    ipv6_addr_t src_addr;
    ipv6_addr_t dst_addr;
}

struct headers_t {
    ethernet_t ethernet;
    ipv6_t     ipv6;
}

// Why a frame was dropped: the index into the `drops` counter.
enum bit<8> drop_t {
    NONE          = 0,
    NOT_IPV6      = 1,  // no SRv6 fabric carries anything else
    HOP_LIMIT     = 2,  // would leave with hop limit 0
    NOT_OUR_SID   = 3,  // destination does not start with a SID of this switch
    NO_ROUTE      = 4,  // nothing known about the next /48
    FAULT_INGRESS = 5,  // the fault table, on arrival
    FAULT_EGRESS  = 6   // the fault table, on departure
}

const bit<32> DROP_COUNT = 16;

struct metadata_t {
    drop_t drop;
}

#endif
