"""Path selection: the interface for your own policies.

Without a policy a queue pair takes the EVs of its rotation in turn (`mrclab.hosts.mrc.evs.ev_set`). A policy
decides instead which of the EVs that may be used now the next packet takes. Which EVs may be used stays MRC's
affair: an EV that lost a packet is retired, probed and restored as ever, and one that was marked sits out a
turn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from mrclab.hosts.mrc.evs.ev import Ev


@mypyc_attr(allow_interpreted_subclasses=True)
class PathPolicy:
    """Chooses the EV of each packet. By itself at random.

    Derive from it and name your class in the option `path_policy`; it need not be compiled. Every queue pair
    has a separate policy. Take randomness from `self.rng` alone, so that a run can be repeated.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def choose(self, now_ns: int, evs: Sequence[Ev]) -> Ev:
        """Return one of `evs`, which is not empty: those in use, in service, whose port is free."""
        return evs[int(self.rng.random() * len(evs))]

    def on_sack(self, now_ns: int, ev: Ev, marked: bool) -> None:
        """Note that a SACK names this EV: its packet arrived; `marked` if it met congestion on the way."""

    def on_trim(self, now_ns: int, ev: Ev) -> None:
        """Note that a packet on this EV lost its payload to a full queue."""

    def on_loss(self, now_ns: int, ev: Ev) -> None:
        """Note that a packet on this EV was lost. If EV health is on, the EV is retired now."""
