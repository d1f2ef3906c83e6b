"""Loss detection of one sender: it says which packets have to be sent again."""


class LossDetector:
    """Learn of each transmission and each SACK, and return the lost packets.

    A packet is lost once another one, sent more than the window later, has arrived. Both times are times of
    sending, so it does not matter how late the SACK comes.
    """

    def __init__(self, window_ns, timeout_ns):
        """Others that are sent up to `window_ns` later may overtake; `timeout_ns` is longer than any RTT."""
        self.window_ns = window_ns
        self.timeout_ns = timeout_ns
        self.sent_ns = {}
        """When each packet that is not acknowledged was sent last."""
        self.newest_ns = -1
        """The latest time of sending of anything that was acknowledged."""
        self.repeated = set()

    def on_sent(self, psn, now_ns):
        """Note a transmission: the first of a packet, or a repeat."""
        if psn in self.sent_ns:
            self.repeated.add(psn)
        self.sent_ns[psn] = now_ns

    def on_sack(self, cumulative, above, now_ns):
        """Take a SACK: all packets below `cumulative` have arrived, and those in the set `above`.

        Return a list of the packets to send again now. `on_sent` is called for each of them.
        """
        for psn in [psn for psn in self.sent_ns if psn < cumulative or psn in above]:
            sent_ns = self.sent_ns.pop(psn)
            if psn not in self.repeated:  # else it may be an earlier copy that has arrived
                self.newest_ns = max(self.newest_ns, sent_ns)
        highest = max([cumulative - 1, *above])
        return [psn for psn in self.sent_ns if highest >= psn + 3]

    def timer_ns(self):
        """Return when `on_timer` is to be called, or None for never. Asked after everything that happens."""
        return min(self.sent_ns.values()) + self.timeout_ns if self.sent_ns else None

    def on_timer(self, now_ns):
        """Return a list of the packets to send again now."""
        return [psn for psn, sent_ns in self.sent_ns.items() if now_ns - sent_ns >= self.timeout_ns]
