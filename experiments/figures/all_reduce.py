"""A ring all-reduce against the limit that the links set."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_least
from mrclab.experiments.judging.readings import Result, by_repetition, mean_of, sizes_of
from mrclab.experiments.judging.scale import fabric_of, nic_mbps
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold

PAPER = "64-way, at 16 GB: 375 of 400 Gbit/s"
LEAST = 375 / 400


def judge(result: Result) -> Verdict:
    """Bus bandwidth at the largest size over the rate of all of a NIC's links."""
    sizes = sizes_of(result, "mrc", "busbw_gbps")
    if not sizes:
        return all_hold([Check("bus bandwidth", "not measured", None, PAPER)])
    nic_gbps = nic_mbps(fabric_of(result, "mrc")) / 1e3
    shares = [gbps / nic_gbps for gbps in by_repetition(result, "mrc", f"busbw_gbps@{sizes[-1]}")]
    asked = f"bus bandwidth over the NIC's {nic_gbps:.4g} Gbit/s"
    return all_hold([at_least(asked, mean_of([*shares]), LEAST, f"paper, figure 16: {PAPER}")])
