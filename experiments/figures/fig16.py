"""Figure 16: ring all-reduce under loss, MRC against RoCEv2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Check, Verdict, at_least, at_most, metric_by_size, ratio

PAPER = (
    "16 GB, Gbit/s without loss, at 0.1 %, at 1 %: MRC 375, 339, 151; RoCE with 1 QP 223, 193, 32, "
    "with 16 QPs 362, 214, 28"
)
SCALE = "go-back-N sends a window again for each loss: some 24 packets here, hundreds at 400 Gbit/s"
LOSSES = ("0.1%", "1%")
ROCE = ("rocev2", "rocev2-16qp")


def judge(result: Mapping[str, Any]) -> Verdict:
    """At the largest size: what each keeps of its loss-free bandwidth, and who keeps more."""
    return judge_losses(result, keeps={"0.1%": 0.7, "1%": 0.25}, roce_at_most=0.5)


def judge_losses(result: Mapping[str, Any], keeps: Mapping[str, float], roce_at_most: float) -> Verdict:
    """``keeps`` is what MRC must keep of its own by loss; RoCEv2 may keep ``roce_at_most`` at 1 %."""
    checks: list[Check] = []
    for loss, share in keeps.items():
        checks.append(at_least(f"MRC at {loss} over MRC without loss", kept(result, "mrc", loss), share))
    for name in ROCE:
        checks.append(
            at_most(f"{name} at 1% over itself without loss", kept(result, name, "1%"), roce_at_most)
        )
        for loss in LOSSES:
            checks.append(at_least(f"MRC over {name} at {loss}", lead(result, name, loss), 1.0))
    return Verdict(tuple(checks), notes=(SCALE,))


def kept(result: Mapping[str, Any], transport: str, loss: str) -> float | None:
    """Bus bandwidth at the largest size under loss, over that without."""
    clean = metric_by_size(result, transport, "busbw_gbps")
    lossy = metric_by_size(result, f"{transport}-{loss}", "busbw_gbps")
    if not clean or not lossy:
        return None
    largest = list(clean)[-1]
    return ratio(lossy.get(largest), clean[largest])


def lead(result: Mapping[str, Any], transport: str, loss: str) -> float | None:
    """What MRC keeps at the largest size, over what the other does."""
    return ratio(kept(result, "mrc", loss), kept(result, transport, loss))
