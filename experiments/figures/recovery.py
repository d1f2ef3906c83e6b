"""Judges of the recovery from silent faults, by MRC (tens of us) and by routing (seconds)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrclab.experiments.judging.criteria import at_least, at_most, leads, none_of, present
from mrclab.experiments.judging.readings import (
    Result,
    by_repetition,
    failures,
    times_us,
    transport_of,
    trials_of,
)
from mrclab.experiments.judging.scale import (
    BYPASS_SOURCE,
    PAPER_TENS_US,
    PAYLOAD_BYTES,
    bypass_limit_us,
    rtt_us,
)
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import interval_of, median_interval, quantile_ratio_interval

PAPER_LINK_KILL = (
    "section 2.1: failures are detected and bypassed in a few tens of us; the paper's round trip is 13.1 us"
)
TENS_SOURCE = (
    "paper, section 2.1: tens of us, so below 100 for nine of ten faults; as many round trips if the round "
    "trip is longer than 13.1 us"
)
LEFT_SOURCE = "paper, section 2.1: a failed path is bypassed, so nothing is sent onto it any more"
DELIVERED_SOURCE = "theory: a reliable transport delivers all that was lost"


def judge_link_kill(result: Result) -> Verdict:
    """Check how soon after the first loss a fault is detected and traffic is rerouted.

    Check also that all data arrives.
    """
    return all_hold(judge_bypass(result, "mrc"))


def judge_bypass(result: Result, transport: str) -> list[Check]:
    """Return the checks of a transport whose senders bypass failed paths themselves.

    Times count from the first loss, because nobody can notice a silent fault earlier. The time from the
    fault to its first loss depends only on the packet rate.
    """
    felt = [trial for trial in trials_of(result, transport) if trial["felt"]]
    round_trip_us = rtt_us(result, transport)
    limits = {
        "median": ("p50", bypass_limit_us(round_trip_us), BYPASS_SOURCE),
        "90th percentile": ("p90", bypass_limit_us(round_trip_us, PAPER_TENS_US), TENS_SOURCE),
    }
    checks = [present("faults that took packets", len(felt), "without one there is nothing to show")]
    for name in ("detected_us", "rerouted_us"):
        waits = [t[name] - t["first_loss_us"] for t in felt if None not in (t[name], t["first_loss_us"])]
        for words, (statistic, limit, source) in limits.items():
            asked = f"{name.removesuffix('_us')} since the first loss, {words}"
            checks.append(at_most(asked, interval_of(waits, statistic), limit, source, " us"))
    never = sum(t["detected_us"] is None or t["recovered_us"] is None for t in felt)
    checks.append(none_of("faults not detected, or not recovered from", never, DELIVERED_SOURCE))
    used = sum(t["rerouted_us"] is None for t in felt)
    checks.append(none_of("faults whose path was used until its repair", used, LEFT_SOURCE))
    return checks


PAPER_HEADLINE = (
    "a failed path is bypassed within a few tens of us; conventional fabrics take seconds to tens of seconds"
)
SECOND_US = 1e6
SECONDS_SOURCE = "OpenAI's post: conventional fabrics take seconds or even tens of seconds"
LEAD_SOURCE = "a second over the few tens of us, in round trips of this fabric"
LEAD_AT_ALL_SOURCE = "OpenAI's post: MRC reroutes sooner than routing converges; no factor is given for BFD"
HOLD_NS = 10**9
METRIC = "recovered_since_loss_us"
"""The judged time. It counts from the first loss, because nobody can notice a silent fault before it."""


def judge_headline(result: Result) -> Verdict:
    """Check that MRC bypasses faults within its limit, and that routing with hold timers takes seconds.

    Medians are over the felt faults. The limits for routing follow from the paper's times, not from the
    timers that the scenario sets.
    """
    checks = judge_bypass(result, "mrc")
    limit_us = bypass_limit_us(rtt_us(result, "mrc"))
    ours = times_us(result, "mrc", METRIC)
    for name in result["transports"]:
        detection_ns = transport_of(result, name).get("detection_ns")
        if detection_ns is None:
            continue
        theirs = times_us(result, name, METRIC)
        lead = quantile_ratio_interval(theirs, ours, 0.5)
        asked = f"recovery of {name} over that of mrc, medians"
        if detection_ns >= HOLD_NS:
            checks.append(
                at_least(
                    f"recovery of {name}, median", median_interval(theirs), SECOND_US, SECONDS_SOURCE, " us"
                )
            )
            checks.append(leads(asked, lead, f"{LEAD_SOURCE} ({BYPASS_SOURCE})", SECOND_US / limit_us))
        else:
            checks.append(leads(asked, lead, LEAD_AT_ALL_SOURCE))
    routed = any(transport_of(result, name).get("detection_ns") for name in result["transports"])
    return all_hold(
        checks if routed else [*checks, Check("routed transports", "none ran", None, LEAD_SOURCE)]
    )


PAPER_PROGRAM_KILL = "section 2.1: a failed path is detected and bypassed; the application goes on"
ROUND_TRIPS = 4
LIMIT_SOURCE = (
    "theory: one turn over all paths until a packet meets the cut, then a round trip for the answer that "
    "shows the gap, one at most for reordering, one for the retransmission, and one more if that met the "
    "cut too; packets at the program's rate, round trips as before the cut (99th percentile)"
)
BYTES_SOURCE = "the program's own arguments: size of a message times their number"
ENDED_SOURCE = "theory: a reliable transport hides the cut, so the exit code is that of success"
TRANSPORT = "mrc"


def judge_program_kill(result: Result) -> Verdict:
    """Check the exit codes, the written bytes, and that recovery takes at most `program_limit_us`."""
    felt = [trial for trial in trials_of(result, TRANSPORT) if trial["felt"]]
    wrong = sum(
        found != wanted_bytes(result) for found in by_repetition(result, TRANSPORT, "completed_bytes", sum)
    )
    never = sum(trial["recovered_us"] is None for trial in felt)
    rates = by_repetition(result, TRANSPORT, "goodput_mbps")
    shares = [
        trial["recovered_us"] / limit
        for trial in felt
        if trial["recovered_us"] is not None and (limit := program_limit_us(trial, rates)) is not None
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
    """Return the bytes that the sending programs must write: size (`-s`) times count (`-n`) of perftest."""
    workload = result["parameters"]["workload"]
    senders = workload["senders"]
    return sum(
        _number(program["run"], "-s") * _number(program["run"], "-n")
        for program in workload["programs"]
        if program["host"] in senders
    )


def _number(words: Sequence[str], option: str) -> int:
    return int(words[list(words).index(option) + 1])


def program_limit_us(trial: Mapping[str, Any], rates_mbps: Sequence[float]) -> float | None:
    """Return the limit for recovery, us.

    The limit is the sum of two times: four round trips, and the time to send one packet onto each path.
    Return None if the trial lacks the rate, the round trip or the number of paths.
    """
    rate, round_trip = rates_mbps[trial["repetition"] :][:1], trial.get("rtt_p99_us")
    if not rate or not round_trip or not trial.get("paths_used"):
        return None
    packet_us = PAYLOAD_BYTES * 8 / rate[0]
    return float(trial["paths_used"] * packet_us + ROUND_TRIPS * round_trip)
