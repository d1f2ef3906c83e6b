"""A result's training in a table and a sentence; empty for results without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrclab.experiments.result.numbers import amount, figure

CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Row:
    """The training over one transport, in all its repetitions."""

    transport: str
    repetitions: int
    step_us: float
    """The median of all steps, of all repetitions."""
    longest_stall_us: float
    """The longest of all."""
    stalled_share: float
    """Of the time, the median of the repetitions, as are the next two."""
    crashes: float
    lost_steps: float
    ended: int
    """How many repetitions came to their end."""
    same_bits: bool | None
    """Whether all repetitions have the parameters of one process, bit for bit; None: unknown."""


def trainings(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the training records of each repetition of a transport."""
    return [details["training"] for details in found["details"] if "training" in details]


def has_training(result: Mapping[str, Any]) -> bool:
    """Return True if a transport of the result trained something."""
    return any(trainings(found) for found in result["transports"].values())


def rows_of(result: Mapping[str, Any]) -> list[Row]:
    """Return a row for each transport that finished a step."""
    rows = []
    for name, found in result["transports"].items():
        ours, summary = trainings(found), found["summary"]
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
            )
        )
    return rows


def _same_bits(ours: list[Mapping[str, Any]]) -> bool | None:
    if any(training["parameters_differ_at"] is not None for training in ours):
        return False
    known = all(training["alone_sha256"] and training["parameters_sha256"] for training in ours)
    if not known:
        return None
    return all(training["alone_sha256"] == training["parameters_sha256"] for training in ours)


def cells_of(row: Row) -> list[str]:
    """Return a row as text: a step, the longest stall, the share stalled, crashes, lost steps, bits."""
    return [
        amount(row.step_us, "_us"),
        amount(row.longest_stall_us, "_us"),
        f"{figure(100 * row.stalled_share)} %",
        figure(row.crashes),
        figure(row.lost_steps),
        {True: "the same", False: "DIFFER", None: "not known"}[row.same_bits],
    ]


def sentence(result: Mapping[str, Any]) -> str:
    """Return the faults' effect on the training over each transport; empty without a training."""
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
    """Return how many times, in words if they are few."""
    return {1.0: "once", 2.0: "twice"}.get(count) or f"{figure(count)} times"
