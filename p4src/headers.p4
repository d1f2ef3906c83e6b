// Headers the switch reads. It forwards on the outer IPv6 header alone, as a transit node of an SRv6 fabric does;
// what the sender encapsulated it reads to know where to cut, and writes only where it did cut (trim.p4).
#ifndef MRC_HEADERS_P4
#define MRC_HEADERS_P4

typedef bit<48>  mac_addr_t;
typedef bit<128> ipv6_addr_t;
typedef bit<9>   port_t;

const bit<16> ETHERTYPE_IPV6 = 0x86dd;
const bit<8>  NEXT_IPV6      = 41;
const bit<8>  NEXT_UDP       = 17;
const bit<8>  NEXT_ROUTING   = 43;
const bit<8>  ROUTING_SRH    = 4;
const bit<16> PROBE_PORT     = 4799;  // by choice: nothing is registered there

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

// RFC 8754 section 2: what stands before the list. `hdr_ext_len` counts 8 bytes each and not the first 8.
header srh_t {
    bit<8>  next_hdr;
    bit<8>  hdr_ext_len;
    bit<8>  routing_type;
    bit<8>  segments_left;
    bit<8>  last_entry;
    bit<8>  flags;
    bit<16> tag;
}

const bit<16> SRH_BYTES = 8;

// A segment, or 16 bytes of TLVs.
header segment_t {
    ipv6_addr_t address;
}

// What TLVs are more than a multiple of 16 bytes.
header odd_tlv_t {
    bit<64> bytes;
}

// RFC 768.
header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// The base transport header of MRC, as far as it is of use here: RoCE's, with a flag for a timestamp header.
header bth_t {
    bit<8>  opcode;
    bit<24> flags_and_pkey;
    bit<8>  reserved;
    bit<24> dest_qpn;
    bit<3>  flags;
    bit<1>  has_timestamp;
    bit<4>  more_flags;
    bit<24> psn;
}

// A path probe and the record that each switch on its way fills in: see probe.p4.
header probe_t {
    bit<8>  version;
    bit<8>  capacity;  // records that there is room for
    bit<8>  used;      // records that are filled
    bit<8>  reserved;
    bit<32> id;        // the sender's, as is the next
    bit<64> sent;
}

header hop_t {
    bit<32> node;
    bit<16> ingress_port;
    bit<16> egress_port;
    bit<32> wait;     // what the queue of the egress port had to send before, in ticks
    bit<64> arrived;  // microseconds of the switch's clock
}

struct headers_t {
    ethernet_t ethernet;
    ipv6_t     ipv6;
    srh_t      srh;
    segment_t[8] segments;
    odd_tlv_t  odd_tlv;
    ipv6_t     inner_ipv6;
    udp_t      udp;
    bth_t      bth;
    probe_t    probe;
    hop_t[7]   earlier_hops;
    hop_t      hop;
}

// Why a frame was dropped: the index into the `drops` counter.
enum bit<8> drop_t {
    NONE          = 0,
    NOT_IPV6      = 1,  // no SRv6 fabric carries anything else
    HOP_LIMIT     = 2,  // would leave with hop limit 0
    NOT_OUR_SID   = 3,  // destination does not start with a SID of this switch
    NO_ROUTE      = 4,  // nothing known about the next /48
    FAULT_INGRESS = 5,  // the fault table, on arrival
    FAULT_EGRESS  = 6,  // the fault table, on departure
    QUEUE_FULL    = 7,  // the queue of the port holds all it may
    TRIM_LIMIT    = 8,  // trimmed frames would take more of the port than they may
    LIST_ENDED    = 9,  // the last segment is this switch, which takes in nothing
    SRH_UNREAD    = 10, // a routing header that is cut short, too long or of another kind
    SRH_WRONG     = 11  // Segments Left or Last Entry point outside the list
}

const bit<32> DROP_COUNT = 16;

// Segments of a list that a switch can find its way past, and the `hdr_ext_len` of such a list.
const bit<8> MAX_SEGMENTS = 8;
const bit<8> MAX_SRH_LEN  = MAX_SEGMENTS * 2 + 1;

// The records of a probe that a switch can find its way past, and its own.
const bit<8> MAX_HOPS = 8;

// Virtual time of a port: 1024 ticks are a microsecond.
typedef bit<64> ticks_t;

struct metadata_t {
    drop_t  drop;

    // Segment lists (usid.p4, srh.p4)
    bit<1>      list;          // the active segment is an End: the list says where to go on
    bit<1>      psp;           // flavours of that End
    bit<1>      usd;
    bit<1>      adjacent;      // the segment itself says which port: End.X
    bit<1>      unpack;        // the outer headers shall go
    bit<1>      srh_read;      // the parser has reached the end of the routing header
    bit<8>      srh_rest;      // in the parser: what is left of it, in 8 bytes
    bit<8>      srh_ahead;     // in the parser: segments up to the next one to visit, it included
    ipv6_addr_t next_segment;

    // The flow, as ECMP hashes it, and the uplink that its EV names (ecmp.p4)
    bit<8>  protocol;
    bit<16> src_port;
    bit<16> dst_port;
    bit<1>  by_ev;
    bit<16> uplink;

    // Queues (queue.p4, ecn.p4, trim.p4)
    bit<1>  trimmable;  // may lose its payload
    bit<1>  high;       // leaves before all that is not
    bit<1>  trim;       // shall lose its payload
    bit<6>  trim_dscp;  // the codepoint that says so
    bit<32> trim_len;   // bytes that it keeps
    ticks_t wait;       // how long the port would have to send what is queued before this frame

    bit<8>  hops_before;  // in the parser: the records of a probe to pass over
}

#endif
