"""The contents of a result's page. A section is on the page only if the result has data for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrclab.experiments.report.events import KINDS, PICTURES, event_rows
from mrclab.experiments.report.flow_control import rows_of as flow_rows_of
from mrclab.experiments.report.flow_control import sentences
from mrclab.experiments.report.page.fabric_svg import Marks, draw_fabric, draw_replay
from mrclab.experiments.report.page.render import drawn, picture, render
from mrclab.experiments.report.page.shared import head_of, judgement, micro
from mrclab.experiments.report.pictures import SPREAD, sizes_of
from mrclab.experiments.report.table import check_word, headline, reasons, rules
from mrclab.experiments.report.training import rows_of, sentence, speed_cells, watchdog_cells
from mrclab.experiments.result.model import TIMES
from mrclab.experiments.result.numbers import amount, figure, unit_of, us, words_of
from mrclab.topologies import Fabric

_CAPTIONS = {
    "training-loss": "How the training went on. First over the steps: curves that lie on the control's "
    "learnt the same, whatever was broken. Then over time, smoothed over nine steps, thin as measured: where "
    "a line is straight for a while, all ranks waited. If a library's collective timeout would have ended "
    "the job, a last panel has its course, computed from these steps: it starts again at its checkpoint.",
    "training-steps": "How long each step took: its computing, which is the same for all, and the sum of the "
    "gradients over the network. Every rank waits for the slowest.",
    "recovery": "One recovery, packet by packet: the trial with the median. Each mark is a packet: when it "
    "left the sender (hollow), when it came in (filled), and those that the fault took (crosses), which "
    "leave again on another path (triangles).",
    "delivered-rate": "The payload that came in around the fault, added up: over all paths, and over those "
    "that broke. The dashed line goes on at the rate of before. A line that stays on it lost nothing; the "
    "broken paths go flat.",
    "ev-activity": "Paths in use: a row for each entropy value (EV), which stands for one path. The sender "
    "stops using the EVs whose paths died, and takes them back after probes have come through.",
    "ev-map": "Which EVs were out of use, over time: a row for each plane and T1 whose EV a sender retired, "
    "red for the share of queue pairs without it. An EV is back after some probes have come through.",
    "queues": "How long a frame would wait at each port, over time, in the first repetition: a row for each "
    "of the ports with the longest queues.",
    "delivered": "What arrived, over time, a panel for each transport: thin lines are repetitions, the thick "
    "one is their mean. Grey: a standstill, in which no data frame left or came for much longer than usual.",
    "times-cdf": "How the times spread: the share of faults that were through with each step by then. "
    "Rerouted is the last packet onto a broken path: often before the detection. The "
    "wait for the first packet to meet the fault is part of every time.",
    "cdf-first_loss_us": "From a fault until the first packet that it took was sent.",
    "cdf-detected_us": "From a fault until a sender retired the first broken path, or the first route "
    "changed. Transports that never detect have no line.",
    "cdf-rerouted_us": "From a fault until the last packet was sent onto a path that it broke.",
    "cdf-recovered_us": "From a fault until the last byte that it took was delivered. Farther left is "
    "better; the axis is logarithmic, so one mark is a factor of ten.",
    "cdf-recovered_since_loss_us": "The same, from the first packet on that the fault took.",
    "cdf-gap_us": "For each fault, the longest time in which some flow received nothing.",
    "cdf-latency_us": "From a message's post to its completion at the receiver, faults included.",
    "cdf-step_us": "How long the steps of the training loop took.",
    "cdf-stalled_us": "By how much a step's communication took longer than the run's median: all ranks wait.",
    "busbw": "Bus bandwidth as nccl-tests defines it: the rate at which each link is used, comparable "
    "between numbers of ranks.",
    "delivery-times": "Most packets take one trip through the fabric. The tail of those sent while a fault "
    "lasted is what had to be sent twice.",
    "reordering": "How many packets were overtaken, and by how many others: packets of one message take "
    "different paths. The receiver writes each to its place in memory at once, so this costs nothing but a "
    "bitmap.",
}
_MEANS = {
    "first_loss_us": "the first packet is lost",
    "detected_us": "a sender retires the first broken path, or a route changes",
    "rerouted_us": "the last packet goes onto a broken path",
    "recovered_us": "all that a fault took has been delivered",
    "recovered_since_loss_us": "the same, from the first loss on",
    "stalled_us": "a step's communication beyond the usual",
    "step_us": "a training step",
    "latency_us": "from a message's post to its arrival",
    "goodput_mbps": "payload delivered",
    "busbw_gbps": "bus bandwidth of the largest message",
}
_ROUTING = {
    "srv6": "the sender's segment list (SRv6)",
    "ecmp": "a hash in the switches (ECMP)",
    "structured": "bits of the EV, which switches read",
    "destination": "the destination: one path for each",
    "adaptive": "the load of the uplinks, for each packet",
    "flowlet": "the load of the uplinks, after each pause of a flow",
    "frr": "routers (FRRouting)",
}
_TILES = ("recovered_us", "stalled_us", "step_us", "latency_us", "goodput_mbps")
_MOST_ROWS = 100
_STATS = {
    "n": "n",
    "p50": "median",
    "ci95_p50": "95 % of the median",
    "p90": "p90",
    "p99": "p99",
    "max": "max",
}


def result_page(directory: Path, result: Mapping[str, Any], fabric: Fabric | None) -> str:
    """Return the HTML page of a result, with the pictures in ``directory`` and, if given, its fabric."""
    transports: Mapping[str, Any] = result["transports"]
    names = [*_CAPTIONS, *(f"cdf-{metric}" for metric in SPREAD if f"cdf-{metric}" not in _CAPTIONS)]
    shown = [
        {"name": name, "svg": drawn(svg), "caption": _CAPTIONS[name]}
        for name in names
        if (svg := picture(directory, name, _CAPTIONS[name])) is not None
    ]
    main = _shown_trial(result)
    notes = [str(line).strip() for line in (*reasons(result), *rules(result))]
    context = {
        **head_of(directory, result),
        "description": result["parameters"].get("description", ""),
        "claim": result["claim"],
        "headline": (sentence(result) or headline(result)).replace(" us", " µs").replace("+-", "±"),
        "judgement": judgement(result),
        "checks": _checks(result),
        "doing": _doing(result),
        "tiles": _tiles(transports),
        "fabric": drawn(_drawing(result, fabric, main)),
        "replay": _replay(result, fabric, main),
        "pictures": shown,
        "transports": [
            {
                "name": name,
                "meaning": found["meaning"],
                "options": _options(found["options"]),
                "routing": _ROUTING.get(found["routing"], found["routing"]),
                "planes": "one plane" if found["one_plane"] else "all planes",
                "valid": found["valid"],
            }
            for name, found in transports.items()
        ],
        "trials": [_trial(t, number, t is main) for number, t in enumerate(result["trials"][:_MOST_ROWS])],
        "more_trials": max(0, len(result["trials"]) - _MOST_ROWS),
        "fault_error": us(_fault_error_us(result["trials"])),
        "times_notes": notes,
        "stats": list(_STATS.values()),
        "metrics": _metrics(transports),
        "streams": _streams(transports),
        "training": _training(result),
        "events": _events(result, [str(item["name"]) for item in shown]),
        "flow_control": {"sentences": sentences(result), "rows": flow_rows_of(result)},
    }
    return render("result.html", context)


def _options(options: Mapping[str, Any]) -> str:
    """Return a transport's options as text, in the form of a scenario file."""
    return ", ".join(f"{name}: {json.dumps(value)}" for name, value in options.items()).replace('"', "")


def _shown_trial(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for name, found in result["transports"].items():
        for data in found["pictures"][:1]:
            ours = (name, data["repetition"], data.get("packets", {}).get("trial"))
            return next(
                (t for t in result["trials"] if (t["transport"], t["repetition"], t["trial"]) == ours), None
            )
    return None


def _tiles(transports: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the page's key figures: the times of a single transport, or one metric for each transport."""
    names = {name for found in transports.values() for name, row in found["summary"].items() if row["n"]}
    if len(transports) == 1 and (account := _account(next(iter(transports.values())))):
        return account
    if len(transports) == 1 and "recovered_us" in names:
        ((_, found),) = transports.items()
        return [_tile(words_of(name), found, name) for name in TIMES if found["summary"][name]["n"]]
    metric = next((name for name in _TILES if name in names), None)
    if metric is None and (sizes := sizes_of(transports)):
        metric = f"busbw_gbps@{sizes[-1]}"
    if metric is None:
        return []
    return [_tile(name, found, metric) for name, found in transports.items() if found["summary"].get(metric)]


def _tile(name: str, found: Mapping[str, Any], metric: str) -> dict[str, Any]:
    row = found["summary"][metric]
    base, _, size = metric.partition("@")
    spread = f"n {row['n']}"
    if row.get("not_felt"):
        spread += f"; {row['not_felt']} not felt"
    if between := row.get("ci95_p50"):
        spread = f"95 %: {' to '.join(amount(end, metric) for end in between)}; {spread}"
    meaning = _MEANS.get(base, words_of(metric)) + (f" ({size})" if size else "")
    value = amount(row["p50"], metric) if row["n"] else "-"
    return {"name": name, "value": value, "meaning": meaning, "spread": spread, "median": True}


def _account(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the key figures of a mesh or soak: bytes delivered, streams, faults, packets lost."""
    details = [details for details in found["details"] if details.get("streams")]
    if not details:
        return []
    streams = sum(len(part["streams"]) for part in details)
    totals = [part.get("totals", {}) for part in details]
    messages = sum(stream.get("delivered_messages", 0) for part in details for stream in part["streams"])
    lost = sum(total.get("packets_lost", 0) for total in totals)
    kinds = Counter(fault["kind"] for fault in found["faults"])
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    tiles = [
        ("delivered", f"{(found['bytes_delivered'] or 0) / 1e6:,.0f} MB", f"in {messages:,} messages", ""),
        ("streams", f"{streams:,}", "each checked byte by byte", ""),
        ("faults", f"{sum(kinds.values()):,}", said or "none", ""),
        ("packets lost", f"{lost:,}", "and sent again", ""),
    ]
    return [
        {"name": name, "value": value, "meaning": meaning, "spread": spread, "median": False}
        for name, value, meaning, spread in tiles
    ]


def _checks(result: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "asked": micro(check["asked"]),
            "found": micro(check["found"]),
            "source": micro(check.get("source", "")),
            "word": word,
            "colour": colour,
        }
        for check in (result.get("verdict") or {}).get("checks", ())
        for word, colour in (check_word(check, result["valid"]),)
    ]


def _doing(result: Mapping[str, Any]) -> str:
    """Return a short description of the run: its workload, and how transports are compared."""
    asked = result["parameters"]
    work = asked.get("workload") or {}
    parts = [str(work["kind"])] if "kind" in work else []
    if work.get("message_bytes"):
        parts.append(f"messages of {work['message_bytes']:,} bytes")
    if work.get("payload_bytes"):
        parts.append(f"packets of at most {work['payload_bytes']:,} bytes")
    rate_bps = _rate_bps(result) or work.get("rate_bps")
    if rate_bps:
        gigabits = rate_bps >= 1e10
        parts.append(f"{figure(rate_bps / (1e9 if gigabits else 1e6))} {'G' if gigabits else 'M'}bit/s")
    if work.get("duration_ns"):
        parts.append(f"{work['duration_ns'] / 1e9:g} s")
    text = f"The workload: {', '.join(parts)}." if parts else ""
    if len(result["transports"]) > 1:
        times = asked.get("repetitions", 1)
        text += (
            " Every transport carries it by itself, on a fabric of its own of the same cables, "
            f"{times} time{'s' if times != 1 else ''}. Each meets the same schedule of faults; one that is "
            "to strike the busiest link strikes where that transport sends most."
        )
    return text.strip()


def _rate_bps(result: Mapping[str, Any]) -> float | None:
    """Return the rate that the warm-up chose for a spray. Return None if the result has no such rate."""
    for found in result["transports"].values():
        for details in found["details"]:
            if isinstance(stream := details.get("stream"), Mapping):
                return stream.get("rate_bps")
    return None


def _interval(row: Mapping[str, Any]) -> str:
    between = row.get("ci95_p50")
    return f"{figure(between[0])} to {figure(between[1])}" if between else "no interval"


def _metrics(transports: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = []
    for metric in dict.fromkeys(name for found in transports.values() for name in found["summary"]):
        rows = []
        for name, found in transports.items():
            row = found["summary"].get(metric)
            if row and (row["n"] or row.get("not_felt")):
                cells = [_interval(row) if stat == "ci95_p50" else _cell(row, stat) for stat in _STATS]
                rows.append({"name": name, "cells": cells, "valid": found["valid"]})
        if rows:
            unit = unit_of(metric)
            tables.append(
                {"name": f"{words_of(metric)} ({unit})" if unit else words_of(metric), "rows": rows}
            )
    return tables


def _cell(row: Mapping[str, Any], stat: str) -> str:
    if stat != "n":
        return figure(row[stat])
    return f"{row['n']}, {row['not_felt']} not felt" if row.get("not_felt") else str(row["n"])


def _trial(trial: Mapping[str, Any], number: int, shown: bool) -> dict[str, Any]:
    fault = trial["fault"]
    cells = ["not felt", "", "", ""] if trial["felt"] is False else [us(trial[name]) for name in TIMES[:4]]
    at_us = fault.get("at_us")
    lost, again = (trial.get(key) for key in ("lost_packets", "retransmitted_packets"))
    return {
        "number": number + 1,
        "transport": trial["transport"],
        "kind": fault["kind"],
        "where": fault["where"],
        "cells": [
            "-" if at_us is None else f"{at_us / 1e3:,.1f}",
            *cells,
            us(trial["rtt_us"]),
            "-" if lost is None else f"{lost:,}",
            "-" if again is None else f"{again:,}",
        ],
        "integrity": trial["integrity"],
        "shown": shown,
    }


def _fault_error_us(trials: Sequence[Mapping[str, Any]]) -> float | None:
    halves = [(t["fault"]["t_after_ns"] - t["fault"]["t_before_ns"]) / 2000 for t in trials]
    return max(halves, default=None)


def _training(result: Mapping[str, Any]) -> list[list[str]]:
    return [
        [row.transport, f"{row.ended} of {row.repetitions}", *speed_cells(row), *watchdog_cells(row)]
        for row in rows_of(result)
    ]


def _events(result: Mapping[str, Any], pictures: Collection[str]) -> dict[str, Any]:
    """Return the rows of the event browser, and the kinds of events for the browser's filter."""
    rows, more = event_rows(result)
    best = {kind: next((n for n in names if n in pictures), "") for kind, names in PICTURES.items()}
    return {
        "kinds": {kind: words for kind, words in KINDS.items() if any(row.kind == kind for row in rows)},
        "rows": [
            {
                "kind": row.kind,
                "at_ms": f"{row.at_us / 1e3:,.3f}",
                "transport": row.transport,
                "repetition": row.repetition + 1,
                "text": row.text,
                "picture": best[row.kind],
            }
            for row in rows
        ],
        "more": more,
    }


def _streams(transports: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return table rows for the streams of a mesh: bytes and messages sent and delivered."""
    return [
        {
            "name": str(stream.get("stream", "")),
            "messages": f"{stream.get('delivered_messages', 0):,} of {stream.get('messages', 0):,}",
            "bytes": f"{stream.get('delivered_bytes', 0):,} of {stream.get('bytes', 0):,}",
        }
        for found in transports.values()
        for details in found["details"]
        for stream in details.get("streams", ())
        if isinstance(stream, Mapping)
    ][:_MOST_ROWS]


def _drawing(result: Mapping[str, Any], fabric: Fabric | None, main: Mapping[str, Any] | None) -> str | None:
    """Return a drawing of the fabric with its broken places. Faults of one-plane transports are left out."""
    if fabric is None:
        return None
    here = [found for found in result["transports"].values() if not found["one_plane"]]
    broken = Counter(fault["where"] for found in here for fault in found["faults"])
    where = main["fault"]["where"] if main else next(iter(broken)) if len(broken) == 1 else None
    return draw_fabric(fabric, Marks(broken, where))


def _replay(
    result: Mapping[str, Any], fabric: Fabric | None, main: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return an animation of the median recovery, and how many times slower the animation is.

    Return None if paths are unknown.
    """
    if fabric is None or main is None or result["transports"][main["transport"]]["one_plane"]:
        return None
    data = result["transports"][main["transport"]]["pictures"][0].get("replay")
    found = draw_replay(fabric, data, main["fault"]["where"]) if data and data["flights"] else None
    return {"svg": drawn(found[0]), "slower": f"{found[1]:,.0f}"} if found else None
