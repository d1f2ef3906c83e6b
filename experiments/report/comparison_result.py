"""result.json of a comparison: the contract's keys, and what each transport did.

``schema/comparison.schema.json`` describes it. Values of all repetitions are pooled for a summary; what a
summary leaves out is in ``samples``, and every message and operation in the files under ``data/``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from experiments.measure.statistics import CONFIDENCE, RESAMPLES, summarise
from experiments.spec.model import Scenario
from experiments.spec.transports import Transport

SCHEMA = "mrclab.comparison/1"
OK = "ok"
MOST_VALUES = 1000
"""Of a metric in one repetition that ``samples`` holds; of more, evenly spaced order statistics."""

METHOD = {
    "clock": "CLOCK_MONOTONIC, which all hosts of the machine share",
    "time_us": "collective: from its first rank's start behind a barrier to its last rank's end",
    "algbw_gbps": "bytes of a rank's buffer over time_us",
    "busbw_gbps": "algbw times 2(n-1)/n (all-reduce) or (n-1)/n (all-gather, all-to-all), as nccl-tests",
    "latency_us": "message: from its post to its completion at the receiver",
    "whole_us": "from the middle of the fault's interval until the last message that it made late is here; "
    "late: slower than 99.9 % of those in the 500 ms before; where none was late, that latency, as a bound",
    "detect_us": "from the middle of the fault's interval until the transport noticed: MRC's first EV of a "
    "broken path retired, or the first route changed; where there is no such thing the trial says why",
    "switch_us": "from there until the last packet onto a broken path was sent (MRC: the last that is lost "
    "there), or until the last route had changed",
    "since_hit_us": "whole_us, counted from the post of the first late message if that is later",
    "gap_us": "longest time between two deliveries of a flow after the fault",
    "stalled_us": "by how much a training step's communication exceeds the run's median",
    "percentiles": "linear interpolation between order statistics",
    "intervals": f"percentile bootstrap of the pooled values, {RESAMPLES} resamples, {CONFIDENCE:.0%}",
}
RECOVERY = ("detect_us", "switch_us", "whole_us")


def comparison_result(
    comparison: Scenario,
    target: str,
    topology: str,
    repetitions: Mapping[str, Sequence[Mapping[str, Any]]],
    system: Mapping[str, Any],
    finished: datetime | None = None,
) -> dict[str, Any]:
    """The contents of result.json. ``finished`` defaults to now."""
    transports = {t.name: _transport(t, repetitions[t.name]) for t in comparison.transports}
    trials = [trial for t in comparison.transports for trial in _trials(t.name, repetitions[t.name])]
    first = transports[comparison.transports[0].name]
    reasons = [f"{name}: {r}" for name, t in transports.items() for r in t["validity"]["reasons"]]
    notes = [f"{name}: {n}" for name, t in transports.items() for n in t["validity"]["notes"]]
    problems = [t["integrity"] for t in transports.values() if t["integrity"] != OK]
    return {
        "schema": SCHEMA,
        "scenario": comparison.name,
        "claim": comparison.claim,
        "parameters": comparison.to_dict(),
        "target": target,
        "topology": topology,
        "seed": comparison.seed,
        "finished": (finished or datetime.now(UTC)).isoformat(timespec="seconds"),
        "system": dict(system),
        "valid": not reasons,
        "validity": {"reasons": reasons, "notes": notes},
        "integrity": problems[0] if problems else OK,
        "bytes_delivered": sum(t["bytes_delivered"] for t in transports.values()),
        "trials": trials,
        "summary": {key: first["summary"].get(key, summarise([]).to_dict()) for key in RECOVERY},
        "transports": transports,
        "method": METHOD,
    }


def _transport(transport: Transport, repetitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for r in repetitions for name in r["metrics"]))
    pooled = {name: [v for r in repetitions for v in r["metrics"].get(name, ())] for name in names}
    problems = [r["problem"] for r in repetitions if r["problem"] is not None]
    counters: dict[str, int] = {}
    for repetition in repetitions:
        for name, count in repetition["counters"].items():
            counters[name] = counters.get(name, 0) + count
    reasons = [
        f"repetition {r['number']}: {reason}" for r in repetitions for reason in r["validity"]["reasons"]
    ]
    return {
        "meaning": transport.described,
        "kind": transport.kind,
        "routing": transport.routing,
        "options": dict(transport.options),
        "one_plane": transport.one_plane,
        "loss": transport.loss,
        "detection_ns": transport.detection_ns,
        "valid": not reasons,
        "validity": {
            "reasons": reasons,
            "notes": [
                *(n for r in repetitions for n in r["validity"]["notes"]),
                *(
                    f"repetition {r['number']} did not end: {r['failure']}"
                    for r in repetitions
                    if r["failure"]
                ),
            ],
            "loads": [load for r in repetitions for load in r["validity"]["loads"]],
        },
        "integrity": problems[0] if problems else OK,
        "bytes_delivered": sum(r["bytes_delivered"] for r in repetitions),
        "counters": counters,
        "summary": {name: summarise(values).to_dict() for name, values in pooled.items()},
        "samples": [
            {
                "repetition": r["number"],
                "valid": not r["validity"]["reasons"],
                "integrity": r["problem"] or OK,
                "failure": r["failure"],
                "metrics": {name: _thinned(values) for name, values in r["metrics"].items()},
                "data": r["data"],
                "measure_ns": r["measure_ns"],
                "end_ns": r["end_ns"],
                "counters": r["counters"],
            }
            for r in repetitions
        ],
        "set_aside": [
            {
                "repetition": r["number"],
                "reasons": list(aside["reasons"]),
                "metrics": {name: _thinned(values) for name, values in aside["metrics"].items()},
            }
            for r in repetitions
            for aside in r["set_aside"]
        ],
        "series": [{"repetition": r["number"], **r["series"]} for r in repetitions],
        "links": [{"repetition": r["number"], **r["links"]} for r in repetitions if r["links"]["bytes"]],
        "faults": [
            {
                "repetition": r["number"],
                **fault,
                "params": params,
                "at_us": (fault["t_before_ns"] + fault["t_after_ns"]) / 2e3 - r["measure_ns"] / 1e3,
            }
            for r in repetitions
            for fault, params in zip(r["faults"], r["fault_params"], strict=True)
        ],
    }


def _thinned(values: Sequence[float]) -> list[float]:
    if len(values) <= MOST_VALUES:
        return [float(f"{v:.6g}") for v in values]
    ordered = sorted(values)
    last = len(ordered) - 1
    return [float(f"{ordered[round(i * last / (MOST_VALUES - 1))]:.6g}") for i in range(MOST_VALUES)]


def _trials(name: str, repetitions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A trial for each fault: when the transport noticed and left it, and what the application saw."""
    found = []
    for repetition in repetitions:
        metrics = repetition["metrics"]
        for number, fault in enumerate(repetition["faults"]):

            def of(metric: str, number: int = number, metrics: Mapping[str, Any] = metrics) -> float | None:
                values = metrics.get(metric, ())
                return float(values[number]) if number < len(values) else None

            found.append(
                {
                    "transport": name,
                    "repetition": repetition["number"],
                    "fault": fault,
                    **repetition["noticed"][number],
                    "whole_us": of("whole_us"),
                    "gap_us": of("gap_us"),
                    "since_hit_us": of("since_hit_us"),
                    "rtt_us": None,
                    "lost_packets": None,
                    "retransmitted_packets": repetition["counters"].get("retransmitted_packets"),
                    "bytes_delivered": repetition["bytes_delivered"],
                    "integrity": repetition["problem"] or OK,
                }
            )
    return found


def comparison_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) that every result of a comparison fulfils."""
    text = files("experiments.spec").joinpath("schema", "comparison.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
