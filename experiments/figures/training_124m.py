"""A data-parallel step of 124 million parameters, before and after one of four planes dies."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_least, at_most, none_of, present
from mrclab.experiments.judging.readings import Result, failures, samples, transport_of, trials_of
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import mean_interval
from mrclab.hosts.roce.config import RoceConfig

PAPER = "figures 6 and 7: with one of a NIC's four links dark, a training job has 73 % of its throughput"
LEFT = 0.73
FELT_SOURCE = "without a fault that was noticed there is nothing to show"
STALL_US = 1e6
STALL_SOURCE = "OpenAI's post: conventional fabrics stall for seconds or tens of seconds, or the job fails"
FAILOVER_SOURCE = (
    "NCCL moves to another port when a queue pair gives up, after all its timeouts; the backward pass may "
    "hide a part"
)


def judge(result: Result) -> Verdict:
    """Check MRC's step against the dead plane's share of the communication that is not hidden, RoCEv2 for a
    stall of a second or a failure, and RoCEv2 with failover for a stall of all timeouts of a queue pair."""
    before, after = _exposed_us(result, "mrc")
    noticed = sum(trial.get("detected_us") is not None for trial in trials_of(result, "mrc"))
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    rocev2 = transport_of(result, "rocev2").get("samples", ())
    long_steps = sum(max(s["metrics"]["step_us"]) >= STALL_US for s in _whole(result, "rocev2"))
    steps = [s["metrics"]["step_us"] for s in _whole(result, "rocev2-failover")]
    longer = [step[1] - step[0] for step in steps if len(step) == 2]
    return all_hold(
        [
            present("deaths of a plane that MRC noticed", noticed, FELT_SOURCE),
            none_of("jobs that failed with MRC", failures(result, "mrc"), "paper: no job fails"),
            at_most(
                "communication that is not hidden, with three planes over four",
                mean_interval(ratios) if ratios else None,
                1 / LEFT,
                f"paper, {PAPER}",
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
    """Return how long a queue pair waits for an answer, by default, before it gives up (IBTA 9.7.6.1.3)."""
    usual = RoceConfig()
    return (usual.retry_count + 1) * (usual.timeout_ns or 0) / 1e3


def _whole(result: Result, transport: str) -> list[dict[str, dict[str, list[float]]]]:
    return [dict(s) for s in samples(result, transport) if s["metrics"].get("step_us")]


def _exposed_us(result: Result, transport: str) -> tuple[list[float], list[float]]:
    """Return the time of each repetition's first and last step in which ranks wait for the network."""
    rows = [s["metrics"].get("exposed_us", ()) for s in samples(result, transport)]
    whole = [row for row in rows if len(row) > 1]
    return [row[0] for row in whole], [row[-1] for row in whole]
