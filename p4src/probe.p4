// A path probe: a datagram in which every switch on its way notes that it was there, and when.
//
//   UDP | probe | hop 0 | hop 1 | ... | hop capacity-1 | whatever the sender adds
//
// The sender leaves room for `capacity` records, all zero, and `used` at 0. Each switch fills the next record in
// place, so that a probe never changes its length, and a host that gets one back (out and back is a segment list like
// any other) reads the whole way off it. Its UDP checksum is 0, since nobody would mend it on the way.
//
// Only the record to fill is taken apart; those before it are passed over.
#ifndef MRC_PROBE_P4
#define MRC_PROBE_P4

control Probe(inout headers_t hdr,
              in metadata_t meta,
              in standard_metadata_t standard_metadata) {
    // `node` says to the reader which switch it was.
    action record(bit<32> node) {
        hdr.hop.node = node;
        hdr.hop.ingress_port = (bit<16>)standard_metadata.ingress_port;
        hdr.hop.egress_port = (bit<16>)standard_metadata.egress_spec;
        hdr.hop.wait = (bit<32>)meta.wait;
        hdr.hop.arrived = (bit<64>)standard_metadata.ingress_global_timestamp;
        hdr.probe.used = hdr.probe.used + 1;
    }

    // Which versions of the format this switch answers to.
    table probe_version {
        key = { hdr.probe.version : exact @name("version"); }
        actions = { record; NoAction; }
        const default_action = NoAction();
        size = 4;
    }

    apply {
        if (hdr.hop.isValid() && hdr.probe.used < hdr.probe.capacity) {
            probe_version.apply();
        }
    }
}

#endif
