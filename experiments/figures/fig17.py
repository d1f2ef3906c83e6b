"""Figure 17: all-to-all under loss, MRC against RoCEv2."""

from __future__ import annotations

from mrclab.experiments.figures.fig16 import faster, judge_losses
from mrclab.experiments.judging.criteria import leads
from mrclab.experiments.judging.readings import Result, sizes_of
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = (
    "Gbit/s without loss, at 0.1 %, at 1 %: MRC 361, 331, 234 at 16 GB; RoCE with 1 QP 327, 323, 126, "
    "with 16 QPs 295, 298, 125; at 2 MB MRC 150, 51, 33, RoCE 149, 5, 1"
)
LARGEST = {
    "mrc": (361.0, 331.0, 234.0),
    "rocev2": (327.0, 323.0, 126.0),
    "rocev2-16qp": (295.0, 298.0, 125.0),
}
SMALL = 124 / 18
SMALL_SOURCE = "paper: 124 against 18 at 8 MB, where a message has as many packets (32) as here"


def judge(result: Result) -> Verdict:
    """As figure 16; and at the smallest size MRC leads as far as the paper's does in messages as long."""
    sizes = sizes_of(result, "mrc", "time_us")
    checks = judge_losses(result, LARGEST)
    for name in ("rocev2", "rocev2-16qp") if sizes else ():
        asked = f"MRC over {name} at 0.1%, {sizes[0]}, by the paper's small sizes"
        lead = faster(result, "mrc-0.1%", f"{name}-0.1%", sizes[0])
        checks.append(leads(asked, lead, SMALL_SOURCE, SMALL))
    return all_hold(checks)
