// Trimming: a frame that the queue has no room for loses its payload, so that its receiver can ask for it at once.
//
//   kept   Ethernet | IPv6 | (IPv6) | UDP | BTH | METH | (TSETH) | RETH        134 or 138 bytes, or 40 less
//
// A codepoint says that this was done; all lengths say what is left, so that any tool dissects it. The ICRC goes
// with the payload that it covered.
#ifndef MRC_TRIM_P4
#define MRC_TRIM_P4

const bit<32> OUTER_BYTES      = 54;  // Ethernet and outer IPv6
const bit<32> INNER_IPV6_BYTES = 40;
const bit<32> TRANSPORT_BYTES  = 40;  // UDP to RETH
const bit<32> TIMESTAMP_BYTES  = 4;   // TSETH

// How much of a frame trimming would leave.
control TrimLength(in headers_t hdr, inout metadata_t meta) {
    apply {
        meta.trim_len = OUTER_BYTES + TRANSPORT_BYTES;
        if (hdr.inner_ipv6.isValid()) {
            meta.trim_len = meta.trim_len + INNER_IPV6_BYTES;
        }
        if (hdr.bth.has_timestamp == 1) {
            meta.trim_len = meta.trim_len + TIMESTAMP_BYTES;
        }
    }
}

control Trim(inout headers_t hdr,
             inout metadata_t meta,
             inout standard_metadata_t standard_metadata) {
    counter(PORT_COUNT, CounterType.packets_and_bytes) trimmed;

    apply {
        bit<16> left = (bit<16>)(meta.trim_len - OUTER_BYTES);
        hdr.ipv6.dscp = meta.trim_dscp;
        hdr.ipv6.payload_len = left;
        if (hdr.inner_ipv6.isValid()) {
            left = left - (bit<16>)INNER_IPV6_BYTES;
            hdr.inner_ipv6.payload_len = left;
        }
        hdr.udp.length = left;
        truncate(meta.trim_len);
        trimmed.count((bit<32>)standard_metadata.egress_spec);
    }
}

#endif
