// Lab 3: the queue in front of a port, as virtual time. What becomes of a frame is yours to write.
#include <core.p4>
#include <v1model.p4>

typedef bit<48>  mac_addr_t;
typedef bit<128> ipv6_addr_t;
typedef bit<64>  ticks_t;  // 1024 are a microsecond

const bit<16> ETHERTYPE_IPV6 = 0x86dd;
const bit<9>  THE_PORT = 2;

// The link behind the port carries 100 Mbit/s, so a byte takes 0.08 us.
const ticks_t BYTE_TICKS = 82;

// Depths of the queue, in the time that a frame has to wait.
const ticks_t MARK_FROM = 200 << 10;
const ticks_t MARK_TO   = 800 << 10;
const ticks_t TRIM_FROM = 1000 << 10;
const ticks_t DROP_FROM = 2000 << 10;

const bit<2> NOT_ECT = 0;  // the sender does not know about marks
const bit<2> CE      = 3;  // congestion experienced

const bit<6>  TRIMMABLE = 4;
const bit<6>  TRIMMED   = 12;
const bit<32> TRIM_LEN  = 134;  // what a trimmed frame keeps: its headers
const bit<16> HEADERS_BEFORE_PAYLOAD = 54;  // Ethernet and IPv6, which payload_len does not count

header ethernet_t {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16>    ether_type;
}

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

struct metadata_t { }

parser LabParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV6: parse_ipv6;
            default: accept;
        }
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        transition accept;
    }
}

control LabIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<ticks_t>(1) idle_at;  // when the port will have sent all that is queued

    ticks_t now;
    ticks_t idle;
    ticks_t wait;
    bit<32> length;
    bit<32> draw;

    apply {
        standard_metadata.egress_spec = THE_PORT;

        // Given: how long this frame would have to wait.
        now = (ticks_t)standard_metadata.ingress_global_timestamp << 10;
        idle_at.read(idle, 0);
        if (idle < now) {
            idle = now;
        }
        wait = idle - now;
        length = standard_metadata.packet_length;

        if (hdr.ipv6.ecn != NOT_ECT && wait > MARK_FROM) {
            random(draw, 0, 0xffff);
            if ((ticks_t)draw * (MARK_TO - MARK_FROM) < (wait - MARK_FROM) << 16) {
                hdr.ipv6.ecn = CE;
            }
        }

        if (wait > TRIM_FROM && hdr.ipv6.dscp == TRIMMABLE && length > TRIM_LEN) {
            hdr.ipv6.dscp = TRIMMED;
            hdr.ipv6.payload_len = (bit<16>)TRIM_LEN - HEADERS_BEFORE_PAYLOAD;
            truncate(TRIM_LEN);
            length = TRIM_LEN;
        } else if (wait > DROP_FROM) {
            mark_to_drop(standard_metadata);
        }

        // Given: the port is busy for as long as the link takes for what is queued.
        idle_at.write(0, idle + (ticks_t)length * BYTE_TICKS);
    }
}

control LabEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control LabDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv6);
    }
}

control NoChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

V1Switch(LabParser(), NoChecksum(), LabIngress(), LabEgress(), NoChecksum(), LabDeparser()) main;
