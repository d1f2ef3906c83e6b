"""When switches mark frames: by UEC's depths, as the switch program does, or by DCQCN's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.port import Depths

Marks = Literal["uec", "dcqcn"]
DCQCN_FROM_NS: Final = 1_000
DCQCN_TO_NS: Final = 40_000
DCQCN_MOST: Final = 0.01
"""Kmin 5 kB, Kmax 200 kB and Pmax 1 % on links of 40 Gbit/s, as waiting times, so that they suit any rate.
[Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, section 5]"""


@dataclass(frozen=True, slots=True)
class Marking:
    """The marks of a fabric's switches."""

    marks: Marks = "uec"
    last_hop: bool = False
    """Mark in front of NICs as well: then marks report an incast, of which the path is innocent."""

    def applied(self, depths: Depths, before_last: Depths, *, last_hop: bool) -> Depths:
        """Return a port's depths with these marks; ``before_last`` are those of the same port in front of a
        switch, from which a last hop takes its marks."""
        if last_hop and not self.last_hop:
            return depths
        if self.marks == "uec":
            span_ps = before_last.mark_span_ps
            return replace(depths, mark_from_ps=before_last.mark_from_ps, mark_span_ps=span_ps)
        from_ps = DCQCN_FROM_NS * PS_PER_NS
        span_ps = DCQCN_TO_NS * PS_PER_NS - from_ps
        return replace(depths, mark_from_ps=from_ps, mark_span_ps=span_ps, mark_most=DCQCN_MOST)


USUAL: Final = Marking()
