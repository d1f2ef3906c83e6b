"""Figure 14: two flows share an EV's path, and marks alone move one of them to another EV of the plane."""

from __future__ import annotations

import numpy as np

from mrclab.experiments.judging.criteria import at_least, leads, none_of, present
from mrclab.experiments.judging.readings import (
    Result,
    duration_us,
    events_complete,
    mean_of,
    path_events,
    series_of,
    transport_of,
)
from mrclab.experiments.judging.scale import capacity_mbps, fabric_of, nic_mbps, payload_mbps
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import ratio_interval

PAPER = "the second flow starts at 65 to 69 s: the first moves from EV-A to EV-B of its plane, by ECN alone"
MOVED_SOURCE = "theory: both flows have their rates only if the first one sends so much over the other paths"
RATE = 0.99
RATE_SOURCE = "theory: the links carry both flows, to the 1 % of the paper's figures"
MARKS_SOURCE = "paper: the move is by ECN alone"


def judge(result: Result) -> Verdict:
    """Check that the first flow's other links carry more from then on, that both flows have their rates, and
    that EVs were skipped, none retired, and nothing lost."""
    workload = result["parameters"]["workload"]
    begin, end = workload["second_at_ns"] / 1e3, duration_us(result)
    asked = (workload["rate_bps"] + workload["second_rate_bps"]) / 1e6
    rates = mean_of([series.rate_mbps((begin, end)) / asked for series in series_of(result, "mrc")])
    moves, blind = moved(result, "mrc"), moved(result, "oblivious")
    found = transport_of(result, "mrc").get("path_events", ())
    skips = sum(sum(entry["skipped"].values()) for entry in found)
    complete = events_complete(result, "mrc")
    gone = sum(1 for kind in ("lost", "retired") for _ in path_events(result, "mrc", kind))
    return all_hold(
        [
            at_least("B's links, after over before", mean_of([*moves]), must_move(result), MOVED_SOURCE),
            leads("that, over a sender without EV health", ratio_interval(moves, blind), MARKS_SOURCE),
            at_least("rate of both flows over what they ask for", rates, RATE, RATE_SOURCE),
            present("EVs skipped for a mark", skips, MARKS_SOURCE),
            none_of("packets lost and EVs retired", gone if complete else None, MARKS_SOURCE),
        ]
    )


def must_move(result: Result) -> float:
    """Return by how much the first flow's own links must carry more, so that both flows have their rates."""
    workload = result["parameters"]["workload"]
    fabric = fabric_of(result, "mrc")
    payload = payload_mbps(result, "mrc") / nic_mbps(fabric)
    first, second = workload["rate_bps"] / 1e6, workload["second_rate_bps"] / 1e6
    shared = capacity_mbps(fabric, workload["second_src"], workload["second_dst"], ()) * payload
    paths = fabric.paths(workload["src"], workload["dst"])
    ways = {(path.plane, path.t1) for path in fabric.paths(workload["second_src"], workload["second_dst"])}
    own = sum((path.plane, path.t1) not in ways for path in paths) / len(paths)
    return max(1.0, (first - max(0.0, shared - second)) / (first * own)) if own else 1.0


def moved(result: Result, transport: str) -> list[float]:
    """Return, for each repetition, the rate on the first flow's own links with the second flow, over the rate
    before."""
    begin = result["parameters"]["workload"]["second_at_ns"] / 1e3
    found = []
    for series in transport_of(result, transport).get("links", ()):
        total = np.sum(list(series["bytes"].values()), axis=0)
        starts = series["start_us"] + np.arange(len(total)) * series["bin_us"]
        before = total[(starts >= 0) & (starts + series["bin_us"] <= begin)]
        after = total[(starts >= begin) & (starts + series["bin_us"] <= duration_us(result))]
        if len(before) and len(after) and before.mean() > 0:
            found.append(float(after.mean() / before.mean()))
    return found
