// Faults as table entries, so that breaking a link is one P4Runtime write on any target,
// its moment is known, carrier stays up, and deleting the entry heals it.
#ifndef MRC_FAULT_P4
#define MRC_FAULT_P4

control Fault(inout headers_t hdr,
              in port_t port,
              in drop_t reason,
              inout metadata_t meta,
              in standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) fault_hits;
    register<ticks_t>(PORT_COUNT) busy_until;

    ticks_t now;
    ticks_t busy;

    action healthy() {
        fault_hits.count();
    }

    action blackhole() {
        fault_hits.count();
        meta.drop = reason;
    }

    // Drops a frame with probability `ratio` / 2^32.
    action lose(bit<32> ratio) {
        fault_hits.count();
        bit<32> draw;
        random(draw, 0, 0xffffffff);
        if (draw < ratio) {
            meta.drop = reason;
        }
    }

    // Flips one bit of a frame with probability `ratio` / 2^32: of MRC's sequence number, which its ICRC covers,
    // or where there is none, of the outer source address.
    action corrupt(bit<32> ratio) {
        fault_hits.count();
        bit<32> draw;
        bit<5>  at;
        random(draw, 0, 0xffffffff);
        random(at, 0, 23);
        if (draw < ratio) {
            if (hdr.bth.isValid()) {
                hdr.bth.psn = hdr.bth.psn ^ (bit<24>)((bit<32>)1 << at);
            } else if (hdr.ipv6.isValid()) {
                hdr.ipv6.src_addr = hdr.ipv6.src_addr ^ (bit<128>)((bit<32>)1 << at);
            }
        }
    }

    // Lets through what a slower link would carry, and loses the rest: `byte_time` as in queue.p4, and the ticks by
    // which a burst may be ahead.
    action limit_rate(bit<32> byte_time, bit<32> burst) {
        fault_hits.count();
        busy_until.read(busy, (bit<32>)port);
        if (busy < now) {
            busy = now;
        }
        if (busy - now > (ticks_t)burst) {
            meta.drop = reason;
        } else {
            busy = busy + (((ticks_t)standard_metadata.packet_length * (ticks_t)byte_time) >> 16);
            busy_until.write((bit<32>)port, busy);
        }
    }

    table fault {
        key = { port : exact @name("port"); }
        actions = { healthy; blackhole; lose; corrupt; limit_rate; }
        const default_action = healthy();
        counters = fault_hits;
        size = PORT_COUNT;
    }

    apply {
        now = (ticks_t)standard_metadata.ingress_global_timestamp << 10;
        fault.apply();
    }
}

#endif
