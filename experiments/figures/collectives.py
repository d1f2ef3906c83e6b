"""Judges of all-reduce (figure 16) and all-to-all (figure 17) under loss, and of all-reduce without loss."""

from __future__ import annotations

from collections.abc import Mapping

from mrclab.experiments.judging.criteria import at_least, leads
from mrclab.experiments.judging.readings import Result, by_repetition, mean_of, sizes_of
from mrclab.experiments.judging.scale import fabric_of, nic_mbps
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import Interval, ratio_interval

PAPER_FIG16 = (
    "16 GB, Gbit/s without loss, at 0.1 %, at 1 %: MRC 375, 339, 151; RoCE with 1 QP 223, 193, 32, "
    "with 16 QPs 362, 214, 28"
)
FIG16_SCALE = (
    "in flight are 122 packets, as with 400 Gbit/s and 10 us; RoCEv2's timeout is 26 round trips, not 400, "
    "and a ring of 8 ranks has fewer last packets to lose than one of 64: both favour RoCEv2"
)
FIG16_LARGEST = {
    "mrc": (375.0, 339.0, 151.0),
    "rocev2": (223.0, 193.0, 32.0),
    "rocev2-16qp": (362.0, 214.0, 28.0),
}
"""The paper's bus bandwidth at 16 GB, Gbit/s: without loss, with 0.1 % and with 1 % of packets lost."""
FIG16_LOSSES = ("", "-0.1%", "-1%")


def judge_fig16(result: Result) -> Verdict:
    """Check MRC's bandwidth under loss, relative to its bandwidth without loss, and to RoCEv2's bandwidth."""
    return all_hold(judge_losses(result, FIG16_LARGEST), FIG16_SCALE)


def judge_losses(result: Result, paper: Mapping[str, tuple[float, ...]]) -> list[Check]:
    """Return the checks of figure 16 or 17; ``paper`` has the paper's values at the largest message size.

    At the largest size, MRC must keep at least the paper's share of its loss-free bandwidth. MRC's bandwidth,
    divided by RoCEv2's bandwidth, must be at least as large as in the paper. At smaller sizes with loss, this
    ratio need only be above 1.
    """
    sizes = sizes_of(result, "mrc", "time_us")
    if not sizes:
        return [Check("bandwidth under loss", "not measured", None, "")]
    checks = []
    for number, loss in enumerate(FIG16_LOSSES):
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
    """Return the bandwidth of ``transport``, divided by the bandwidth of ``other``, at one message size.

    As in nccl-tests, the bandwidth is computed from the mean time of an operation, so all stalls count.
    """
    metric = f"time_us@{size}"
    return ratio_interval(by_repetition(result, other, metric), by_repetition(result, transport, metric))


PAPER_FIG17 = (
    "Gbit/s without loss, at 0.1 %, at 1 %: MRC 361, 331, 234 at 16 GB; RoCE with 1 QP 327, 323, 126, "
    "with 16 QPs 295, 298, 125; at 2 MB MRC 150, 51, 33, RoCE 149, 5, 1"
)
FIG17_LARGEST = {
    "mrc": (361.0, 331.0, 234.0),
    "rocev2": (327.0, 323.0, 126.0),
    "rocev2-16qp": (295.0, 298.0, 125.0),
}
SMALL = 124 / 18
SMALL_SOURCE = "paper: 124 against 18 at 8 MB, where a message has as many packets (32) as here"


def judge_fig17(result: Result) -> Verdict:
    """Check the share of bandwidth that MRC keeps under loss, and the ratio of MRC's bandwidth to RoCEv2's.

    At the smallest size, this ratio must also be at least as large as in the paper.
    """
    sizes = sizes_of(result, "mrc", "time_us")
    checks = judge_losses(result, FIG17_LARGEST)
    for name in ("rocev2", "rocev2-16qp") if sizes else ():
        asked = f"MRC over {name} at 0.1%, {sizes[0]}, by the paper's small sizes"
        lead = faster(result, "mrc-0.1%", f"{name}-0.1%", sizes[0])
        checks.append(leads(asked, lead, SMALL_SOURCE, SMALL))
    return all_hold(checks)


PAPER_ALL_REDUCE = "64-way, at 16 GB: 375 of 400 Gbit/s"
ALL_REDUCE_LEAST = 375 / 400


def judge_all_reduce(result: Result) -> Verdict:
    """Check the bus bandwidth at the largest size, divided by the rate of all links of a NIC."""
    sizes = sizes_of(result, "mrc", "busbw_gbps")
    if not sizes:
        return all_hold([Check("bus bandwidth", "not measured", None, PAPER_ALL_REDUCE)])
    nic_gbps = nic_mbps(fabric_of(result, "mrc")) / 1e3
    shares = [gbps / nic_gbps for gbps in by_repetition(result, "mrc", f"busbw_gbps@{sizes[-1]}")]
    asked = f"bus bandwidth over the NIC's {nic_gbps:.4g} Gbit/s"
    return all_hold(
        [at_least(asked, mean_of([*shares]), ALL_REDUCE_LEAST, f"paper, figure 16: {PAPER_ALL_REDUCE}")]
    )
