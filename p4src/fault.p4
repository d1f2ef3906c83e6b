// Faults as table entries, so that breaking a link is one P4Runtime write on any target,
// its moment is known, carrier stays up, and deleting the entry heals it.
#ifndef MRC_FAULT_P4
#define MRC_FAULT_P4

control Fault(in port_t port, in drop_t reason, inout metadata_t meta) {
    direct_counter(CounterType.packets_and_bytes) fault_hits;

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

    table fault {
        key = { port : exact @name("port"); }
        actions = { healthy; blackhole; lose; }
        const default_action = healthy();
        counters = fault_hits;
        size = PORT_COUNT;
    }

    apply {
        fault.apply();
    }
}

#endif
