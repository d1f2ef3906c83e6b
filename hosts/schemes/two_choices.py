"""Two choices: of two EVs drawn at random, take the one that has fewer packets on their way.

"The power of two choices" [Mitzenmacher 2001] with a sender's own measure of load: packets sent on an EV that
are neither acknowledged nor lost yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from mrclab.hosts.mrc.evs.ev import Ev, PathPolicy


class TwoChoices(PathPolicy):
    """The less loaded of two."""

    def choose(self, now_ns: int, evs: Sequence[Ev]) -> Ev:
        """Draw two and compare."""
        a, b = (evs[int(self.rng.random() * len(evs))] for _ in range(2))
        return a if _waiting(a) <= _waiting(b) else b


def _waiting(ev: Ev) -> int:
    return ev.sent - ev.acked - ev.lost - ev.trimmed
