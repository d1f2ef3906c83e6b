"""Compare results with a first result: times and metrics of each transport, their ratio and effect size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mrclab.experiments.report.table import LEFT_OUT, narrow_table
from mrclab.experiments.result.model import TIMES
from mrclab.experiments.result.numbers import figure, interval, scaled
from mrclab.experiments.result.statistics import Difference, difference
from mrclab.linux.errors import InputError

NOT_SET = "not set"
OF_TRIALS = ("rtt_us", "packets_per_s")
"""Values of each trial that are compared, too, because a fault's times depend on these values."""
LEGEND = (
    "delta: Cliff's, the chance that a value of B is above one of A less the chance that it is below; "
    "intervals by bootstrap, none of fewer than six values"
)


def values(result: Mapping[str, Any], transport: str, metric: str) -> list[float]:
    """Return all values of a time or a metric in one list, from all repetitions of a transport."""
    if metric in (*TIMES, *OF_TRIALS):
        return [
            float(trial[metric])
            for trial in result["trials"]
            if trial["transport"] == transport and trial.get(metric) is not None
        ]
    samples = result["transports"].get(transport, {}).get("samples", ())
    return [value for sample in samples for value in sample["metrics"].get(metric, ())]


def effect(a: Mapping[str, Any], b: Mapping[str, Any], transport: str, metric: str) -> Difference:
    """Return the difference of a metric between result ``a`` and result ``b``, for one transport."""
    return difference(values(a, transport, metric), values(b, transport, metric))


@dataclass(frozen=True, slots=True)
class Row:
    """A metric of a transport in two results: number of values, medians ``a`` and ``b``, and difference."""

    transport: str
    metric: str
    n_a: int
    n_b: int
    a: float | None
    b: float | None
    found: Difference


def compared(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Row]:
    """Return a row for each metric of each transport that both results have.

    Raise InputError if the results have no common transport, or no common metric.
    """
    common = [name for name in a["transports"] if name in b["transports"]]
    if not common:
        raise InputError("the two results have no transport in common")
    rows = [
        Row(
            transport,
            metric,
            _count(a, transport, metric),
            _count(b, transport, metric),
            _median(a, transport, metric),
            _median(b, transport, metric),
            effect(a, b, transport, metric),
        )
        for transport in common
        for metric in _metrics(a, b, transport)
    ]
    if not rows:
        raise InputError("the two results have no metric in common")
    return rows


def render_compare(a: Mapping[str, Any], b: Mapping[str, Any], letter: str = "B") -> RenderableType:
    """Return a table for a terminal of 80 columns; ``letter`` names the second result.

    Raise the errors of `compared`.
    """
    table = narrow_table()
    table.add_column("", no_wrap=True)
    for name in ("n", "A p50", f"{letter} p50", f"{letter}/A", "(95 %)", "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("effect")
    for transport, rows in groupby(compared(a, b), key=lambda row: row.transport):
        table.add_section()
        table.add_row(Text(transport, style="bold"))
        for row in rows:
            table.add_row(*_cells(row))
    legend = Text(LEGEND.replace(" B ", f" {letter} "), style="dim")
    return Group(head("A", a), head(letter, b), *_differences(a, b), table, legend)


def render_columns(runs: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """Return a table of medians with a column for each result, and their ratios to the first result.

    The keys of ``runs`` are the letters of the columns. Raise the errors of `compared`.
    """
    first, *others = runs
    for letter in others:
        compared(runs[first], runs[letter])
    table = narrow_table()
    table.add_column("p50", no_wrap=True)
    for letter in runs:
        table.add_column(letter, justify="right")
    for letter in others:
        table.add_column(f"{letter}/{first}", justify="right", style="dim")
    for transport in dict.fromkeys(name for run in runs.values() for name in run["transports"]):
        table.add_section()
        table.add_row(Text(transport, style="bold"))
        for metric in _all_metrics(runs, transport):
            medians = [
                _median(run, transport, metric) if transport in run["transports"] else None
                for run in runs.values()
            ]
            scale, label = scaled(metric, medians)
            shown = [figure(None if m is None else m / scale) for m in medians]
            ratios = [figure(_ratio(m, medians[0])) for m in medians[1:]]
            table.add_row(f"  {label}", *shown, *ratios)
    heads = [head(letter, run) for letter, run in runs.items()]
    return Group(*heads, *(line for o in others for line in _differences(runs[first], runs[o], o)), table)


def _all_metrics(runs: Mapping[str, Mapping[str, Any]], transport: str) -> list[str]:
    """Return the metrics of a transport that at least two results have."""
    having = [run for run in runs.values() if transport in run["transports"]]
    names = [
        name for run in having for name, row in run["transports"][transport]["summary"].items() if row["n"]
    ]
    shared = (name for name in dict.fromkeys(names) if names.count(name) > 1)
    return [name for name in shared if name.partition("@")[0] not in LEFT_OUT]


def _ratio(value: float | None, of: float | None) -> float | None:
    return None if value is None or not of else value / of


def document(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the comparison of all results with the first result, in JSON types.

    The keys of ``runs`` are letters that name the results. Raise the errors of `compared`.
    """
    letters = list(runs)
    return {
        "schema": "mrclab.compare/1",
        "runs": {
            letter: {
                key: run[key] for key in ("scenario", "topology", "target", "seed", "valid", "integrity")
            }
            for letter, run in runs.items()
        },
        "rows": [
            {
                "transport": row.transport,
                "metric": row.metric,
                "a": letters[0],
                "b": letter,
                "n_a": row.n_a,
                "n_b": row.n_b,
                "p50_a": row.a,
                "p50_b": row.b,
                "ratio": row.found.ratio,
                "ci95_ratio": list(row.found.ci95_ratio) if row.found.ci95_ratio else None,
                "cliffs_delta": row.found.cliffs_delta,
                "effect": row.found.size,
            }
            for letter in letters[1:]
            for row in compared(runs[letters[0]], runs[letter])
        ],
    }


def _metrics(a: Mapping[str, Any], b: Mapping[str, Any], transport: str) -> list[str]:
    first, second = (result["transports"][transport]["summary"] for result in (a, b))
    shared = [name for name in first if name in second and first[name]["n"] and second[name]["n"]]
    shared += [name for name in OF_TRIALS if values(a, transport, name) and values(b, transport, name)]
    return [name for name in shared if name.partition("@")[0] not in LEFT_OUT]


def _cells(row: Row) -> list[str]:
    scale, label = scaled(row.metric, [row.a, row.b])
    shown = [figure(None if m is None else m / scale) for m in (row.a, row.b)]
    found = row.found
    ratio = [figure(found.ratio), interval(found.ci95_ratio), figure(found.cliffs_delta), found.size]
    n = str(row.n_a) if row.n_a == row.n_b else f"{row.n_a}, {row.n_b}"
    return [f"  {label}", n, *shown, *ratio]


def _median(result: Mapping[str, Any], transport: str, metric: str) -> float | None:
    row = result["transports"][transport]["summary"].get(metric)
    if row is not None:
        return None if row["p50"] is None else float(row["p50"])
    found = values(result, transport, metric)
    return median(found) if found else None


def _count(result: Mapping[str, Any], transport: str, metric: str) -> int:
    """Return the number of measured values. A result keeps only some of very many values."""
    row = result["transports"][transport]["summary"].get(metric)
    return len(values(result, transport, metric)) if row is None else int(row["n"])


def head(letter: str, result: Mapping[str, Any]) -> Text:
    """Return one line about a result: its scenario, its fabric, and whether it is valid."""
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


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], letter: str = "") -> list[Text]:
    """Return a line with the parameters that differ between two runs and may explain different results."""
    ours, theirs = _flat(a["parameters"]), _flat(b["parameters"])
    known = [key for key in (*ours, *(k for k in theirs if k not in ours)) if _explains(key, ours, theirs)]
    pairs = [(key, ours.get(key, NOT_SET), theirs.get(key, NOT_SET)) for key in known]
    if not (found := [f"{key} ({x} and {y})" for key, x, y in pairs if x != y]):
        return []
    begin = f"{letter} differs in " if letter else "differ in "
    return [Text(begin + ", ".join(found), style="yellow")]


def _explains(key: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return True if a difference in this parameter may explain different results.

    A result does not have ``slower``, ``virtual`` or ``profiles`` with their default values. So these keys
    count if only one result has them. The first line about a result names its target.
    """
    first = key.partition(".")[0]
    if key in ours and key in theirs:
        return key != "target"
    return first in ("slower", "virtual", "profiles")


def _flat(part: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in part.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
