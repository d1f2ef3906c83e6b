"""result.json: what a run found, by the contract that other tools rely on (schema/result.schema.json)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from experiments.measure import analysis
from experiments.measure.analysis import TIMES, Measured, Trial
from experiments.measure.validity import Validity
from experiments.spec.model import Scenario

SCHEMA = "mrclab.result/1"

METHOD = {
    "zero": "middle of [t_before_ns, t_after_ns], the stamps around the call that makes the fault",
    "first_hit": "first packet that the fault took was sent; 0 where one was in flight (both captures)",
    "detect": "first EvRetired of an EV whose path the fault breaks (sender's event log)",
    "switch": "last data packet sent onto a path that it breaks, before the repair (capture at the sender)",
    "whole": "first copy of the last PSN that it took comes in at the receiver (captures at both ends)",
    "first_rtx": "first retransmission of a packet that the fault took is sent (capture at the sender)",
    "whole_since_hit": "whole less first_hit: without the wait for a packet to take the broken path",
    "lost": "sent onto a broken path and never seen at the receiver as that transmission (PSN, EV, rtx)",
    "rtt": "from a packet to the SACK that names its PSN and EV (capture at the sender, before the fault)",
    "error": "half the fault's interval + capture or event stamp + clock offset (for times from a capture)",
    "percentiles": "linear interpolation between order statistics (numpy's default)",
    "ci95_p50": "order statistics of the binomial distribution, at least 95 %; null below 6 values",
    "capture_stamp_ns": analysis.CAPTURE_STAMP_NS,
    "event_stamp_ns": analysis.EVENT_STAMP_NS,
    "baseline_ns": analysis.BASELINE_NS,
    "in_flight_ns": analysis.IN_FLIGHT_NS,
}


@dataclass(frozen=True)
class Run:
    """All that goes into a result: what was asked for, where it ran, what came out."""

    scenario: Scenario
    target: str
    topology: str
    trials: tuple[Trial, ...]
    validity: Validity
    system: Mapping[str, Any]
    bytes_delivered: int | None = None
    set_aside: tuple[Trial, ...] = ()
    extra: Mapping[str, Any] | None = None


def result_of(run: Run, finished: datetime | None = None) -> dict[str, Any]:
    """The contents of result.json. ``finished`` defaults to now."""
    return {
        "schema": SCHEMA,
        "scenario": run.scenario.name,
        "parameters": run.scenario.to_dict(),
        "target": run.target,
        "topology": run.topology,
        "seed": run.scenario.seed,
        "finished": (finished or datetime.now(UTC)).isoformat(timespec="seconds"),
        "system": dict(run.system),
        "valid": run.validity.valid,
        "validity": run.validity.to_dict(),
        "integrity": _integrity((*run.trials, *run.set_aside)),
        "bytes_delivered": run.bytes_delivered,
        "trials": [trial_dict(trial) for trial in run.trials],
        "set_aside": [trial_dict(trial) for trial in run.set_aside],
        "summary": {
            "first_hit_us": _summary([Measured(trial.first_hit_ns) for trial in run.trials]),
            **{f"{name}_us": _summary([trial.times()[name] for trial in run.trials]) for name in TIMES},
            "whole_since_hit_us": _summary([Measured(trial.whole_since_hit_ns) for trial in run.trials]),
        },
        "method": METHOD,
        **(run.extra or {}),
    }


def save_result(directory: Path, result: Mapping[str, Any]) -> Path:
    """Writes DIR/result.json, whole or not at all, and returns its path."""
    path = directory / "result.json"
    draft = path.with_name("result.json.part")
    draft.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(draft, path)
    return path


def result_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) that every result.json fulfils."""
    text = files("experiments.spec").joinpath("schema", "result.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def trial_dict(trial: Trial) -> dict[str, Any]:
    """One entry of ``trials``."""
    out: dict[str, Any] = {"trial": trial.index, "fault": trial.fault.to_dict()}
    for name, measured in trial.times().items():
        out[f"{name}_us"] = measured.us
        out[f"{name}_error_us"] = measured.error_us
        out[f"{name}_rtts"] = _in_rtts(measured, trial.rtt_ns)
        if measured.reason is not None:
            out[f"{name}_reason"] = measured.reason
    gaps = trial.gaps
    return out | {
        "first_hit_us": _us(trial.first_hit_ns),
        "first_rtx_us": _us(trial.first_rtx_ns),
        "whole_since_hit_us": _us(trial.whole_since_hit_ns),
        "rtt_us": _us(trial.rtt_ns),
        "rtt_p99_us": _us(trial.rtt_p99_ns),
        "rtt_samples": trial.rtt_samples,
        "packets_sent": trial.packets_sent,
        "lost_packets": trial.lost_packets,
        "lost_in_flight": trial.in_flight_lost,
        "lost_elsewhere": trial.lost_elsewhere,
        "retransmitted_packets": trial.retransmitted_packets,
        "spurious_retransmissions": trial.spurious_retransmissions,
        "bytes_delivered": trial.bytes_delivered,
        "integrity": trial.integrity,
        "evs_used": trial.evs_used,
        "paths_used": trial.paths_used,
        "broken_paths": trial.broken_paths,
        "app_gap_us": {
            "source": gaps.source,
            "longest": _us(gaps.longest_ns),
            "before_p50": _us(gaps.before_p50_ns),
            "before_p99": _us(gaps.before_p99_ns),
            "before_max": _us(gaps.before_max_ns),
        },
        "checks": [check.to_dict() for check in trial.checks],
    }


def _us(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1000, 3)


def _in_rtts(measured: Measured, rtt_ns: float | None) -> float | None:
    if measured.ns is None or not rtt_ns:
        return None
    return round(measured.ns / rtt_ns, 3)


def _integrity(trials: Sequence[Trial]) -> str:
    """``ok``, or the first verdict that is not."""
    return next((trial.integrity for trial in trials if trial.integrity != "ok"), "ok")


def _summary(times: Sequence[Measured]) -> dict[str, Any]:
    values = sorted(m.ns / 1000 for m in times if m.ns is not None)
    errors = [m.error_ns / 1000 for m in times if m.error_ns is not None]
    if not values:
        empty = dict.fromkeys(("min", "p50", "p90", "p99", "max", "mean", "ci95_p50", "max_error"))
        return {"n": 0, "missing": len(times), **empty}
    p50, p90, p99 = (round(float(np.percentile(values, q)), 3) for q in (50, 90, 99))
    return {
        "n": len(values),
        "missing": len(times) - len(values),
        "min": round(values[0], 3),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": round(values[-1], 3),
        "mean": round(float(np.mean(values)), 3),
        "ci95_p50": _median_interval(values),
        "max_error": round(max(errors), 3) if errors else None,
    }


def _median_interval(values: Sequence[float]) -> list[float] | None:
    """The narrowest pair of order statistics, as far from either end, that holds the median with 95 %."""
    n = len(values)
    outside = 0.0
    best = None
    for k in range(n // 2):
        outside += 2 * math.comb(n, k) / 2**n
        if outside > 0.05:
            break
        best = [round(values[k], 3), round(values[n - 1 - k], 3)]
    return best
