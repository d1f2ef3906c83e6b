"""Two comparisons side by side: each metric of each transport, the ratio, and how large the effect is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from experiments.measure.statistics import Difference, difference
from experiments.report.comparison_table import LEFT_OUT, figure, scaled
from linux.errors import InputError


def effect(a: Mapping[str, Any], b: Mapping[str, Any], transport: str, metric: str) -> Difference:
    """How a metric of a transport differs in the second result, all repetitions pooled."""
    return difference(values(a, transport, metric), values(b, transport, metric))


def values(result: Mapping[str, Any], transport: str, metric: str) -> list[float]:
    """What a metric was, in every repetition."""
    samples = result["transports"].get(transport, {}).get("samples", ())
    return [value for sample in samples for value in sample["metrics"].get(metric, ())]


def render_effects(a: Mapping[str, Any], b: Mapping[str, Any]) -> RenderableType:
    """A row for each metric of each transport that both have. Raises InputError where they share none."""
    common = [name for name in a["transports"] if name in b["transports"]]
    if not common:
        raise InputError("the two results have no transport in common")
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=0)  # it has to fit into 80 columns
    table.add_column("", no_wrap=True)
    for name in ("A p50", "B p50", "B/A", "(95 %)", "delta"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("effect")
    for transport in common:
        first, second = (result["transports"][transport]["summary"] for result in (a, b))
        shown = [m for m in first if m in second and m.split("@")[0] not in LEFT_OUT]
        table.add_section()
        table.add_row(Text(transport, style="bold"))
        for metric in shown:
            found = effect(a, b, transport, metric)
            scale, label = scaled(metric, [s[metric]["p50"] or 0 for s in (first, second)])
            table.add_row(
                f"  {label}",
                figure(_over(first[metric]["p50"], scale)),
                figure(_over(second[metric]["p50"], scale)),
                figure(found.ratio),
                interval(found.ci95_ratio),
                figure(found.cliffs_delta) if found.cliffs_delta is not None else "-",
                found.size,
            )
    return Group(head("A", a), head("B", b), table, Text(LEGEND, style="dim"))


def _over(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


LEGEND = (
    "delta: Cliff's, the chance that a value of B is above one of A less the chance that it is below; "
    "intervals by bootstrap"
)


def interval(bounds: tuple[float, float] | None) -> str:
    """Both ends, or a dash."""
    return f"{figure(bounds[0])}-{figure(bounds[1])}" if bounds else "-"


def head(letter: str, result: Mapping[str, Any]) -> Text:
    """One line on a result: what it is of, and whether to believe it."""
    text = Text(f"{letter}: ", style="bold")
    text.append(
        f"{result['scenario']} on {result['topology']}, target {result['target']}, seed {result['seed']}: ",
        style="not bold",
    )
    if result["valid"]:
        text.append("valid", style="green")
    else:
        text.append("NOT VALID (" + "; ".join(result["validity"]["reasons"][:3]) + ")", style="bold red")
    if result["integrity"] != "ok":
        text.append(f", DATA DAMAGED: {result['integrity']}", style="bold red")
    return text
