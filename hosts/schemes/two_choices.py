"""Two choices: choose two EVs at random, and use the EV with fewer packets in flight.

The idea is known as "the power of two choices" [Mitzenmacher 2001]. As the load of an EV, the sender counts
the packets sent on this EV that are neither acknowledged nor lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from mrclab.hosts.mrc.evs.ev import Ev, PathPolicy


class TwoChoices(PathPolicy):
    """Path policy that takes the less loaded of two random EVs."""

    def choose(self, now_ns: int, evs: Sequence[Ev]) -> Ev:
        """Choose two random EVs and return the EV with the smaller load."""
        a, b = (evs[int(self.rng.random() * len(evs))] for _ in range(2))
        return a if _waiting(a) <= _waiting(b) else b


def _waiting(ev: Ev) -> int:
    return ev.sent - ev.acked - ev.lost - ev.trimmed
