"""Build the contents of result.json (form ``mrclab.result/2``) from all repetitions, and write run.json.

run.json has the scenario. If a run ends early, a result is built from run.json and the repetitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mrclab.experiments.measure import recovery
from mrclab.experiments.measure.repetition import REPETITION_FILE, Repetition, load_repetition
from mrclab.experiments.result.file import NAME as RESULT
from mrclab.experiments.result.file import read_form, save_result, write_whole
from mrclab.experiments.result.model import SCHEMA, TIMES
from mrclab.experiments.result.statistics import CONFIDENCE, RESAMPLES, summarise
from mrclab.hosts.transports.table import Transport
from mrclab.linux.errors import InputError

OK = "ok"
MOST_VALUES = 1000
"""The largest number of values of a metric that result.json has for one repetition (see `thinned`)."""

METHOD = {
    "clock": "CLOCK_MONOTONIC, which all hosts of the machine share; captures' stamps are moved to it",
    "zero": "middle of [t_before_ns, t_after_ns], the stamps around the call that makes the fault",
    "taken": "what a fault took: sent at the sender's NIC, not seen at the receiver's, on a path that it "
    "breaks; where packets do not show their path, a flow's unbroken run of losses from the fault on",
    "in_flight": "a packet sent longer than a trial's in_flight_us before the fault was not on its way any "
    "more: 20 ms between software hosts; in virtual time the way through full queues, and what delays add",
    "felt": "the fault took something; a fault that took nothing is counted as not felt and has no times",
    "first_loss": "the first packet that the fault took was sent; 0 where one was in flight",
    "detected": "a sender retired the first path that the fault broke (by its own stamp), or the first route "
    "changed",
    "rerouted": "the last data packet was sent onto a path that the fault broke, before its repair; where "
    "packets do not show their path, the last packet that the fault took",
    "recovered": "the first whole copy of the last byte that the fault took came in at the receiver; not "
    "before detected where senders detect",
    "recovered_since_loss": "recovered less first_loss: without the wait for a packet to meet the fault",
    "rule": "where captures cannot say (MPTCP sends again on another subflow), late messages stand in: "
    "slower than all in the 500 ms before the fault; each trial names its rule",
    "rtt": "from a packet to the SACK that names its PSN and EV (capture at the sender, before the fault)",
    "error": "half the fault's interval + capture or event stamp + clock offset (for times from a capture)",
    "time_us": "collective: from its first rank's start behind a barrier to its last rank's end",
    "algbw_gbps": "bytes of a rank's buffer over time_us",
    "busbw_gbps": "algbw times 2(n-1)/n (all-reduce) or (n-1)/n (all-gather, all-to-all), as nccl-tests",
    "latency_us": "message: from its post to its completion at the receiver",
    "gap_us": "longest time between two deliveries of a flow from the fault on",
    "stalled_us": "by how much a training step's communication exceeds the run's median",
    "stopped_us": "lossless links: how long each was paused, or had no credits, while frames waited",
    "stop_depth": "the most links in a row that were stopped, counted from the one nearest to the cause",
    "blocked_packets": "packets that waited at a stopped link though the port behind it was free for them: "
    "head-of-line blocking",
    "percentiles": "linear interpolation between order statistics",
    "intervals": f"percentile bootstrap of the pooled values, {RESAMPLES} resamples, {CONFIDENCE:.0%}; none "
    "below six values",
    "capture_stamp_ns": recovery.CAPTURE_STAMP_NS,
    "event_stamp_ns": recovery.EVENT_STAMP_NS,
    "baseline_ns": recovery.BASELINE_NS,
}


@dataclass(frozen=True)
class Run:
    """The scenario of a run, and the machine on which it ran.

    ``parameters`` is the scenario in JSON types: ``topology``, ``workload``, ``faults`` and so on, with times
    in ns and rates in bps. ``figure`` is the name of the judge that checks ``claim``. ``command`` is the
    command line that repeats the run. ``fabric`` is a hash of the whole fabric; older files do not have it.
    """

    scenario: str
    parameters: Mapping[str, Any]
    target: str
    topology: str
    seed: int
    transports: tuple[Transport, ...]
    system: Mapping[str, Any]
    claim: str = ""
    figure: str | None = None
    command: tuple[str, ...] = ()
    fabric: str = ""


def build(
    run: Run,
    repetitions: Mapping[str, Sequence[Repetition]],
    finished: datetime | None = None,
    unfinished: str | None = None,
) -> dict[str, Any]:
    """Return the contents of result.json, with a verdict if the run has a figure or expectations.

    The keys of ``repetitions`` are names of transports. If ``finished`` (the end time) is None, use the
    present time. If a run was ended early, ``unfinished`` is the reason. Then transports without repetitions
    are not in the result.
    """
    ran = [t for t in run.transports if unfinished is None or repetitions.get(t.name)]
    found = {t.name: _transport(t, repetitions[t.name]) for t in ran}
    trials = [trial for t in ran for r in repetitions[t.name] for trial in r.trials]
    aside = [trial for t in ran for r in repetitions[t.name] for trial in r.trials_aside]
    validity = joined_validity({name: t["validity"] for name, t in found.items()})
    if unfinished is not None:
        done = sum(r.interrupted is None for t in ran for r in repetitions[t.name])
        wanted = len(run.transports) * int(run.parameters.get("repetitions", 1))
        why = f"the run is not finished, {done} of {wanted} repetitions are: {unfinished}"
        validity["reasons"].insert(0, why)
    first = found[ran[0].name]["summary"]
    delivered = [t["bytes_delivered"] for t in found.values()]
    result = {
        "schema": SCHEMA,
        "scenario": run.scenario,
        "claim": run.claim,
        "parameters": dict(run.parameters),
        "target": run.target,
        "topology": run.topology,
        "seed": run.seed,
        "command": list(run.command),
        "unfinished": unfinished,
        "finished": (finished or datetime.now(UTC)).isoformat(timespec="seconds"),
        "system": dict(run.system),
        "valid": not validity["reasons"],
        "validity": validity,
        "integrity": next((t["integrity"] for t in found.values() if t["integrity"] != OK), OK),
        "bytes_delivered": sum(delivered),
        "trials": [dict(trial) for trial in trials],
        "set_aside": [dict(trial) for trial in aside],
        "summary": {name: first.get(name) or time_summary((), name) for name in TIMES},
        "transports": found,
        "method": dict(METHOD),
    }
    if unfinished is None and (run.figure or run.parameters.get("expect")):
        # Imported only here, because the judges import many modules and most results need no judge.
        from mrclab.experiments.judging.judge import judge, judge_expectations

        result["verdict"] = judge(run.figure or "", result, judge_expectations(result))
    return result


def joined_validity(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Join the validities of a run's ``parts``. Lines of several parts begin with the part's name."""

    def lines(key: str) -> list[str]:
        if len(parts) == 1:
            return [line for part in parts.values() for line in part[key]]
        return [f"{name}: {line}" for name, part in parts.items() for line in part[key]]

    rules: Mapping[str, float] = next((part.get("rules", {}) for part in parts.values()), {})
    loads = [load for part in parts.values() for load in part.get("loads", ())]
    return {"reasons": lines("reasons"), "notes": lines("notes"), "rules": dict(rules), "loads": loads}


def time_summary(trials: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the summary of a time such as ``recovered_us``, over all given trials."""
    values = [float(trial[name]) for trial in trials if trial.get(name) is not None]
    not_felt = sum(trial["felt"] is False for trial in trials)
    error = name.replace("_since_loss", "").replace("_us", "_error_us")
    errors = [
        trial[error] for trial in trials if trial.get(name) is not None and trial.get(error) is not None
    ]
    return {
        **summarise(values).to_dict(),
        "not_felt": not_felt,
        "missing": len(trials) - len(values) - not_felt,
        "max_error": max(errors, default=None),
    }


def _transport(transport: Transport, repetitions: Sequence[Repetition]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for r in repetitions for name in r.metrics))
    pooled = {name: [v for r in repetitions for v in r.metrics.get(name, ())] for name in names}
    trials = [trial for r in repetitions for trial in r.trials]
    counters: dict[str, int] = {}
    for repetition in repetitions:
        for name, count in repetition.counters.items():
            counters[name] = counters.get(name, 0) + count
    parts = {f"repetition {r.number}": r.validity.to_dict() for r in repetitions}
    validity = joined_validity(parts)
    problems = [r.problem for r in repetitions if r.problem is not None]
    summary = {name: time_summary(trials, name) for name in TIMES} if trials else {}
    return {
        "meaning": transport.described,
        "kind": transport.kind,
        "routing": transport.routing,
        "options": dict(transport.options),
        "one_plane": transport.one_plane,
        "loss": transport.loss,
        "detection_ns": transport.detection_ns,
        "lossless": transport.lossless,
        "valid": not validity["reasons"],
        "validity": validity,
        "integrity": problems[0] if problems else OK,
        "bytes_delivered": sum(r.bytes_delivered for r in repetitions),
        "counters": counters,
        "summary": summary | {name: summarise(values).to_dict() for name, values in pooled.items()},
        "samples": [_sample(r) for r in repetitions],
        "set_aside": [
            {
                "repetition": r.number,
                "reasons": list(aside["reasons"]),
                "metrics": {name: thinned(values) for name, values in aside["metrics"].items()},
            }
            for r in repetitions
            for aside in r.set_aside
        ],
        "series": [{"repetition": r.number, **r.series} for r in repetitions],
        "links": [{"repetition": r.number, **r.links} for r in repetitions if r.links["bytes"]],
        "flow_control": [{"repetition": r.number, **r.flow_control} for r in repetitions if r.flow_control],
        "path_events": [{"repetition": r.number, **r.path_events} for r in repetitions if r.path_events],
        "faults": [
            {
                "repetition": r.number,
                **fault.to_dict(),
                "at_us": round((fault.middle_ns - r.measure_ns) / 1e3, 3),
            }
            for r in repetitions
            for fault in r.faults
        ],
        "pictures": [{"repetition": r.number, **r.pictures} for r in repetitions if r.pictures],
        "details": [{"repetition": r.number, **r.details} for r in repetitions if r.details],
    }


def _sample(repetition: Repetition) -> dict[str, Any]:
    return {
        "repetition": repetition.number,
        "valid": repetition.validity.valid,
        "integrity": repetition.problem or OK,
        "failure": repetition.failure,
        "metrics": {name: thinned(values) for name, values in repetition.metrics.items()},
        "data": repetition.data,
        "measure_ns": repetition.measure_ns,
        "end_ns": repetition.end_ns,
        "counters": dict(repetition.counters),
    }


def thinned(values: Sequence[float]) -> list[float]:
    """Return the values with six significant digits.

    If there are more than MOST_VALUES values, keep MOST_VALUES of these, evenly spaced in sorted order.
    """
    if len(values) <= MOST_VALUES:
        return [float(f"{v:.6g}") for v in values]
    ordered = sorted(values)
    last = len(ordered) - 1
    return [float(f"{ordered[round(i * last / (MOST_VALUES - 1))]:.6g}") for i in range(MOST_VALUES)]


NAME = "run.json"
KILLED = "it ended without a word"
_FORM = TypeAdapter(Run)


def save_run(directory: Path, run: Run) -> Path:
    """Write DIR/run.json and return its path. If writing fails, an older file stays unchanged."""
    return write_whole(directory / NAME, json.dumps(asdict(run), indent=1) + "\n")


def load_run(directory: Path) -> Run:
    """Read DIR/run.json. Raise InputError if the file is missing or has another form."""
    missing = f"no run in '{directory}': give the directory of a run"
    return read_form(_FORM, directory / NAME, "run", missing)


def load_repetitions(directory: Path, run: Run) -> dict[str, list[Repetition]]:
    """Return the finished repetitions of a run, by transport. Raise InputError if a file is damaged."""
    found: dict[str, list[Repetition]] = {}
    for transport in run.transports:
        for number in range(int(run.parameters["repetitions"])):
            place = directory / f"{transport.name}-{number}"
            if (place / REPETITION_FILE).exists():
                found.setdefault(transport.name, []).append(load_repetition(place))
    return found


def save_unfinished(
    directory: Path, run: Run, repetitions: Mapping[str, Sequence[Repetition]], why: str
) -> dict[str, Any] | None:
    """Write and return the result of a run that was ended early. Return None if the run has no repetition."""
    if not any(repetitions.values()):
        return None
    result = build(run, repetitions, unfinished=why)
    save_result(directory, result)
    return result


def rebuild(directory: Path) -> None:
    """Write the result of a run that was killed before the result was written. Keep an existing result.

    Raise InputError if the run has no finished repetition.
    """
    if (directory / RESULT).exists() or not (directory / NAME).exists():
        return
    run = load_run(directory)
    if save_unfinished(directory, run, load_repetitions(directory, run), KILLED) is None:
        raise InputError(f"no result in '{directory}': the run ended before anything was measured")
