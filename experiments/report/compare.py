"""Two results side by side: each time and metric of each transport, their ratio, and the effect size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from experiments.report.model import TIMES
from experiments.report.numbers import figure, interval, scaled
from experiments.report.statistics import Difference, difference
from experiments.report.table import LEFT_OUT, narrow_table
from linux.errors import InputError

LEGEND = (
    "delta: Cliff's, the chance that a value of B is above one of A less the chance that it is below; "
    "intervals by bootstrap"
)


def values(result: Mapping[str, Any], transport: str, metric: str) -> list[float]:
    """Return what a time or a metric of a transport was, in all repetitions together."""
    if metric in (*TIMES, "rtt_us"):
        return [
            float(trial[metric])
            for trial in result["trials"]
            if trial["transport"] == transport and trial.get(metric) is not None
        ]
    samples = result["transports"].get(transport, {}).get("samples", ())
    return [value for sample in samples for value in sample["metrics"].get(metric, ())]


def effect(a: Mapping[str, Any], b: Mapping[str, Any], transport: str, metric: str) -> Difference:
    """Return how a metric of a transport differs in the second result."""
    return difference(values(a, transport, metric), values(b, transport, metric))


def render_compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> RenderableType:
    """Return a row for each metric of each transport that both results have.

    Raises InputError where they share no transport, or no metric.
    """
    common = [name for name in a["transports"] if name in b["transports"]]
    if not common:
        raise InputError("the two results have no transport in common")
    table = narrow_table()
    table.add_column("", no_wrap=True)
    for name in ("A p50", "B p50", "B/A", "(95 %)", "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("effect")
    rows = 0
    for transport in common:
        table.add_section()
        table.add_row(Text(transport, style="bold"))
        for metric in _metrics(a, b, transport):
            table.add_row(*_row(a, b, transport, metric))
            rows += 1
    if not rows:
        raise InputError("the two results have no metric in common")
    return Group(head("A", a), head("B", b), *_differences(a, b), table, Text(LEGEND, style="dim"))


def _metrics(a: Mapping[str, Any], b: Mapping[str, Any], transport: str) -> list[str]:
    first, second = (result["transports"][transport]["summary"] for result in (a, b))
    shared = [name for name in first if name in second and first[name]["n"] and second[name]["n"]]
    if values(a, transport, "rtt_us") and values(b, transport, "rtt_us"):
        shared.append("rtt_us")
    return [name for name in shared if name.partition("@")[0] not in LEFT_OUT]


def _row(a: Mapping[str, Any], b: Mapping[str, Any], transport: str, metric: str) -> list[str]:
    found = effect(a, b, transport, metric)
    medians = [_median(result, transport, metric) for result in (a, b)]
    scale, label = scaled(metric, medians)
    shown = [figure(None if m is None else m / scale) for m in medians]
    return [
        f"  {label}",
        *shown,
        figure(found.ratio),
        interval(found.ci95_ratio),
        figure(found.cliffs_delta),
        found.size,
    ]


def _median(result: Mapping[str, Any], transport: str, metric: str) -> float | None:
    row = result["transports"][transport]["summary"].get(metric)
    if row is not None:
        return None if row["p50"] is None else float(row["p50"])
    found = sorted(values(result, transport, metric))
    return found[len(found) // 2] if found else None


def head(letter: str, result: Mapping[str, Any]) -> Text:
    """Return one line on a result: what it is of, and whether to believe it."""
    text = Text(f"{letter}: ", style="bold")
    where = f"{result['topology']}, target {result['target'] or 'none'}"
    text.append(f"{result['scenario']} on {where}, seed {result['seed']}: ", style="not bold")
    if result["valid"]:
        text.append("valid", style="green")
    else:
        text.append("NOT VALID (" + "; ".join(result["validity"]["reasons"][:3]) + ")", style="bold red")
    if result["integrity"] != "ok":
        text.append(f", DATA DAMAGED: {result['integrity']}", style="bold red")
    return text


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Text]:
    """Return the parameters in which two runs differ: a ratio means little without them."""
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
