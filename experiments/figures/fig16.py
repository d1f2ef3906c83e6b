"""Figure 16: ring all-reduce under loss, MRC against RoCEv2."""

from __future__ import annotations

from collections.abc import Mapping

from mrclab.experiments.judging.criteria import at_least, leads
from mrclab.experiments.judging.readings import Result, by_repetition, sizes_of
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import Interval, ratio_interval

PAPER = (
    "16 GB, Gbit/s without loss, at 0.1 %, at 1 %: MRC 375, 339, 151; RoCE with 1 QP 223, 193, 32, "
    "with 16 QPs 362, 214, 28"
)
SCALE = (
    "in flight are 122 packets, as with 400 Gbit/s and 10 us; RoCEv2's timeout is 26 round trips, not 400, "
    "and a ring of 8 ranks has fewer last packets to lose than one of 64: both favour RoCEv2"
)
LARGEST = {
    "mrc": (375.0, 339.0, 151.0),
    "rocev2": (223.0, 193.0, 32.0),
    "rocev2-16qp": (362.0, 214.0, 28.0),
}
"""Bus bandwidth at 16 GB, Gbit/s: without loss, at 0.1 %, at 1 %."""
LOSSES = ("", "-0.1%", "-1%")


def judge(result: Result) -> Verdict:
    """Check the share that MRC keeps at the largest size, and its lead at every size."""
    return all_hold(judge_losses(result, LARGEST), SCALE)


def judge_losses(result: Result, paper: Mapping[str, tuple[float, ...]]) -> list[Check]:
    """Return the checks by the paper's values at its largest size.

    MRC keeps the paper's share of its loss-free bandwidth, and has the paper's lead over each RoCEv2. At
    smaller sizes, where the paper's leads are larger, any lead is enough.
    """
    sizes = sizes_of(result, "mrc", "time_us")
    if not sizes:
        return [Check("bandwidth under loss", "not measured", None, "")]
    checks = []
    for number, loss in enumerate(LOSSES):
        if loss:
            share = paper["mrc"][number] / paper["mrc"][0]
            asked = f"MRC at {loss[1:]} over MRC without loss, at {sizes[-1]}"
            source = f"paper, 16 GB: {paper['mrc'][number]:g} of {paper['mrc'][0]:g}"
            checks.append(at_least(asked, faster(result, f"mrc{loss}", "mrc", sizes[-1]), share, source))
        for name in (n for n in paper if n != "mrc"):
            theirs = paper[name][number]
            for size in sizes:
                asked = f"MRC over {name} at {loss[1:] or 'no loss'}, {size}"
                times = paper["mrc"][number] / theirs if size == sizes[-1] else 1.0
                source = f"paper, 16 GB: {paper['mrc'][number]:g} against {theirs:g}"
                if loss or size == sizes[-1]:
                    lead = faster(result, f"mrc{loss}", f"{name}{loss}", size)
                    checks.append(leads(asked, lead, source, times))
    return checks


def faster(result: Result, transport: str, other: str, size: str) -> Interval | None:
    """Return the bandwidth of one transport over another's at a size: by the mean time of an operation, as
    nccl-tests does, so that stalls count in full."""
    metric = f"time_us@{size}"
    return ratio_interval(by_repetition(result, other, metric), by_repetition(result, transport, metric))
