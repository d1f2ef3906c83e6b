"""Three path policies. Each queue pair creates its policy; `choose` is called before every packet."""

from mrclab.hosts.mrc.evs.ev import PathPolicy

AVOID_NS = 100_000
"""How long Healthy keeps off a path that lost a packet, ns."""


class RoundRobin(PathPolicy):
    """Take every EV in turn: of those offered, the one whose last turn is longest ago."""

    def __init__(self, rng):
        super().__init__(rng)
        self.turns = 0
        self.last_turn = {}

    def choose(self, now_ns, evs):
        """Return one of `evs`, a list that is not empty and differs from call to call."""
        ev = min(evs, key=lambda ev: self.last_turn.get(ev.value, -1))
        self.turns += 1
        self.last_turn[ev.value] = self.turns
        return ev


class TwoChoices(PathPolicy):
    """Draw two EVs at random (from self.rng) and take the one with fewer packets on their way."""

    def choose(self, now_ns, evs):
        """Return one of `evs`."""
        return min(self.rng.choice(evs), self.rng.choice(evs), key=on_their_way)


def on_their_way(ev):
    """Return how many packets on an EV are neither acknowledged nor lost nor trimmed yet."""
    return ev.sent - ev.acked - ev.lost - ev.trimmed


class Healthy(RoundRobin):
    """Take every EV in turn, except EVs that lost a packet in the last AVOID_NS."""

    def __init__(self, rng):
        super().__init__(rng)
        self.bad_until = {}

    def choose(self, now_ns, evs):
        """Return one of `evs`. Something has to be returned, even if all of them are bad."""
        good = [ev for ev in evs if self.bad_until.get(ev.value, 0) <= now_ns]
        return super().choose(now_ns, good or evs)

    def on_loss(self, now_ns, ev):
        """Note that a packet on this EV was lost."""
        self.bad_until[ev.value] = now_ns + AVOID_NS


class Best(Healthy):
    """Going further: of the healthy EVs whose turn is near, take the one with fewer packets on their way."""

    def choose(self, now_ns, evs):
        """Return one of `evs`."""
        good = [ev for ev in evs if self.bad_until.get(ev.value, 0) <= now_ns] or evs
        in_turn = sorted(good, key=lambda ev: self.last_turn.get(ev.value, -1))[:4]
        ev = min(in_turn, key=on_their_way)
        self.turns += 1
        self.last_turn[ev.value] = self.turns
        return ev
