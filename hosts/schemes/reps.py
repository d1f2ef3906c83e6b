"""REPS: use an EV again that has just proven good [Bonato et al. 2024, "Recycled Entropy Packet Spraying"].

An EV whose packet arrived unmarked goes into a buffer; the next packet takes the oldest of these. Where the
buffer is empty a random EV is tried. So the sender keeps to paths that are free, and explores as it must.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from mrclab.hosts.mrc.evs.ev import Ev, PathPolicy

BUFFER = 256


class Reps(PathPolicy):
    """Recycled entropies."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._good: deque[Ev] = deque(maxlen=BUFFER)

    def choose(self, now_ns: int, evs: Sequence[Ev]) -> Ev:
        """Take the oldest proven EV that may be used now, else a random one."""
        for _ in range(len(self._good)):
            ev = self._good.popleft()
            if ev.ready and ev in evs:
                return ev
        return super().choose(now_ns, evs)

    def on_sack(self, now_ns: int, ev: Ev, marked: bool) -> None:
        """Recycle an EV that met no congestion."""
        if not marked:
            self._good.append(ev)
