"""Section 5.2.1: the bandwidth of messages of 32 KB without loss, MRC against RoCEv2."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_least
from mrclab.experiments.judging.readings import Result, by_repetition, mean_of
from mrclab.experiments.judging.scale import fabric_of, nic_mbps
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import ratio_interval

PAPER = "messages of 32 KB reach 770 of 800 Gbit/s"
LEAST = 770 / 800
SOURCE = "paper, section 5.2.1: 770 of 800 Gbit/s with messages of 32 KB"
EQUAL = 0.99
EQUAL_SOURCE = "paper, figure 20: 390 Gbit/s a flow with MRC, at most 392 with RoCE; to 1 %"


def judge(result: Result) -> Verdict:
    """MRC reaches the paper's share of its NIC, and one flow has no less than with RoCEv2."""
    mrc, roce = (by_repetition(result, name, "goodput_mbps") for name in ("mrc", "rocev2"))
    nic = nic_mbps(fabric_of(result, "mrc"))
    return all_hold(
        [
            at_least("goodput over the NIC's rate", mean_of([rate / nic for rate in mrc]), LEAST, SOURCE),
            at_least("goodput over that of RoCEv2", ratio_interval(mrc, roce), EQUAL, EQUAL_SOURCE),
        ]
    )
