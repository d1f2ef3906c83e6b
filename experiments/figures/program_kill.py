"""A real program while a link is cut: it ends well, every byte arrives, and the cut is a short pause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrclab.experiments.judging.criteria import at_most, none_of, present
from mrclab.experiments.judging.readings import Result, by_repetition, failures, trials_of
from mrclab.experiments.judging.scale import PAYLOAD_BYTES
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import interval_of

PAPER = "section 2.1: a failed path is detected and bypassed; the application goes on"
ROUND_TRIPS = 4
LIMIT_SOURCE = (
    "theory: one turn over all paths until a packet meets the cut, then a round trip for the answer that "
    "shows the gap, one at most for reordering, one for the retransmission, and one more if that met the "
    "cut too; packets at the program's rate, round trips as before the cut (99th percentile)"
)
BYTES_SOURCE = "the program's own arguments: size of a message times their number"
ENDED_SOURCE = "theory: a reliable transport hides the cut, so the exit code is that of success"
DELIVERED_SOURCE = "theory: a reliable transport delivers all that was lost"
TRANSPORT = "mrc"


def judge(result: Result) -> Verdict:
    """Check exit codes, bytes, and recovery against a bound of the program's own rate and round trip."""
    felt = [trial for trial in trials_of(result, TRANSPORT) if trial["felt"]]
    wrong = sum(
        found != wanted_bytes(result) for found in by_repetition(result, TRANSPORT, "completed_bytes", sum)
    )
    never = sum(trial["recovered_us"] is None for trial in felt)
    rates = by_repetition(result, TRANSPORT, "goodput_mbps")
    shares = [
        trial["recovered_us"] / limit
        for trial in felt
        if trial["recovered_us"] is not None and (limit := limit_us(trial, rates)) is not None
    ]
    checks = [
        none_of("repetitions in which a program failed", failures(result, TRANSPORT), ENDED_SOURCE),
        none_of("repetitions whose completed bytes are not those asked for", wrong, BYTES_SOURCE),
        present("faults that took packets", len(felt), "without one there is nothing to show"),
        none_of("faults not recovered from", never, DELIVERED_SOURCE),
        at_most("recovery over its bound, median", interval_of(shares, "p50"), 1.0, LIMIT_SOURCE),
    ]
    return all_hold(checks)


def wanted_bytes(result: Result) -> int:
    """Return the bytes that the sending programs were asked to write: `-s` times `-n`, as perftest has it."""
    workload = result["parameters"]["workload"]
    senders = workload["senders"]
    return sum(
        _number(program["run"], "-s") * _number(program["run"], "-n")
        for program in workload["programs"]
        if program["host"] in senders
    )


def _number(words: Sequence[str], option: str) -> int:
    return int(words[list(words).index(option) + 1])


def limit_us(trial: Mapping[str, Any], rates_mbps: Sequence[float]) -> float | None:
    """Return how long recovery may take: a turn over all paths, and four round trips under load; None if the
    trial lacks a number for it."""
    rate, round_trip = rates_mbps[trial["repetition"] :][:1], trial.get("rtt_p99_us")
    if not rate or not round_trip or not trial.get("paths_used"):
        return None
    packet_us = PAYLOAD_BYTES * 8 / rate[0]
    return float(trial["paths_used"] * packet_us + ROUND_TRIPS * round_trip)
