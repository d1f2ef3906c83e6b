"""Three path policies. Each queue pair creates a policy, and calls `choose` before every packet."""

from mrclab.hosts.mrc.evs.ev import PathPolicy

AVOID_NS = 100_000
"""How long Healthy avoids a path that lost a packet, in ns."""


class RoundRobin(PathPolicy):
    """Take every EV in turn: of the offered EVs, the one that was used longest ago."""

    def __init__(self, rng):
        super().__init__(rng)
        self.turns = 0
        self.last_turn = {}

    def choose(self, now_ns, evs):
        """Return one of `evs`. The list is never empty, and may differ from call to call."""
        ev = min(evs, key=lambda ev: self.last_turn.get(ev.value, -1))
        self.turns += 1
        self.last_turn[ev.value] = self.turns
        return ev


class TwoChoices(PathPolicy):
    """Draw two EVs at random (from self.rng) and take the EV with fewer packets in flight."""

    def choose(self, now_ns, evs):
        """Return one of `evs`."""
        return min(self.rng.choice(evs), self.rng.choice(evs), key=on_their_way)


def on_their_way(ev):
    """Return the number of packets on an EV that are neither acknowledged, lost nor trimmed."""
    return ev.sent - ev.acked - ev.lost - ev.trimmed


class Healthy(RoundRobin):
    """Take every EV in turn, except EVs that lost a packet in the last AVOID_NS."""

    def __init__(self, rng):
        super().__init__(rng)
        self.bad_until = {}

    def choose(self, now_ns, evs):
        """Return one of `evs`, even if all of them are bad."""
        good = [ev for ev in evs if self.bad_until.get(ev.value, 0) <= now_ns]
        return super().choose(now_ns, good or evs)

    def on_loss(self, now_ns, ev):
        """Record that a packet on this EV was lost."""
        self.bad_until[ev.value] = now_ns + AVOID_NS


class Best(Healthy):
    """From Healthy's next four EVs, take the EV with the fewest packets in flight."""

    def choose(self, now_ns, evs):
        """Return one of `evs`."""
        good = [ev for ev in evs if self.bad_until.get(ev.value, 0) <= now_ns] or evs
        in_turn = sorted(good, key=lambda ev: self.last_turn.get(ev.value, -1))[:4]
        ev = min(in_turn, key=on_their_way)
        self.turns += 1
        self.last_turn[ev.value] = self.turns
        return ev
