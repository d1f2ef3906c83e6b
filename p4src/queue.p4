// The queue in front of a port, as virtual time: how long the port still has to send.
//
// Every frame that is let through moves the moment at which the port will be idle (`idle_at`) on by the time that
// the link takes to carry it. The distance of that moment from now is how long the next frame has to wait, and, times
// the rate, how many bytes are queued. So the pipeline knows the depth of a port's queue when it decides what becomes
// of a frame, on any target, without asking it; and a queue that drains costs nothing.
//
// The link itself is kept to its rate by the target (ebpf: the kernel's HTB; BMv2: its own queues), which has to
// hold at least `limit`. Classes are strict: control waits for its like alone, a frame without its payload for
// both, data for all.
#ifndef MRC_QUEUE_P4
#define MRC_QUEUE_P4

const bit<3> PRIORITY_TRIMMED = 1;  // data has 0
const bit<3> PRIORITY_CONTROL = 2;

control PortQueue(inout headers_t hdr,
                  inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    register<ticks_t>(PORT_COUNT) idle_at;
    register<ticks_t>(PORT_COUNT) trims_idle_at;
    register<ticks_t>(PORT_COUNT) longest_wait;
    counter(PORT_COUNT, CounterType.packets_and_bytes) refused;
    counter(PORT_COUNT, CounterType.packets_and_bytes) port_rx_high;

    bit<32> port;
    ticks_t now;
    ticks_t idle;
    ticks_t trims_idle;
    ticks_t longest;
    bit<32> length;

    action data() { }

    action trimmable() {
        meta.trimmable = 1;
    }

    // One that another switch has trimmed, and one of control: neither is dropped for want of room.
    action cut() {
        meta.high = 1;
        standard_metadata.priority = PRIORITY_TRIMMED;
    }

    action urgent() {
        meta.high = 1;
        standard_metadata.priority = PRIORITY_CONTROL;
    }

    // What may become of a frame, by the codepoint that its sender chose.
    table traffic_class {
        key = { hdr.ipv6.dscp : exact @name("dscp"); }
        actions = { data; trimmable; cut; urgent; }
        const default_action = data();
        size = 64;
    }

    // Let a frame into the queue of its port, let it in without its payload, or drop it.
    //
    // byte_time   ticks that the link takes for a byte, times 2^16
    // limit       ticks of waiting beyond which a frame is dropped
    // trim_from   ticks of waiting beyond which one that may be is trimmed
    // trim_limit  the same as limit for trimmed frames among themselves, at half of the link's rate
    // trim_dscp   the codepoint of a frame that was trimmed here
    //
    // One action, so that no other frame comes in between reading the registers and writing them.
    action send_at(bit<32> byte_time, bit<32> limit, bit<32> trim_from, bit<32> trim_limit, bit<6> trim_dscp) {
        idle_at.read(idle, port);
        if (idle < now) {
            idle = now;
        }
        meta.wait = idle - now;
        if (meta.high == 0) {
            if (meta.trimmable == 1 && meta.wait > (ticks_t)trim_from) {
                trims_idle_at.read(trims_idle, port);
                if (trims_idle < now) {
                    trims_idle = now;
                }
                if (trims_idle - now > (ticks_t)trim_limit) {
                    meta.drop = drop_t.TRIM_LIMIT;
                } else {
                    meta.trim = 1;
                    meta.trim_dscp = trim_dscp;
                    length = meta.trim_len;
                    trims_idle = trims_idle + (((ticks_t)length * (ticks_t)byte_time) >> 15);
                    trims_idle_at.write(port, trims_idle);
                }
            } else if (meta.wait > (ticks_t)limit) {
                meta.drop = drop_t.QUEUE_FULL;
            }
        }
        if (meta.drop == drop_t.NONE) {
            idle_at.write(port, idle + (((ticks_t)length * (ticks_t)byte_time) >> 16));
            longest_wait.read(longest, port);
            if (meta.wait > longest) {
                longest_wait.write(port, meta.wait);
            }
        }
    }

    // The rate of a port. One that has no entry sends whatever comes.
    table port_queue {
        key = { standard_metadata.egress_spec : exact @name("port"); }
        actions = { send_at; NoAction; }
        const default_action = NoAction();
        size = PORT_COUNT;
    }

    apply {
        port = (bit<32>)standard_metadata.egress_spec;
        now = (ticks_t)standard_metadata.ingress_global_timestamp << 10;
        length = standard_metadata.packet_length;
        traffic_class.apply();
        if (meta.high == 1) {
            port_rx_high.count((bit<32>)standard_metadata.ingress_port);
        }
        // A frame that is no longer than what trimming would leave of it cannot be trimmed, nor one that is taken apart.
        if (!hdr.bth.isValid() || length <= meta.trim_len || meta.unpack == 1) {
            meta.trimmable = 0;
        }
        port_queue.apply();
        if (meta.drop != drop_t.NONE) {
            refused.count(port);
        }
        if (meta.trim == 1) {
            standard_metadata.priority = PRIORITY_TRIMMED;
        }
    }
}

#endif
