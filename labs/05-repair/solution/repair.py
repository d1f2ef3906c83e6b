"""Loss detection of a sender: decide which packets have to be sent again."""


class LossDetector:
    """Receive each transmission and each SACK, and return the lost packets.

    A packet is lost if a packet that was sent more than `window_ns` later has arrived. Only the times of
    sending are compared, so a late SACK does not matter.
    """

    def __init__(self, window_ns, timeout_ns):
        """Store two assumptions.

        Packets that are sent up to `window_ns` later may overtake a packet. Every RTT is below `timeout_ns`.
        """
        self.window_ns = window_ns
        self.timeout_ns = timeout_ns
        self.sent_ns = {}
        """When each unacknowledged packet was last sent."""
        self.newest_ns = -1
        """The latest time at which an acknowledged packet was sent."""
        self.repeated = set()

    def on_sent(self, psn, now_ns):
        """Record a transmission: the first of a packet, or a repeat."""
        if psn in self.sent_ns:
            self.repeated.add(psn)
        self.sent_ns[psn] = now_ns

    def on_sack(self, cumulative, above, now_ns):
        """Process a SACK: all packets below `cumulative` and the packets in the set `above` have arrived.

        Return a list of the packets to send again now. `on_sent` will be called for each of them.
        """
        for psn in [psn for psn in self.sent_ns if psn < cumulative or psn in above]:
            sent_ns = self.sent_ns.pop(psn)
            if psn not in self.repeated:  # otherwise an earlier copy may have arrived
                self.newest_ns = max(self.newest_ns, sent_ns)
        return [psn for psn, sent_ns in self.sent_ns.items() if self.newest_ns - sent_ns > self.window_ns]

    def timer_ns(self):
        """Return when to call `on_timer`, or None. The value is read after each call of another method."""
        return min(self.sent_ns.values()) + self.timeout_ns if self.sent_ns else None

    def on_timer(self, now_ns):
        """Return a list of the packets to send again now."""
        return [psn for psn, sent_ns in self.sent_ns.items() if now_ns - sent_ns >= self.timeout_ns]
