"""What a person reads on the terminal when a comparison is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

LEFT_OUT = ("flow_mbps", "algbw_gbps", "time_us", "since_hit_us", "busy_share")
LONG_US = 100_000
"""Where there are times from here on, a metric is told in milliseconds."""


def render_comparison_result(result: Mapping[str, Any]) -> RenderableType:
    """A part for each metric with a row for each transport, why some have none, and whether to believe them.

    Narrow enough for a terminal of 80 columns.
    """
    transports = result["transports"]
    names = list(dict.fromkeys(name for t in transports.values() for name in t["summary"]))
    shown = [name for name in names if name.split("@")[0] not in LEFT_OUT]
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("", no_wrap=True)
    for name in ("n", "median", "(95 %)", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for metric in shown:
        rows = {name: t["summary"][metric] for name, t in transports.items() if _has(t, metric)}
        if not rows:
            continue
        scale, label = scaled(metric, [row["max"] for row in rows.values()])
        table.add_section()
        table.add_row(Text(label, style="bold"))
        for transport, row in rows.items():
            between = row["ci95_p50"]
            table.add_row(
                f"  {transport}",
                str(row["n"]),
                figure(row["p50"] / scale),
                f"{figure(between[0] / scale)}-{figure(between[1] / scale)}" if between else "-",
                figure(row["p99"] / scale),
                figure(row["max"] / scale),
                style="" if transports[transport]["valid"] else "dim",
            )
    return Group(table, *not_applicable(result), _verdict(result))


def _has(found: Mapping[str, Any], metric: str) -> bool:
    return bool(found["summary"].get(metric, {}).get("n"))


def scaled(metric: str, values: Sequence[float]) -> tuple[float, str]:
    """By what to divide a metric's values so that they are short, and its name with the unit that is then
    theirs: microseconds become milliseconds where there are some 100 ms among them."""
    base, at, size = metric.partition("@")
    if base.endswith("_us") and max(values, default=0) >= LONG_US:
        return 1e3, f"{base.removesuffix('_us')}_ms{at}{size}"
    return 1.0, metric


def not_applicable(result: Mapping[str, Any]) -> list[Text]:
    """A line for each reason why faults have no detect or switch time, with the transports it holds for."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for trial in result["trials"]:
        for name in ("detect", "switch"):
            if reason := trial.get(f"{name}_reason"):
                names = reasons.setdefault(reason, {}).setdefault(trial["transport"], [])
                names += [name] if name not in names else []
    lines = []
    for reason, found in reasons.items():
        who = ", ".join(f"{name} (no {' and '.join(what)})" for name, what in found.items())
        lines.append(Text(f"  {who}: {reason}"))
    return lines


def figure(value: float | None) -> str:
    """A number with three digits or more: ``0.124``, ``41.3``, ``1 234``."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def _verdict(result: Mapping[str, Any]) -> Text:
    text = Text()
    if result["claim"]:
        text.append(f"Claim: {result['claim']}\n")
    if "verdict" in result:
        verdict = result["verdict"]
        word = {True: "holds", False: "does not hold", None: "cannot be told"}[verdict["holds"]]
        text.append(f"The claim {word}", style="bold")
        text.append(f": {verdict['because']}\n")
    if result["valid"]:
        text.append("Valid: the machine kept up.", style="green")
    else:
        text.append("NOT VALID, the machine was the limit:", style="bold red")
    if result["integrity"] == "ok":
        text.append(" Every byte and every sum was right.", style="green")
    else:
        text.append(f" PROBLEM: {result['integrity']}.", style="bold red")
    for line in [*result["validity"]["reasons"][:5], *result["validity"]["notes"][:5]]:
        text.append(f"\n  ! {line}", style="yellow")
    return text
