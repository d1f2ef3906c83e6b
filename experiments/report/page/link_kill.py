"""What the page of a link-kill run says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report.compare import median_rtt_us, ratio
from experiments.report.page.fabric_svg import Marks, draw_fabric
from experiments.report.page.inline import picture
from experiments.report.page.render import drawn, render
from experiments.report.page.shared import head_of
from experiments.report.table import us
from experiments.spec.scenario import ends_of
from topologies import Fabric

_TILES = (
    ("detect_us", "detect", "the sender retires the first dead path"),
    ("switch_us", "switch", "the last packet goes onto a dead path"),
    ("whole_us", "whole", "all that was lost has been delivered"),
    ("whole_since_hit_us", "whole since the hit", "the same, from the first packet that was lost"),
)
_ROWS = (("first_hit_us", "first packet lost"), *((key, name) for key, name, _ in _TILES))
_CELLS = ("first_hit_us", "detect_us", "switch_us", "whole_us")
_HEADS = {"n": "n", "min": "min", "p50": "median", "p90": "p90", "p99": "p99", "max": "max"}
_PICTURES = {
    "recovery": "Time-sequence diagram of the median recovery",
    "delivered-rate": "Delivered rate around the fault",
    "ev-activity": "Entropy values in use around the fault",
    "times-cdf": "Cumulative distribution of the recovery times",
    "reordering": "Distribution of reordering extents",
    "delivery-times": "Distribution of delivery times",
}


def link_kill_page(directory: Path, result: Mapping[str, Any], fabric: Fabric | None) -> str:
    """The page of a run, from its directory's pictures and its result; ``fabric`` None draws none."""
    shown = _shown_trial(result["trials"])
    pictures = {name: drawn(picture(directory, name, says)) for name, says in _PICTURES.items()}
    context = {
        **head_of(directory, result),
        "claim": _claim(result),
        "tiles": [_tile(result["summary"][key], name, meaning, result) for key, name, meaning in _TILES],
        "fault_error": us(_fault_error_us(result["trials"])),
        "doing": _doing(result),
        "fabric": drawn(_drawing(result, fabric, shown)),
        "fabric_caption": _fabric_caption(result, shown),
        "recovery": pictures["recovery"],
        "rate": pictures["delivered-rate"],
        "activity": pictures["ev-activity"],
        "cdf": pictures["times-cdf"],
        "reordering": pictures["reordering"],
        "delivery": pictures["delivery-times"],
        "trials": [_trial(trial, trial is shown) for trial in result["trials"]],
        "summary_heads": list(_HEADS.values()),
        "summary": [
            {"name": name, "cells": [_number(result["summary"][key][stat], stat) for stat in _HEADS]}
            for key, name in _ROWS
        ],
    }
    return render("link_kill.html", context)


def _shown_trial(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The trial that the pictures show: that with the median recovery, as plots.representative has it."""
    timed = sorted((t for t in trials if t["whole_us"] is not None), key=lambda t: float(t["whole_us"]))
    return timed[len(timed) // 2] if timed else None


def _claim(result: Mapping[str, Any]) -> str:
    whole, since = result["summary"]["whole_us"], result["summary"]["whole_since_hit_us"]
    if not whole["n"]:
        return "No fault of this run hit a packet, so there is no recovery to time."
    rtts = ratio(median_rtt_us(result), whole["p50"])
    times = f" ({rtts:.1f} round-trip times)" if rtts is not None else ""
    return (
        f"When a link dies without a word, an MRC transfer is whole again after {us(whole['p50'])} µs in the "
        f"median{times}, {us(since['p50'])} µs after its first packet was lost, with no switch and no "
        "routing protocol taking part."
    )


def _tile(row: Mapping[str, Any], name: str, meaning: str, result: Mapping[str, Any]) -> dict[str, str]:
    between = row["ci95_p50"]
    spread = f"95 % {us(between[0])} to {us(between[1])}; " if between else ""
    rtts = ratio(median_rtt_us(result), row["p50"])
    in_rtts = f"{rtts:.1f} RTTs; " if rtts is not None else ""
    return {
        "name": name,
        "value": "-" if row["p50"] is None else f"{us(row['p50'])} µs",
        "meaning": meaning,
        "spread": f"{in_rtts}{spread}n {row['n']}",
    }


def _fault_error_us(trials: Sequence[Mapping[str, Any]]) -> float | None:
    halves = [(t["fault"]["t_after_ns"] - t["fault"]["t_before_ns"]) / 2000 for t in trials]
    return max(halves, default=None)


def _doing(result: Mapping[str, Any]) -> str:
    work = result["parameters"]["workload"]
    rate_bps = result.get("stream", work)["rate_bps"]  # what the warm-up settled on, where it was free to
    return (
        f"Under the faults a stream of RDMA writes of {work['message_bytes']:,} bytes at "
        f"{rate_bps / 1e6:.4g} Mbit/s is sprayed in packets of at most {work['payload_bytes']:,} bytes."
    )


def _drawing(result: Mapping[str, Any], fabric: Fabric | None, shown: Mapping[str, Any] | None) -> str | None:
    if fabric is None:
        return None
    src, dst = ends_of(result["parameters"]["workload"], fabric)
    broken = Counter(trial["fault"]["where"] for trial in result["trials"])
    main = shown["fault"]["where"] if shown else None
    return draw_fabric(fabric, Marks(broken, main, (src, dst), fabric.paths(src, dst)))


def _fabric_caption(result: Mapping[str, Any], shown: Mapping[str, Any] | None) -> str:
    text = (
        "Each plane is a two-tier Clos of its own: hosts below, T0s, T1s on top; a host has a port to every "
        "plane. Blue: the sending and the receiving host and the links that their packets are sprayed over."
    )
    if shown:
        text += (
            f" Red with a cross: {shown['fault']['where']}, broken in the trial that the pictures below show;"
        )
        text += " dashed red: what the other trials broke."
    return text


def _trial(trial: Mapping[str, Any], shown: bool) -> dict[str, Any]:
    rtts = trial.get("whole_rtts")
    return {
        "number": trial["trial"] + 1,
        "where": trial["fault"]["where"],
        "cells": [
            *(us(trial[key]) for key in _CELLS),
            "-" if rtts is None else f"{rtts:.1f}",
            us(trial["rtt_us"]),
            str(trial["lost_packets"]),
            str(trial["retransmitted_packets"]),
        ],
        "integrity": trial["integrity"],
        "shown": shown,
    }


def _number(value: float | None, stat: str) -> str:
    return str(value) if stat == "n" else us(value)
