"""A ring all-reduce against what the links set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, all_hold, at_least, mean_by_size, nic_mbps, ratio
from p4src.contract import FRAME_OVERHEAD_BYTES

PAPER = "64-way, at 16 GB: 375 of 400 Gbit/s"
PAYLOAD_BYTES = 4096
LEAST = 0.7


def judge(result: Mapping[str, Any]) -> Verdict:
    """Bus bandwidth at the largest size over that of full packets back to back on all of a NIC's links."""
    found = list(mean_by_size(result, "mrc", "busbw_gbps").values())
    bound_gbps = nic_mbps(result) / 1e3 * PAYLOAD_BYTES / (PAYLOAD_BYTES + FRAME_OVERHEAD_BYTES)
    share = ratio(found[-1] if found else None, bound_gbps)
    return all_hold([at_least(f"bus bandwidth over the links' {bound_gbps:.4g} Gbit/s", share, LEAST)])
