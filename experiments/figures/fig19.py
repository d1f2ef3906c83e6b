"""Figure 19b: T0-T1 links of one plane taken away and returned one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.fig09a import judge_phases
from experiments.figures.verdict import Verdict

PAPER = "100G links taken and returned one by one: 383, 286, 191, 97, 191, 286, 381 Gbit/s, with short dips"


def judge(result: Mapping[str, Any]) -> Verdict:
    """Every phase carries its share, as with the links of the NIC in figure 9a."""
    return judge_phases(result, "mrc")
