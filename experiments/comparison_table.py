"""What a person reads on the terminal when a comparison is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

LEFT_OUT = ("flow_mbps", "algbw_gbps", "time_us", "since_hit_us", "busy_share")


def render_comparison_result(result: Mapping[str, Any]) -> RenderableType:
    """A table for each metric, a row for each transport, and whether to believe them."""
    transports = result["transports"]
    names = list(dict.fromkeys(name for t in transports.values() for name in t["summary"]))
    shown = [name for name in names if name.split("@")[0] not in LEFT_OUT]
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    for name, justify in (("metric", "left"), ("transport", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in ("n", "median", "(95 %)", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in shown:
        for number, (transport, found) in enumerate(transports.items()):
            row = found["summary"].get(name)
            if row is None or not row["n"]:
                continue
            between = row["ci95_p50"]
            table.add_row(
                name if number == 0 else "",
                Text(transport, style="" if found["valid"] else "dim"),
                str(row["n"]),
                figure(row["p50"]),
                f"{figure(between[0])}-{figure(between[1])}" if between else "-",
                figure(row["p99"]),
                figure(row["max"]),
                style="" if found["valid"] else "dim",
            )
    return Group(table, _verdict(result))


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
