"""Loss detection of a sender: decide which packets have to be sent again."""


class LossDetector:
    """Receive each transmission and each SACK, and return the lost packets."""

    def __init__(self, window_ns, timeout_ns):
        """Store two assumptions.

        Packets that are sent up to `window_ns` later may overtake a packet. Every RTT is below `timeout_ns`.
        """
        self.window_ns = window_ns
        self.timeout_ns = timeout_ns
        # TODO 1: what do you have to remember about each packet?

    def on_sent(self, psn, now_ns):
        """Record a transmission: the first of a packet, or a repeat."""
        # TODO 1

    def on_sack(self, cumulative, above, now_ns):
        """Process a SACK: all packets below `cumulative` and the packets in the set `above` have arrived.

        Return a list of the packets to send again now. `on_sent` will be called for each of them.
        """
        # TODO 2: replace this line.
        return []

    def timer_ns(self):
        """Return when to call `on_timer`, or None. The value is read after each call of another method."""
        # TODO 3: replace this line.
        return None

    def on_timer(self, now_ns):
        """Return a list of the packets to send again now."""
        # TODO 3: replace this line.
        return []
