"""A transformer trained under faults, with MRC and on conventional fabrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrclab.experiments.judging.criteria import at_most, none_of, present
from mrclab.experiments.judging.readings import Result, by_repetition, failures, transport_of, trials_of
from mrclab.experiments.judging.scale import fabric_of, placement_of
from mrclab.experiments.judging.stalls import stalls_or_fails
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import mean_interval
from mrclab.hosts.mrc.config import ACK_LADDERS

PAPER = (
    "link flaps and reboots of T1s had no effect on training; conventional fabrics stall for seconds to tens "
    "of seconds, or the job fails"
)
FELT_SOURCE = "without a fault that took packets there is nothing to show"
BITS_SOURCE = "theory: additions in a fixed order give the same bits, unless a byte is wrong, missing or late"
ACK_TIMER_UNIT_US = 1.024
"""The ACK timer is this times two to its exponent. [MRC 1.0, Table 7-1]"""
STALLED_SOURCE = (
    "a sender learns of a loss by its ACK timer at the latest, and each rank of the ring may have to, one "
    "after the other: the ACK timer times the ranks"
)


def judge(result: Result) -> Verdict:
    """MRC's parameters are bit for bit those without faults and of one process, and no step stalls longer
    than detection may take; elsewhere a step stalls for a second at least in every run, or the job fails."""
    felt = sum(trial["felt"] is True for trial in trials_of(result, "mrc"))
    stalls = by_repetition(result, "mrc", "stalled_us", max)
    checks = [
        present("faults that took packets of MRC", felt, FELT_SOURCE),
        none_of("jobs that failed with MRC", failures(result, "mrc"), "paper: without effect"),
        none_of(
            "runs of MRC whose parameters are not those without faults, bit for bit",
            _unlike_control(result),
            BITS_SOURCE,
        ),
        none_of(
            "runs of MRC whose parameters are not those of one process, bit for bit",
            _unlike_alone(result),
            BITS_SOURCE,
        ),
        at_most(
            "longest stall of a step with MRC",
            mean_interval(stalls) if len(stalls) == len(_trainings(result, "mrc")) else None,
            longest_stall_us(result),
            STALLED_SOURCE,
            " us",
        ),
    ]
    for name, found in result["transports"].items():
        if found.get("routing") in ("ecmp", "frr"):
            checks.append(stalls_or_fails(result, name))
    return all_hold(checks)


def longest_stall_us(result: Result) -> float:
    """Return how long detection may make a step of MRC wait at most."""
    usual, _, _ = ACK_LADDERS["lab"]
    exponent = transport_of(result, "mrc").get("options", {}).get("ack_timeout_exponent", usual)
    ranks = len(placement_of(result, fabric_of(result, "mrc")).hosts)
    return float(ranks * ACK_TIMER_UNIT_US * 2 ** int(exponent))


def _trainings(result: Result, transport: str) -> dict[int, Mapping[str, Any]]:
    """Return the training of each repetition of a transport, by number."""
    details = transport_of(result, transport).get("details", ())
    return {found["repetition"]: found["training"] for found in details if "training" in found}


def _unlike_control(result: Result) -> int | None:
    ours, control = _trainings(result, "mrc"), _trainings(result, "control")
    if not ours or any(control.get(number, {}).get("parameters_sha256") is None for number in ours):
        return None
    return [
        found["parameters_sha256"] != control[number]["parameters_sha256"] for number, found in ours.items()
    ].count(True)


def _unlike_alone(result: Result) -> int | None:
    ours = _trainings(result, "mrc").values()
    if not ours or any(found["alone_sha256"] is None for found in ours):
        return None
    return [
        found["parameters_differ_at"] is not None or found["parameters_sha256"] != found["alone_sha256"]
        for found in ours
    ].count(True)
