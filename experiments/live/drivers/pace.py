"""The rate of a spray, in a closed loop: as high as endpoints can send without using too much of their CPUs.

Pure: shares and rates in, the next rate out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.validity import too_fast

LEAST_SHARE = 0.1
"""Of the scenario's rate: less is not worth running, and the run is then not valid."""
DOWN, UP = 0.75, 1.05
"""A trial changes the rate by no more than these factors."""
NEAR = 0.05
"""A share this close below the one that is wanted needs no other rate: runs with one rate compare better."""
REFUSED = 0.9
"""After a trial that was too fast the rate is at most this part of that trial's, to the end of the run."""


@dataclass(slots=True)
class Pace:
    """The rate of payload, bit/s: at most ``most_bps``, and such that no endpoint's share exceeds ``share``.

    ``share`` is of one CPU, running and waiting, from 0 to 1. ``bps`` is the rate from now on.
    """

    most_bps: int
    share: float
    bps: int = field(init=False)
    _least_bps: int = field(init=False)

    def __post_init__(self) -> None:
        self.bps = self.most_bps
        self._least_bps = round(LEAST_SHARE * self.most_bps)

    def look(self, made_bps: int, share: float) -> bool:
        """Set the rate by a part of the warm-up; return True if the rate was right before.

        ``made_bps`` is the rate that was sent: a saturated sender falls short of the rate that it is given.
        """
        if share <= self.share and made_bps >= 0.9 * self.bps:
            return True
        self._set(made_bps * self.share / max(share, 0.01))
        return False

    def after(self, load: Load) -> bool:
        """Set the rate after a trial of this load; return True if the trial was not too fast."""
        if too_fast(load):
            self.most_bps = round(REFUSED * self.bps)
        factor = 1.0
        if load.share and not self.share - NEAR <= load.share <= self.share:
            factor = min(max(self.share / load.share, DOWN), UP)
        before = self.bps
        self._set(before * factor)
        return self.bps >= before

    def _set(self, bps: float) -> None:
        self.bps = max(min(round(bps), self.most_bps), self._least_bps)
