"""What a person reads on the terminal when a run is over."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

_TIMES = (("detect_us", "detect"), ("switch_us", "switch"), ("whole_us", "whole"))
_MANY = 40  # trials: more than this are summed up, result.json has them all


def print_result(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints the table of trials, the summary and the verdict of a result."""
    (console or Console()).print(render_result(result))


def render_result(result: Mapping[str, Any]) -> RenderableType:
    """The table of trials, the summary and the verdict of a result."""
    parts: list[RenderableType] = []
    if len(result["trials"]) <= _MANY:
        parts.append(_trials(result))
    parts += [_summary(result), verdict(result)]
    return Group(*parts)


def _table(title: str | None = None) -> Table:
    """Narrow enough for a terminal of 80 columns."""
    return Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=0)


def _trials(result: Mapping[str, Any]) -> Table:
    table = _table(_title(result))
    table.add_column("#", justify="right")
    table.add_column("link cut", no_wrap=True)
    for name in ("hit", "detect", "switch", "whole", "RTT", "lost", "rtx", "gap ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("data")
    for trial in result["trials"]:
        gap = trial["app_gap_us"]["longest"]
        table.add_row(
            str(trial["trial"] + 1),
            trial["fault"]["where"],
            us(trial["first_hit_us"]),
            *(us(trial[key]) for key, _ in _TIMES),
            us(trial["rtt_us"]),
            str(trial["lost_packets"]),
            str(trial["retransmitted_packets"]),
            "-" if gap is None else f"{gap / 1000:.1f}",
            Text("ok", style="green") if trial["integrity"] == "ok" else Text("BAD", style="bold red"),
        )
    return table


def _title(result: Mapping[str, Any]) -> str:
    return (
        f"{result['scenario']} on {result['topology']}, target {result['target']}, "
        f"{len(result['trials'])} trials, seed {result['seed']}; us after the cut"
    )


_MEANINGS = (
    ("first_hit_us", "hit     first packet lost"),
    ("detect_us", "detect  first EV retired"),
    ("switch_us", "switch  last packet onto it"),
    ("whole_us", "whole   all delivered"),
    ("whole_since_hit_us", "        ... since the hit"),
)


def _summary(result: Mapping[str, Any]) -> Table:
    table = _table()
    table.add_column("us after the cut", no_wrap=True)
    for name in ("n", "min", "median", "(95 %)", "p90", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for key, meaning in _MEANINGS:
        row = result["summary"][key]
        between = row["ci95_p50"]
        table.add_row(
            meaning,
            str(row["n"]),
            us(row["min"]),
            us(row["p50"]),
            f"{us(between[0])}-{us(between[1])}" if between else "-",
            us(row["p90"]),
            us(row["p99"]),
            us(row["max"]),
        )
    return table


def verdict(result: Mapping[str, Any]) -> Text:
    """One paragraph: the median recovery, then whether to believe it, then what went wrong."""
    text = Text()
    whole = result["summary"]["whole_us"]
    trials = len(result["trials"])
    if whole["n"]:
        rtts = [trial["whole_rtts"] for trial in result["trials"] if trial["whole_rtts"] is not None]
        text.append(f"Whole again after {us(whole['p50'])} us in the median", style="bold")
        if rtts:
            text.append(f" ({median(rtts):.1f} RTTs)")
        since = result["summary"]["whole_since_hit_us"]["p50"]
        text.append(f", {us(since)} us after its first packet was lost")
        text.append(f", {us(whole['max'])} us at worst, in {whole['n']} of {trials} trials")
        text.append(f"; each +- {us(whole['max_error'])} us or better.\n")
    else:
        text.append("No trial gave a recovery time.\n", style="bold yellow")
    text.append(*_belief(result))
    if result["integrity"] == "ok":
        text.append(" Every byte was delivered as it was sent.", style="green")
    else:
        text.append(f" DATA DAMAGED: {result['integrity']}.", style="bold red")
    for line in _complaints(result):
        text.append(f"\n  ! {line}", style="yellow")
    return text


def _belief(result: Mapping[str, Any]) -> tuple[str, str]:
    if result["valid"]:
        return "Valid: the machine kept up and the captures are complete.", "green"
    return "NOT VALID, do not quote these times:", "bold red"


def _complaints(result: Mapping[str, Any]) -> list[str]:
    lines = [*result["validity"]["reasons"], *result["validity"]["notes"]]
    reasons: dict[str, int] = {}
    failed: dict[str, list[str]] = {}
    for trial in result["trials"]:
        for key, name in _TIMES:
            if reason := trial.get(f"{name}_reason"):
                if trial["lost_packets"]:
                    reason = f"no {name} time: {reason}"
                elif key != "detect_us":
                    continue
                reasons[reason] = reasons.get(reason, 0) + 1
        for check in trial["checks"]:
            if check["ok"] is False:
                failed.setdefault(check["name"], []).append(check["detail"])
    lines += [f"in {count} of {len(result['trials'])} trials {reason}" for reason, count in reasons.items()]
    lines += [
        f"check {name} failed in {len(details)} trials, such as: {details[0]}"
        for name, details in failed.items()
    ]
    return lines


def us(value: float | None) -> str:
    """Microseconds with the digits that mean something: ``3.42``, ``41.3``, ``1 234``."""
    if value is None:
        return "-"
    if value < 9.995:
        return f"{value:.2f}"
    if value < 99.95:
        return f"{value:.1f}"
    return f"{value:,.0f}".replace(",", " ")
