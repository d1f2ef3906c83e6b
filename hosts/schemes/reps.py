"""REPS: reuse an EV that has just worked [Bonato et al. 2024, "Recycled Entropy Packet Spraying"].

If a packet arrives unmarked, its EV goes into a buffer. The next packet takes the oldest EV of the buffer. If
the buffer is empty, the packet takes a random EV. So the sender uses free paths, and tries other paths if
needed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from mrclab.hosts.mrc.evs.ev import Ev, PathPolicy

BUFFER = 256


class Reps(PathPolicy):
    """Path policy that uses an EV again after a packet with this EV arrived unmarked."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._good: deque[Ev] = deque(maxlen=BUFFER)

    def choose(self, now_ns: int, evs: Sequence[Ev]) -> Ev:
        """Return the oldest EV of the buffer that may be used now, or else a random EV."""
        for _ in range(len(self._good)):
            ev = self._good.popleft()
            if ev.ready and ev in evs:
                return ev
        return super().choose(now_ns, evs)

    def on_sack(self, now_ns: int, ev: Ev, marked: bool) -> None:
        """Add an EV to the buffer if its packet arrived unmarked."""
        if not marked:
            self._good.append(ev)
