"""Two results side by side: the times, what they are in RTTs, their ratio, and whether to believe them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from experiments.measure.effects import LEGEND
from experiments.measure.statistics import difference
from experiments.report.result import SCHEMA
from experiments.report.table import us
from linux.errors import InputError

_TIMES = (
    ("first_hit_us", "hit"),
    ("detect_us", "detect"),
    ("switch_us", "switch"),
    ("whole_us", "whole"),
    ("whole_since_hit_us", "whole since hit"),
)


def load_result(directory: str, schemas: Sequence[str] = (SCHEMA,)) -> dict[str, Any]:
    """The result.json of a run's directory (or that file itself), of one of these schemas.

    Raises InputError.
    """
    path = Path(directory)
    if path.is_dir():
        path /= "result.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no result in '{directory}': give the directory of a finished run") from None
    except (OSError, ValueError) as error:
        raise InputError(f"not a result: {error}", where=str(path)) from None
    if not isinstance(result, dict) or result.get("schema") not in schemas:
        raise InputError(f"not a result of schema {' or '.join(schemas)}", where=str(path))
    return result


def median_rtt_us(result: Mapping[str, Any]) -> float | None:
    """The median over the trials of their RTTs before the fault; None where no trial has one."""
    rtts = [trial["rtt_us"] for trial in result["trials"] if trial["rtt_us"] is not None]
    return median(rtts) if rtts else None


def ratio(a: float | None, b: float | None) -> float | None:
    """How many times ``a`` the value ``b`` is; None where that means nothing."""
    return None if a is None or b is None or a <= 0 else b / a


def render_comparison(a: Mapping[str, Any], b: Mapping[str, Any]) -> RenderableType:
    """A table of the medians, with p90 beside them, and a line on each run's validity."""
    rtt_a, rtt_b = median_rtt_us(a), median_rtt_us(b)
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("us after the cut", no_wrap=True)
    for name in ("A p50", "A p90", "B p50", "B p90", "B/A", "(95 %)", "delta", "A RTTs", "B RTTs"):
        table.add_column(name, justify="right", no_wrap=True)
    for key, name in _TIMES:
        in_a, in_b = a["summary"][key], b["summary"][key]
        table.add_row(
            name,
            us(in_a["p50"]),
            us(in_a["p90"]),
            us(in_b["p50"]),
            us(in_b["p90"]),
            _times(ratio(in_a["p50"], in_b["p50"])),
            *_effect(a, b, key),
            _times(ratio(rtt_a, in_a["p50"])),
            _times(ratio(rtt_b, in_b["p50"])),
        )
    table.add_row("RTT", us(rtt_a), "", us(rtt_b), "", _times(ratio(rtt_a, rtt_b)), "", "", "", "")
    return Group(_head("A", a), _head("B", b), *_differences(a, b), table, Text(LEGEND, style="dim"))


def _effect(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> tuple[str, str]:
    """The interval of the ratio of medians, and Cliff's delta, of a time of all trials."""
    first, second = ([t[key] for t in r["trials"] if t.get(key) is not None] for r in (a, b))
    found = difference(first, second)
    delta = "-" if found.cliffs_delta is None else f"{found.cliffs_delta:.2f}"
    between = found.ci95_ratio
    return f"{between[0]:.1f}-{between[1]:.1f}" if between else "-", delta


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _head(letter: str, result: Mapping[str, Any]) -> Text:
    text = Text(f"{letter}: ", style="bold")
    text.append(
        f"{result['scenario']} on {result['topology']}, target {result['target']}, "
        f"{len(result['trials'])} trials, seed {result['seed']}: ",
        style="not bold",
    )
    if result["valid"]:
        text.append("valid", style="green")
    else:
        text.append("NOT VALID (" + "; ".join(result["validity"]["reasons"]) + ")", style="bold red")
    if result["integrity"] != "ok":
        text.append(f", DATA DAMAGED: {result['integrity']}", style="bold red")
    return text


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Text]:
    """The parameters in which the two runs differ: a ratio of times means little without them."""
    ours, theirs = _flat(a["parameters"]), _flat(b["parameters"])
    keys = [k for k in ours if k in theirs and ours[k] != theirs[k] and k != "target"]
    if not keys:
        return []
    return [Text("differ in " + ", ".join(f"{k} ({ours[k]} and {theirs[k]})" for k in keys), style="yellow")]


def _flat(part: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in part.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
