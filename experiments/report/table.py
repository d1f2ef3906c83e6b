"""The text that the terminal shows for a result: tables, notes and the verdict, made from result.json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mrclab.experiments.report.flow_control import sentences
from mrclab.experiments.report.grouping import grouped
from mrclab.experiments.report.training import (
    has_training,
    rows_of,
    sentence,
    speed_cells,
    watchdog_cells,
)
from mrclab.experiments.result.model import EXPECTED, TIMES
from mrclab.experiments.result.numbers import figure, interval, scaled, us
from mrclab.experiments.spec.model import SIMULATED
from mrclab.experiments.spec.program_workload import units_of

LEFT_OUT = ("flow_mbps", "algbw_gbps", "time_us", "busy_share")
"""Metrics that are on HTML pages but not in the terminal."""
NOT_VALID = "not valid"
MOST_TIMES = 100.0
"""The text proposes a number of repetitions only if the present number must grow by less than this factor."""
MANY = 40
"""The largest number of trials that the terminal shows one by one. result.json has all trials."""
MOST_LINES = 5
LEGEND = (
    "after a fault: first loss, the first packet lost; detected, a path retired or a route changed; "
    "rerouted, the last packet onto a broken path; recovered, all that was lost delivered"
)


def render_result(result: Mapping[str, Any]) -> RenderableType:
    """Return the whole text: all metrics and the verdict.

    If the result has one transport and few trials, the text also lists the trials. The text fits a terminal
    of 80 columns.
    """
    parts: list[RenderableType] = [Text(title(result), style="italic")]
    if len(result["transports"]) == 1 and 0 < len(result["trials"]) <= MANY:
        parts.append(_trials(result))
    if has_training(result):
        parts += _training(result)
    parts.append(metrics_table(result))
    if result["trials"]:
        parts.append(Text(LEGEND, style="dim"))
    parts += [Text(f"  {line}") for line in sentences(result)]
    parts += [*reasons(result), *rules(result), verdict(result)]
    return Group(*parts)


def title(result: Mapping[str, Any]) -> str:
    """Return one line about the run: scenario, topology, target, transports, faults and seed."""
    transports = len(result["transports"])
    many = f"{transports} transports, " if transports > 1 else ""
    trials = f"{faults_text(result)}, " if result["trials"] else ""
    where = f"{result['topology']}, target {result['target'] or 'none'}"
    return f"{result['scenario']} on {where}, {many}{trials}seed {result['seed']}"


def faults_text(result: Mapping[str, Any]) -> str:
    """Return the number of counted faults as text.

    The text also has the requested number of faults if the two numbers differ.
    """
    counted, aside = len(result["trials"]), len(result.get("set_aside", ()))
    asked = asked_for(result)
    if not asked or asked == counted + aside:
        return f"{counted} faults"
    if aside:
        return f"{counted} faults ({asked} asked for, {counted + aside} made, {aside} set aside)"
    if counted > asked:
        return f"{counted} faults ({asked} asked for, the others made again; all count)"
    return f"{counted} faults of {asked} asked for"


def asked_for(result: Mapping[str, Any]) -> int:
    """Return the requested number of sequential faults of a run. Return 0 if the run has no such faults."""
    asked = result["parameters"]
    try:
        each = sum(entry.get("trials") or 0 for entry in asked.get("faults") or ())
        return int(each * asked.get("repetitions", 1) * len(asked.get("transports") or [0]))
    except (AttributeError, TypeError):  # the parameters have an older form
        return 0


def narrow_table() -> Table:
    """Return an empty table for a terminal of 80 columns."""
    return Table(header_style="bold", box=box.SIMPLE_HEAD, padding=0)


def _trials(result: Mapping[str, Any]) -> Table:
    table = narrow_table()
    table.add_column("#", justify="right")
    table.add_column("broken (us after it)", no_wrap=True)
    for name in ("1st loss", "detected", "rerouted", "recovered", "RTT", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("data")
    for number, trial in enumerate(result["trials"]):
        cells = [us(trial[name]) for name in TIMES[:4]]
        if trial["felt"] is False:
            cells = ["not felt", *[""] * 3]
        table.add_row(
            str(number + 1),
            trial["fault"]["where"],
            *cells,
            us(trial["rtt_us"]),
            "-" if trial["lost_packets"] is None else str(trial["lost_packets"]),
            Text("ok", style="green") if trial["integrity"] == "ok" else Text("BAD", style="bold red"),
        )
    return table


def _training(result: Mapping[str, Any]) -> list[Table]:
    """Return two tables: the speed of the training, and the effect of the collective timeout."""
    speed, watched = narrow_table(), narrow_table()
    for table in (speed, watched):
        table.add_column("training", no_wrap=True)
    for name in ("steps/s", "tokens/s", "goodput", "step p50", "p99", "longest stall"):
        speed.add_column(name, justify="right", no_wrap=True)
    for name in ("ended*", "lost steps*", "90 days at 3.1 h**", "at 10 min**", "bits"):
        watched.add_column(name, justify="right", no_wrap=True)
    for row in rows_of(result):
        speed.add_row(row.transport, *speed_cells(row))
        watched.add_row(row.transport, *watchdog_cells(row))
    speed.caption = "medians; goodput: share of the time in useful steps; a token is a character"
    watched.caption = (
        "* by the collective timeout, computed from the steps as measured; medians\n"
        "** goodput over 90 days if such a fault comes so often (docs/training.md)"
    )
    return [speed, watched]


def metrics_table(result: Mapping[str, Any]) -> Table:
    """Return a table with a section for each metric and a row for each transport."""
    transports = result["transports"]
    names = dict.fromkeys(name for found in transports.values() for name in found["summary"])
    units = units_of(result["parameters"].get("workload", {}))
    table = narrow_table()
    table.add_column("", no_wrap=True)
    for name in ("n", "not felt", "median", "(95 %)", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for metric in names:
        rows = {name: found["summary"].get(metric) for name, found in transports.items()}
        shown = {name: row for name, row in rows.items() if row and (row["n"] or row.get("not_felt"))}
        if not shown or metric.partition("@")[0] in LEFT_OUT:
            continue
        scale, label = scaled(metric, [row["max"] for row in shown.values()])
        label = f"{label}, {units[metric]}" if units.get(metric) else label
        if len(transports) > 1:
            table.add_section()
            table.add_row(Text(label, style="bold"))
        for transport, row in shown.items():
            table.add_row(
                f"  {transport}" if len(transports) > 1 else label,
                *_cells(row, scale),
                style="" if transports[transport]["valid"] else "dim",
            )
    return table


def _cells(row: Mapping[str, Any], scale: float) -> list[str]:
    def cell(name: str) -> str:
        return figure(None if row[name] is None else row[name] / scale)

    not_felt = row.get("not_felt")
    felt = "" if not_felt is None else str(not_felt)
    return [str(row["n"]), felt, cell("p50"), interval(row.get("ci95_p50"), scale), cell("p99"), cell("max")]


def reasons(result: Mapping[str, Any]) -> list[Text]:
    """Return a line for each reason why a time of a fault with losses is unknown.

    The line names the transports and the times.
    """
    found: dict[str, dict[str, list[str]]] = {}
    counts: dict[str, int] = {}
    for trial in result["trials"]:
        if trial["felt"] is False:
            continue
        seen = set()
        for name in TIMES[:4]:
            word = name.removesuffix("_us")
            if reason := trial.get(f"{word}_reason"):
                names = found.setdefault(reason, {}).setdefault(trial["transport"], [])
                names += [word] if word not in names else []
                seen.add(reason)
        for reason in seen:
            counts[reason] = counts.get(reason, 0) + 1
    lines = []
    for reason, who in found.items():
        what_for = ", ".join(f"{name} (no {' and '.join(what)})" for name, what in who.items())
        trials = f" ({counts[reason]} trials)" if counts[reason] > 1 else ""
        lines.append(Text(f"  {what_for}: {reason}{trials}"))
    return lines


def rules(result: Mapping[str, Any]) -> list[Text]:
    """Return a line for each transport whose times are not from captures.

    The line says how the times were measured.
    """
    other: dict[str, str] = {}
    for trial in result["trials"]:
        if not trial["rule"].startswith("captures"):
            other.setdefault(trial["transport"], trial["rule"])
    return [Text(f"  {name}: recovered by another rule, {rule}") for name, rule in other.items()]


def headline(result: Mapping[str, Any]) -> str:
    """Return a sentence with the median recovery time, for a valid result of one transport with faults.

    For other results, return an empty text.
    """
    row, trials = result["summary"]["recovered_us"], result["trials"]
    if len(result["transports"]) > 1 or not trials or not result["valid"]:
        return ""
    not_felt = f"; {row['not_felt']} not felt" if row.get("not_felt") else ""
    if not row["n"]:
        return f"No fault gave a recovery time, of {len(trials)}{not_felt}."
    rtts = [trial["recovered_rtts"] for trial in trials if trial.get("recovered_rtts") is not None]
    in_rtts = f" ({median(rtts):.1f} RTTs)" if rtts else ""
    since = result["summary"]["recovered_since_loss_us"]["p50"]
    error = f"; each +- {us(row['max_error'])} us or better" if row.get("max_error") else ""
    since_text = f", {us(since)} us after the first loss" if since is not None else ""
    return (
        f"Recovered after {us(row['p50'])} us in the median{in_rtts}{since_text}, {us(row['max'])} us at "
        f"worst, in {row['n']} of {len(trials)} faults{not_felt}{error}."
    )


def verdict(result: Mapping[str, Any]) -> Text:
    """Return the end of a result's text: recovery, claim, validity of the run, and all failures."""
    text = Text()
    if line := sentence(result) or headline(result):
        text.append(f"{line}\n", style="bold" if result["valid"] else "dim")
    if result["claim"]:
        text.append(f"Claim: {result['claim']}\n")
    if found := judged(result):
        text.append(found.word[0].upper() + found.word[1:], style="bold")
        text.append(f": {found.because}\n")
        for line in expected(result):
            text.append(f"  {line}\n")
    failed_programs = program_failures(result)
    if result["integrity"] != "ok":
        text.append(f"DATA DAMAGED: {result['integrity']}. ", style="bold red")
    elif not failed_programs:
        text.append("Every byte was delivered as it was sent. ", style="green")
    for line in failed_programs:
        text.append(f"A PROGRAM FAILED: {line}. ", style="bold red")
    for line in [] if failed_programs else not_finished(result):
        text.append(f"DID NOT FINISH: {line}. ", style="bold red")
    if result["valid"]:
        text.append(f"Valid: {why_valid(result)}.", style="green")
    else:
        text.append("NOT VALID, do not quote these figures:", style="bold red")
    for lines, sign in (
        (grouped(result["validity"]["reasons"], result), "!"),
        ([*grouped(result["validity"]["notes"], result), *failed(result)], "-"),
    ):
        for line in lines[:MOST_LINES]:
            text.append(f"\n  {sign} {line}", style="yellow")
        if len(lines) > MOST_LINES:
            text.append(f"\n  {sign} and {len(lines) - MOST_LINES} more: see result.json", style="yellow")
    return text


def program_failures(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each kind of failure of a workload's programs, with the number of repetitions."""
    if result["parameters"].get("workload", {}).get("kind") != "program":
        return []
    samples = [sample for found in result["transports"].values() for sample in found["samples"]]
    counts = Counter(sample["failure"] for sample in samples if sample.get("failure"))
    return [f"{why}, in {count} of {len(samples)} repetitions" for why, count in counts.items()]


def not_finished(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each transport with repetitions that failed before their work was done."""
    lines = []
    for name, transport in result["transports"].items():
        samples = transport["samples"]
        stopped = sum(bool(sample.get("failure")) for sample in samples)
        if stopped:
            lines.append(f"{name} in {stopped} of {len(samples)} repetitions")
    return lines


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict in words, the colour for it, and the reason."""

    word: str
    colour: str
    because: str


def check_word(check: Mapping[str, Any], valid: bool = True) -> tuple[str, str]:
    """Return the word for a check and its colour. In a run that is not valid, no check holds or fails."""
    if not valid:
        return NOT_VALID, "unknown"
    if check["holds"] is not None:
        return ("holds", "good") if check["holds"] else ("does not hold", "bad")
    return ("undecided" if check.get("decided_by") else "not shown"), "unknown"


def judged(result: Mapping[str, Any]) -> Judged | None:
    """Return the verdict of a result. Return None if the result was not judged."""
    verdict = result.get("verdict")
    if not verdict:
        return None
    what = "the claim" if result.get("claim") else "what was expected"
    if not result["valid"]:
        return Judged("no verdict", "unknown", "the run is not valid")
    if verdict["holds"] is not None:
        word, colour = check_word(verdict)
        return Judged(f"{what} {word}", colour, verdict["because"])
    if verdict.get("decided_by"):
        return Judged("undecided", "unknown", f"{verdict['because']}. {_more(result, verdict['decided_by'])}")
    return Judged(f"{what} is not shown", "unknown", verdict["because"])


def _more(result: Mapping[str, Any], times: float) -> str:
    """Return a sentence with the number of trials or repetitions that would decide an open claim."""
    if times >= MOST_TIMES:
        return "The value lies so close to the limit that more repetitions will hardly decide it."
    asked = result["parameters"]
    trials = [entry["trials"] for entry in asked.get("faults") or () if entry.get("trials")]
    number = math.ceil(times * max(trials, default=asked.get("repetitions", 1)))
    what = "trials" if trials else "repetitions"
    return f"About {number:,} {what} would decide it: --trials {number}."


def expected(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each of the scenario's own expectations, with its verdict."""
    checks = (result.get("verdict") or {}).get("checks", ())
    return [
        f"expected {check['asked']}: {check_word(check, result['valid'])[0]}, {check['found']}"
        for check in checks
        if check.get("source") == EXPECTED
    ]


def why_valid(result: Mapping[str, Any]) -> str:
    """Return why a run is valid: no evidence is missing and, on live targets, the machine was fast enough."""
    if result["target"] == SIMULATED:
        return "all evidence is there; virtual time does not depend on the machine"
    return "the machine kept up, and all evidence is there"


def failed(result: Mapping[str, Any]) -> Sequence[str]:
    """Return a line for each failed check that compares reports of endpoints with captures."""
    found: dict[str, list[str]] = {}
    for trial in result["trials"]:
        for check in trial.get("checks", ()):
            if check["ok"] is False and trial["felt"]:
                found.setdefault(check["name"], []).append(check["detail"])
    return [
        f"check {name} failed in {len(said)} {'trial' if len(said) == 1 else 'trials'}, such as: {said[0]}"
        for name, said in found.items()
    ]
