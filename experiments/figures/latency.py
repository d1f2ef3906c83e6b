"""Section 5.2.1: the latency of a small write without loss, MRC against RoCEv2."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_most
from mrclab.experiments.judging.readings import Result, pooled
from mrclab.experiments.judging.scale import fabric_of, placement_of
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import median_interval, quantile_ratio_interval
from mrclab.hosts.options import wire_time_ns

PAPER = "a write of 2 bytes takes 5.09 us inside a T0 and 6.54 us across a T1"
EQUAL = 0.01
SOURCE = "theory: the same path but for the time on the wire, to the 1 % of the paper's figures"
OUTER_HEADER_BYTES = 40
"""RoCEv2 has no outer IPv6 header."""


def judge(result: Result) -> Verdict:
    """Check that a request and its answer take no longer than with RoCEv2 except on the wire.

    MRC's packets have one more header, and each travels in one plane, at its share of the NIC's rate.
    """
    ours, theirs = (pooled(result, name, "latency_us") for name in ("mrc", "rocev2"))
    usual = median_interval(theirs)
    extra_us = wire_us(result, "mrc", 0) - wire_us(result, "rocev2", -OUTER_HEADER_BYTES)
    limit = 1 + EQUAL + (max(0.0, extra_us) / usual.value if usual else 0.0)
    ratio = quantile_ratio_interval(ours, theirs, 0.5)
    return all_hold([at_most("median latency over that of RoCEv2", ratio, limit, SOURCE)])


def wire_us(result: Result, transport: str, more_bytes: int) -> float:
    """Return the time of a request and its answer on all links of their way, us."""
    fabric = fabric_of(result, transport)
    workload = result["parameters"]["workload"]
    a, b = placement_of(result, fabric).hosts
    sizes = (workload["message_bytes"] + more_bytes, workload["response_bytes"] + more_bytes)
    return (wire_time_ns(fabric, a, b, sizes[0]) + wire_time_ns(fabric, b, a, sizes[1])) / 1e3
