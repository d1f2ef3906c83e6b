"""Three path policies. Each queue pair creates a policy, and calls `choose` before every packet."""

from mrclab.hosts.mrc.evs.ev import PathPolicy

AVOID_NS = 100_000
"""How long Healthy avoids a path that lost a packet, in ns."""


class RoundRobin(PathPolicy):
    """Take every EV in turn."""

    def __init__(self, rng):
        super().__init__(rng)
        # TODO 3: what do you have to remember?

    def choose(self, now_ns, evs):
        """Return one of `evs`. The list is never empty, and may differ from call to call."""
        # TODO 3: replace this line.
        return evs[0]


class TwoChoices(PathPolicy):
    """Draw two EVs at random (from self.rng) and take the EV with fewer packets in flight."""

    def choose(self, now_ns, evs):
        """Return one of `evs`."""
        # TODO 4: replace this line.
        return evs[0]


class Healthy(PathPolicy):
    """Take every EV in turn, except EVs that lost a packet in the last AVOID_NS."""

    def __init__(self, rng):
        super().__init__(rng)
        # TODO 5: what do you have to remember?

    def choose(self, now_ns, evs):
        """Return one of `evs`, even if all of them are bad."""
        # TODO 5: replace this line.
        return evs[0]

    def on_loss(self, now_ns, ev):
        """Record that a packet on this EV was lost."""
        # TODO 5
