"""What the page of a comparison says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.measure.metrics import size_text
from experiments.report.comparison_plots import SPREAD, sizes_of
from experiments.report.comparison_table import figure, not_applicable
from experiments.report.page.fabric_svg import Marks, draw_fabric
from experiments.report.page.inline import picture
from experiments.report.page.render import drawn, render
from experiments.report.page.shared import head_of, judgement
from topologies import Fabric

_CAPTIONS = {
    "delivered": "What arrived, over time, a panel for each transport: thin lines are repetitions, the thick "
    "one is their mean.",
    "cdf-detect_us": "For each fault, from its moment until it was noticed: by MRC's sender, which then "
    "retires the first broken path, or by the fabric's routing. Transports that never notice have no line.",
    "cdf-switch_us": "For each fault, from its moment until nothing more was sent onto what it broke.",
    "cdf-whole_us": "For each fault, from its moment until the last message that it made late was delivered. "
    "Farther left is better; the axis is logarithmic, so one mark is a factor of ten.",
    "cdf-gap_us": "For each fault, the longest time in which some flow received nothing.",
    "cdf-latency_us": "From a message's post to its completion at the receiver, faults included.",
    "cdf-step_us": "How long the steps of the training loop took.",
    "cdf-stalled_us": "By how much a step's communication took longer than the run's median: time that all "
    "ranks wait.",
    "busbw": "Bus bandwidth as nccl-tests defines it: the rate at which each link is used, comparable "
    "between numbers of ranks.",
}
_MEANS = {
    "whole_us": "from a fault until all that it made late was delivered",
    "stalled_us": "a step's communication beyond the usual",
    "step_us": "a training step",
    "latency_us": "from a message's post to its arrival",
    "goodput_mbps": "payload delivered",
    "busbw_gbps": "bus bandwidth of the largest message",
}
_ROUTING = {
    "srv6": "the sender's segment list (SRv6)",
    "ecmp": "a hash in the switches (ECMP)",
    "frr": "routers (FRRouting)",
}
_TILE = ("whole_us", "stalled_us", "step_us", "latency_us", "goodput_mbps")
_UNITS = {"us": "µs", "mbps": "Mbit/s", "gbps": "Gbit/s", "share": ""}
_MOST_FAULTS = 100
_STATS = {
    "n": "n",
    "p50": "median",
    "ci95_p50": "95 % of the median",
    "p90": "p90",
    "p99": "p99",
    "max": "max",
}


def comparison_page(directory: Path, result: Mapping[str, Any], fabric: Fabric | None) -> str:
    """The page, from the directory's pictures and the result; ``fabric`` None draws none."""
    transports: Mapping[str, Any] = result["transports"]
    names = ["delivered", "busbw", *(f"cdf-{metric}" for metric in SPREAD)]
    shown = [
        {"svg": drawn(svg), "caption": _CAPTIONS[name]}
        for name in names
        if (svg := picture(directory, name, _CAPTIONS[name])) is not None
    ]
    context = {
        **head_of(directory, result),
        "description": result["parameters"].get("description", ""),
        "claim": result["claim"],
        "judgement": judgement(result),
        "checks": _checks(result),
        "doing": _doing(result),
        "tiles": _tiles(transports),
        "fabric": drawn(_drawing(result, fabric)),
        "pictures": shown,
        "transports": [
            {
                "name": name,
                "meaning": found["meaning"],
                "routing": _ROUTING[found["routing"]],
                "planes": "one plane" if found["one_plane"] else "all planes",
                "valid": found["valid"],
            }
            for name, found in transports.items()
        ],
        "faults": _faults(transports),
        "unnoticed": [str(line).strip() for line in not_applicable(result)],
        "stats": list(_STATS.values()),
        "metrics": _metrics(transports),
    }
    return render("comparison.html", context)


def _tiles(transports: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metric that says most, for each transport; the largest message of a swept collective."""
    names = {name for found in transports.values() for name in found["summary"]}
    metric = next((name for name in _TILE if name in names), None)
    if metric is None and (sizes := sizes_of(transports)):
        metric = f"busbw_gbps@{sizes[-1]}"
    if metric is None:
        return []
    tiles = []
    base, _, size = metric.partition("@")
    meaning = _MEANS.get(base, _words(metric)) + (f" ({size})" if size else "")
    for name, found in transports.items():
        row = found["summary"].get(metric)
        if row and row["n"]:
            value = _amount(row["p50"], metric)
            between = row.get("ci95_p50")
            spread = f"n {row['n']}"
            if between:
                ends = " to ".join(_amount(end, metric) for end in between)
                spread = f"95 %: {ends}; {spread}"
            tiles.append(
                {
                    "name": name,
                    "value": value,
                    "meaning": meaning,
                    "spread": spread,
                    "valid": found["valid"],
                }
            )
    return tiles


def _amount(value: float, metric: str) -> str:
    """A value with its unit; times in the unit that makes them short."""
    unit = _unit(metric)
    if unit != "µs":
        return f"{figure(value)} {unit}".strip()
    for name, scale in (("s", 1e6), ("ms", 1e3)):
        if value >= scale:
            return f"{figure(value / scale)} {name}"
    return f"{figure(value)} µs"


def _checks(result: Mapping[str, Any]) -> list[dict[str, str]]:
    words = {True: ("holds", "good"), False: ("does not hold", "bad"), None: ("cannot be told", "unknown")}
    return [
        {"asked": check["asked"], "found": check["found"], "word": word, "colour": colour}
        for check in result.get("verdict", {}).get("checks", ())
        for word, colour in (words[check["holds"]],)
    ]


def _doing(result: Mapping[str, Any]) -> str:
    """What ran, in two sentences."""
    asked = result["parameters"]
    work = asked["workload"]
    parts = [f"{work['kind']}"]
    if "message_bytes" in work:
        parts.append(f"messages of {work['message_bytes']:,} bytes")
    if "sizes_bytes" in work:
        parts.append("messages of " + ", ".join(size_text(size) for size in work["sizes_bytes"]))
    if work.get("rate_bps"):
        parts.append(f"{work['rate_bps'] / 1e6:g} Mbit/s")
    if work.get("duration_ns"):
        parts.append(f"{work['duration_ns'] / 1e9:g} s")
    times = asked["repetitions"]
    return (
        f"Every transport carries the same workload ({', '.join(parts)}) by itself, on a fabric of its own "
        f"of the same cables, {times} time{'s' if times != 1 else ''}. Each meets the same schedule of "
        "faults; one that is to strike the busiest link strikes where that transport sends most."
    )


def _unit(metric: str) -> str:
    return _UNITS.get(metric.partition("@")[0].rpartition("_")[2], "")


def _words(metric: str) -> str:
    name, _, size = metric.partition("@")
    base = name.rpartition("_")[0].replace("_", " ")
    return f"{base}, {size}" if size else base


def _interval(row: Mapping[str, Any]) -> str:
    between = row.get("ci95_p50")
    return f"{figure(between[0])} to {figure(between[1])}" if between else "no interval"


def _metrics(transports: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for found in transports.values() for name in found["summary"])
    tables = []
    for metric in names:
        rows = []
        for name, found in transports.items():
            row = found["summary"].get(metric)
            if row and row["n"]:
                cells = [_interval(row) if stat == "ci95_p50" else _cell(row[stat], stat) for stat in _STATS]
                rows.append({"name": name, "cells": cells, "valid": found["valid"]})
        if rows:
            unit = _unit(metric)
            tables.append({"name": f"{_words(metric)} ({unit})" if unit else _words(metric), "rows": rows})
    return tables


def _cell(value: float | None, stat: str) -> str:
    return str(value) if stat == "n" else figure(value)


def _faults(transports: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was broken, by transport."""
    rows = [(name, fault) for name, found in transports.items() for fault in found["faults"]]
    return [
        {
            "transport": name,
            "repetition": fault["repetition"],
            "kind": fault["kind"],
            "where": fault["where"],
            "at": f"{fault['at_us'] / 1e3:,.1f}",
            "known": f"{(fault['t_after_ns'] - fault['t_before_ns']) / 2e3:,.0f}",
        }
        for name, fault in rows[:_MOST_FAULTS]
    ]


def _drawing(result: Mapping[str, Any], fabric: Fabric | None) -> str | None:
    if fabric is None:
        return None
    broken = Counter(
        fault["where"]
        for found in result["transports"].values()
        if not found["one_plane"]
        for fault in found["faults"]
    )
    main = next(iter(broken)) if len(broken) == 1 else None
    return draw_fabric(fabric, Marks(broken, main))
