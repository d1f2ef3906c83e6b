"""Loss detection of one sender: it says which packets have to be sent again."""


class LossDetector:
    """Learn of each transmission and each SACK, and return the lost packets."""

    def __init__(self, window_ns, timeout_ns):
        """Others that are sent up to `window_ns` later may overtake; `timeout_ns` is longer than any RTT."""
        self.window_ns = window_ns
        self.timeout_ns = timeout_ns
        # TODO 1: what do you have to remember about each packet?

    def on_sent(self, psn, now_ns):
        """Note a transmission: the first of a packet, or a repeat."""
        # TODO 1

    def on_sack(self, cumulative, above, now_ns):
        """Take a SACK: all packets below `cumulative` have arrived, and those in the set `above`.

        Return a list of the packets to send again now. `on_sent` is called for each of them.
        """
        # TODO 2: replace this line.
        return []

    def timer_ns(self):
        """Return when `on_timer` is to be called, or None for never. Asked after everything that happens."""
        # TODO 3: replace this line.
        return None

    def on_timer(self, now_ns):
        """Return a list of the packets to send again now."""
        # TODO 3: replace this line.
        return []
