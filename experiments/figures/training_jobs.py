"""Judges of training jobs under faults: figures 5 to 7, T1 reboots, and training steps of transformers.

The judges require that a fault on a conventional fabric stalls a job for at least a second, or makes it fail.
OpenAI's post about MRC reports such stalls and failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from mrclab.experiments.judging.criteria import at_least, at_most, like_control, none_of, present, within
from mrclab.experiments.judging.phases import phases_of
from mrclab.experiments.judging.readings import (
    Result,
    Series,
    by_repetition,
    failures,
    mean_of,
    pooled,
    samples,
    series_of,
    transport_of,
    trials_of,
)
from mrclab.experiments.judging.scale import (
    BYPASS_SOURCE,
    bypass_limit_us,
    capacity_mbps,
    fabric_of,
    payload_mbps,
    placement_of,
    rtt_us,
)
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import (
    mean_interval,
    quantile_ratio_interval,
    rate_ratio_interval,
    ratio_interval,
)
from mrclab.hosts.mrc.config import ACK_LADDERS
from mrclab.hosts.roce.config import RoceConfig

PAPER_FIG05 = (
    "4.2 flaps of T0-T1 links a minute on average, 13 at most, over 250 minutes without measurable effect"
)
UNMEASURABLE = 1.01
FIG05_SOURCE = (
    "paper: no measurable effect, and its throughput varies by 1 % without any (1520 of 1534, figure 9c)"
)


def judge_fig05(result: Result) -> Verdict:
    """Compare the times of steps with a control without flaps: mean, 99th percentile and longest step.

    The mean must not be longer by a measurable amount. A single step may be longer by the time that a
    sender needs to stop using one failed path.
    """
    control = by_repetition(result, "control", "step_us")
    usual = mean_interval(control)
    one_step = 1.0 + (bypass_limit_us(rtt_us(result, "mrc")) / usual.value if usual else 0.0)
    p99 = quantile_ratio_interval(
        pooled(result, "mrc", "step_us"), pooled(result, "control", "step_us"), 0.99
    )
    longest = ratio_interval(
        by_repetition(result, "mrc", "step_us", max), by_repetition(result, "control", "step_us", max)
    )
    mean = ratio_interval(by_repetition(result, "mrc", "step_us"), control)
    felt = sum(trial["felt"] is True for trial in trials_of(result, "mrc"))
    return all_hold(
        [
            present("flaps that took packets", felt, "without one there is nothing to show"),
            like_control("mean step over that without flaps", mean, UNMEASURABLE, FIG05_SOURCE),
            at_most("99th percentile of steps over that without flaps", p99, one_step, BYPASS_SOURCE),
            at_most("longest step over that without flaps", longest, one_step, BYPASS_SOURCE),
        ]
    )


PAPER_FIG06 = (
    "50K GPUs: 7.0 to 5.1 Pbit/s (-27 %) for about a minute when a transceiver takes a link of each of four "
    "NICs away, then back; losses, figure 7, in that minute alone"
)
FIG06_MARGIN = 0.02
FIG06_SOURCE = (
    "theory: the ring goes as fast as its slowest NIC, at k/n of its links while it communicates (the "
    "paper's -27 % is -25 % by this, so within 2 %)"
)
LOSSES_SOURCE = "paper, figure 7: losses come with the flap (here 90 % of them at least), and end with it"
MOST_IN_FLAP = 0.9


def judge_fig06(result: Result) -> Verdict:
    """Check that the rate falls to the value of `predict` and comes back, and that the flap loses packets."""
    shares: list[float | None] = []
    back: list[float | None] = []
    predicted: list[float] = []
    inside = outside = 0
    for series in series_of(result, "mrc"):
        phases = phases_of(result, "mrc", series.repetition)
        if len(phases) != 3:
            continue
        before, down, after = (phase.window for phase in phases)
        usual = series.rate_mbps(before)
        shares.append(series.rate_mbps(down) / usual if usual else None)
        back.append(_rate_to_end(series, after[0]) / usual if usual else None)
        predicted.append(predict(result, phases[1].broken))
        lost = series.lost_in(down)
        inside, outside = inside + lost, outside + series.lost_in((before[0], series.end_us)) - lost
    expected = mean_interval(predicted)
    wanted = expected.value if expected else 0.0
    losses = rate_ratio_interval(inside, outside)
    return all_hold(
        [
            within(
                "share of the usual rate while the link is down",
                mean_of(shares),
                wanted,
                FIG06_MARGIN,
                FIG06_SOURCE,
            ),
            within("share when it is back", mean_of(back), 1.0, FIG06_MARGIN, "paper: then back"),
            present("packets lost while it was down", inside, LOSSES_SOURCE),
            at_least(
                "losses while it was down over all others",
                losses,
                MOST_IN_FLAP / 0.1,
                LOSSES_SOURCE,
                " times",
            ),
        ]
    )


def _rate_to_end(series: Series, begin_us: float) -> float:
    """Return the mean rate from ``begin_us`` on, without the series' last fifth, in which the job may end."""
    return series.rate_mbps((begin_us, begin_us + 0.8 * (series.end_us - begin_us)))


def predict(result: Result, broken: tuple[str, ...]) -> float:
    """Return the expected rate of steps if the places ``broken`` are broken, divided by the fault-free rate.

    A step computes, sends, and waits for round trips. Only sending takes longer if links are broken.
    """
    fabric = fabric_of(result, "mrc")
    hosts = placement_of(result, fabric).hosts
    size = float(result["parameters"]["workload"]["size_bytes"])
    # The fastest quarter of the steps ran without faults, so this quantile is a fault-free time.
    communicate = by_repetition(result, "mrc", "comm_us", partial(np.quantile, q=0.25))
    if not communicate:
        return 0.0
    compute_us = float(result["parameters"]["workload"]["compute_ns"]) / 1e3
    ring = [(hosts[i], hosts[(i + 1) % len(hosts)]) for i in range(len(hosts))]
    slowest = min(capacity_mbps(fabric, a, b, broken) / capacity_mbps(fabric, a, b, ()) for a, b in ring)
    wire_us = 2 * (len(hosts) - 1) / len(hosts) * size * 8 / payload_mbps(result, "mrc")
    usual_us = compute_us + float(np.median(communicate))
    return usual_us / (usual_us + wire_us * (1 / slowest - 1)) if slowest else 0.0


PAPER_TRAINING_124M = (
    "figures 6 and 7: with one of a NIC's four links dark, a training job has 73 % of its throughput"
)
LEFT = 0.73
TRAINING_124M_FELT_SOURCE = "without a fault that was noticed there is nothing to show"
STALL_US = 1e6
STALL_SOURCE = "OpenAI's post: conventional fabrics stall for seconds or tens of seconds, or the job fails"
FAILOVER_SOURCE = (
    "NCCL moves to another port when a queue pair gives up, after all its timeouts; the backward pass may "
    "hide a part"
)


def judge_training_124m(result: Result) -> Verdict:
    """Check the steps after a plane failed: their wait for the network with MRC, and stalls of RoCEv2.

    With MRC, ranks may wait at most 1 / 0.73 times as long as before the failure. In the paper, the job kept
    73 % of its throughput. A job over RoCEv2 must stall for at least a second or fail. A job over RoCEv2
    with failover must stall until all retries are used.
    """
    before, after = _exposed_us(result, "mrc")
    noticed = sum(trial.get("detected_us") is not None for trial in trials_of(result, "mrc"))
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    rocev2 = transport_of(result, "rocev2").get("samples", ())
    long_steps = sum(max(s["metrics"]["step_us"]) >= STALL_US for s in _whole(result, "rocev2"))
    steps = [s["metrics"]["step_us"] for s in _whole(result, "rocev2-failover")]
    longer = [step[1] - step[0] for step in steps if len(step) == 2]
    return all_hold(
        [
            present("deaths of a plane that MRC noticed", noticed, TRAINING_124M_FELT_SOURCE),
            none_of("jobs that failed with MRC", failures(result, "mrc"), "paper: no job fails"),
            at_most(
                "communication that is not hidden, with three planes over four",
                mean_interval(ratios) if ratios else None,
                1 / LEFT,
                f"paper, {PAPER_TRAINING_124M}",
            ),
            present(
                f"jobs over RoCEv2 that failed or stalled for a second, of {len(rocev2)}",
                failures(result, "rocev2") + long_steps,
                STALL_SOURCE,
            ),
            at_least(
                "step in which rocev2-failover loses a port, less the one before",
                mean_interval(longer) if longer else None,
                failover_us() - result["parameters"]["workload"]["backward_ns"] / 1e3,
                FAILOVER_SOURCE,
                " us",
            ),
        ]
    )


def failover_us() -> float:
    """Return the time, us, after which a RoCEv2 queue pair without an answer fails (IBTA 9.7.6.1.3)."""
    usual = RoceConfig()
    return (usual.retry_count + 1) * (usual.timeout_ns or 0) / 1e3


def _whole(result: Result, transport: str) -> list[dict[str, dict[str, list[float]]]]:
    return [dict(s) for s in samples(result, transport) if s["metrics"].get("step_us")]


def _exposed_us(result: Result, transport: str) -> tuple[list[float], list[float]]:
    """Return how long ranks waited for the network in each repetition's first step and in its last step."""
    rows = [s["metrics"].get("exposed_us", ()) for s in samples(result, transport)]
    whole = [row for row in rows if len(row) > 1]
    return [row[0] for row in whole], [row[-1] for row in whole]


STALLS_STALL_SOURCE = "OpenAI's post: conventional fabrics take seconds or even tens of seconds"


def stalls_or_fails(result: Result, name: str) -> Check:
    """Check that in every run of a transport, a step stalls for at least a second, or the job fails."""
    stalls = by_repetition(result, name, "stalled_us", max)
    failed, ran = failures(result, name), len(transport_of(result, name).get("samples", ()))
    neither = ran - failed - sum(stall >= STALL_US for stall in stalls) if ran else None
    asked = f"runs of {name} without a stall of 1 s or a failed job, of {ran}"
    return none_of(asked, neither, STALLS_STALL_SOURCE)


PAPER_T1_REBOOT = (
    "four T1s rebooted during a training run without co-ordination or effect; conventional fabrics stall for "
    "seconds to tens of seconds, or the job fails"
)
FELT_SOURCE = "without a fault that took packets there is nothing to show"


def judge_t1_reboot(result: Result) -> Verdict:
    """Check that MRC's longest step is not much longer than the control's longest step.

    The difference must not exceed the time that senders need to stop using one failed path.
    On conventional fabrics (ECMP or routers), every run must either stall for at least a second, or fail.
    """
    control = mean_interval(by_repetition(result, "control", "step_us"))
    limit = 1.0 + (bypass_limit_us(rtt_us(result, "mrc")) / control.value if control else 0.0)
    longest = ratio_interval(
        by_repetition(result, "mrc", "step_us", max), by_repetition(result, "control", "step_us", max)
    )
    felt = sum(trial["felt"] is True for trial in trials_of(result, "mrc"))
    checks = [
        present("reboots that took packets of MRC", felt, FELT_SOURCE),
        none_of("jobs that failed with MRC", failures(result, "mrc"), "paper: without effect"),
        at_most("longest step over that without reboots", longest, limit, BYPASS_SOURCE),
    ]
    for name, found in result["transports"].items():
        if found.get("routing") in ("ecmp", "frr"):
            checks.append(stalls_or_fails(result, name))
    return all_hold(checks)


PAPER_TRAINING = (
    "link flaps and reboots of T1s had no effect on training; conventional fabrics stall for seconds to tens "
    "of seconds, or the job fails"
)
BITS_SOURCE = "theory: additions in a fixed order give the same bits, unless a byte is wrong, missing or late"
ACK_TIMER_UNIT_US = 1.024
"""The ACK timer, us, is this number times 2 to the power of an exponent. [MRC 1.0, Table 7-1]"""
STALLED_SOURCE = (
    "a sender learns of a loss by its ACK timer at the latest, and each rank of the ring may have to, one "
    "after the other: the ACK timer times the ranks"
)


def judge_training(result: Result) -> Verdict:
    """Check that faults change no bit of the parameters trained with MRC, and that MRC's stalls are short.

    On conventional fabrics (ECMP or routers), every run must either stall for at least a second, or fail.
    """
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
    """Return the longest time, us, for which a training step over MRC may wait until losses are detected."""
    usual, _, _ = ACK_LADDERS["lab"]
    exponent = transport_of(result, "mrc").get("options", {}).get("ack_timeout_exponent", usual)
    ranks = len(placement_of(result, fabric_of(result, "mrc")).hosts)
    return float(ranks * ACK_TIMER_UNIT_US * 2 ** int(exponent))


def _trainings(result: Result, transport: str) -> dict[int, Mapping[str, Any]]:
    """Return the details of each repetition's training, by the repetition's number."""
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
