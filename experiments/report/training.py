"""A result's training as a table and a sentence. Both are empty for results without a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from mrclab.experiments.measure.life import MTTF_HOURS, Toll, goodput
from mrclab.experiments.result.numbers import amount, figure

CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Row:
    """A summary of the training over one transport, in all its repetitions."""

    transport: str
    repetitions: int
    step_us: float
    """The median time of a step, over all steps of all repetitions."""
    longest_stall_us: float
    """The longest stall in all repetitions."""
    stalled_share: float
    """The share of the time in which the training was stalled: median of the repetitions."""
    crashes: float
    lost_steps: float
    ended: int
    """The number of repetitions that finished all steps."""
    same_bits: bool | None
    """True if all trained parameters equal the parameters of one process without network. None if unknown."""
    slow_step_us: float
    """The 99th percentile of the times of all steps."""
    steps_per_s: float
    """Steps per second from the first step's beginning to the last step's end: median of the repetitions."""
    tokens_per_s: float | None
    """Tokens (here: characters) per second that all ranks together learn from."""
    toll: Toll | None
    """The cost of one fault: median of the repetitions. None if no faults were made."""


def trainings(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the records of the training, one for each repetition of a transport."""
    return [details["training"] for details in found["details"] if "training" in details]


def has_training(result: Mapping[str, Any]) -> bool:
    """Return True if the result has a training."""
    return any(trainings(found) for found in result["transports"].values())


def rows_of(result: Mapping[str, Any]) -> list[Row]:
    """Return a row for each transport that finished a step."""
    rows, per_step = [], _tokens_per_step(result["parameters"])
    for name, found in result["transports"].items():
        ours, summary = trainings(found), found["summary"]
        rates = [_steps_per_s(training) for training in ours if training["steps"]]
        if not ours or not (summary.get("step_us") or {}).get("n"):
            continue
        ended = sum(training["steps"] == training["wanted_steps"] for training in ours)
        rows.append(
            Row(
                transport=name,
                repetitions=len(ours),
                step_us=summary["step_us"]["p50"],
                longest_stall_us=summary["stalled_us"]["max"],
                stalled_share=summary["stalled_share"]["p50"],
                crashes=summary["crashes"]["p50"],
                lost_steps=summary["lost_steps"]["p50"],
                ended=ended,
                same_bits=_same_bits(ours),
                slow_step_us=summary["step_us"]["p99"],
                steps_per_s=median(rates),
                tokens_per_s=median(rates) * per_step if per_step else None,
                toll=_toll(result, found),
            )
        )
    return rows


def _steps_per_s(training: Mapping[str, Any]) -> float:
    took_us = training["end_us"][-1] - training["start_us"][0]
    return float(training["steps"] / took_us * 1e6)


def _tokens_per_step(parameters: Mapping[str, Any]) -> int:
    """Return the number of characters that all ranks learn from in a step, or 0 if it is unknown."""
    workload = parameters["workload"]
    return int(workload.get("batch", 0) * workload.get("context", 0) * workload.get("ranks", 0))


def _toll(result: Mapping[str, Any], found: Mapping[str, Any]) -> Toll | None:
    """Return the stall and the number of crashes per fault; None if there were no faults.

    Both values are medians over the repetitions with faults.
    """
    timeout_us = result["parameters"]["workload"]["collective_timeout_ns"] / 1e3
    stalls, crashes = [], []
    for details in found["details"]:
        training = details.get("training")
        made = sum(fault["repetition"] == details["repetition"] for fault in found["faults"])
        if not training or not made or not training["steps"]:
            continue
        comm = np.array(training["end_us"]) - np.array(training["computed_us"])
        stalled = np.maximum(0, comm - np.median(comm))[comm <= timeout_us]
        stalls.append(float(stalled.sum()) / 1e6 / made)
        crashes.append(len(training["under_watchdog"]["crashes"]) / made)
    return Toll(median(stalls), median(crashes)) if stalls else None


def _same_bits(ours: list[Mapping[str, Any]]) -> bool | None:
    if any(training["parameters_differ_at"] is not None for training in ours):
        return False
    known = all(training["alone_sha256"] and training["parameters_sha256"] for training in ours)
    if not known:
        return None
    return all(training["alone_sha256"] == training["parameters_sha256"] for training in ours)


def speed_cells(row: Row) -> list[str]:
    """Return the table cells of the speed: steps/s, tokens/s, goodput, step p50 and p99, longest stall."""
    return [
        figure(row.steps_per_s),
        figure(row.tokens_per_s),
        f"{figure(100 * (1 - row.stalled_share))} %",
        amount(row.step_us, "_us"),
        amount(row.slow_step_us, "_us"),
        amount(row.longest_stall_us, "_us"),
    ]


def watchdog_cells(row: Row) -> list[str]:
    """Return the cells of ended jobs, lost steps, goodput, and whether the parameters are right.

    Right parameters are the same as in a training by a single process.
    """
    return [
        figure(row.crashes),
        figure(row.lost_steps),
        *(f"{100 * goodput(row.toll, hours):.2f} %" if row.toll else "-" for hours in MTTF_HOURS),
        {True: "the same", False: "DIFFER", None: "not known"}[row.same_bits],
    ]


def sentence(result: Mapping[str, Any]) -> str:
    """Return a sentence about the faults' effect on the training over each transport."""
    found = rows_of(result)
    rows = [row for row in found if row.transport != CONTROL]
    if not rows:
        return ""
    workload = result["parameters"]["workload"]
    timeout = amount(workload["collective_timeout_ns"] / 1e3, "_us")
    parts = [_part(row, timeout) for row in rows]
    parts += [f"without faults ({row.transport}): {_stalls(row)}" for row in found if row not in rows]
    return f"Under the same faults, {'; '.join(parts)}."


def _stalls(row: Row) -> str:
    share, longest = figure(100 * row.stalled_share), amount(row.longest_stall_us, "_us")
    return f"{share} % of the time stalled, longest stall {longest}"


def _part(row: Row, timeout: str) -> str:
    text = f"{row.transport}: {_stalls(row)}"
    if row.same_bits:
        text += ", parameters bit for bit those of one process"
    if row.ended < row.repetitions:
        text += f", {row.repetitions - row.ended} of {row.repetitions} jobs failed"
    if row.crashes:
        text += (
            f", and a collective timeout of {timeout} would have ended the job {times(row.crashes)} and cost "
            f"{figure(row.lost_steps)} steps"
        )
    return text


def times(count: float) -> str:
    """Return a count as text: once, twice, or for instance ``5 times``."""
    return {1.0: "once", 2.0: "twice"}.get(count) or f"{figure(count)} times"
