"""Judges of figures about entropy values (EVs): retired and skipped EVs, the number of EVs, and EV modes.

Figure 4: losses at the start of a job on a fabric with dead links. Figures 12 and 13: an EV is replaced if
its path drops 20 % of the packets. Figure 14: ECN marks alone move a flow to another EV of the plane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mrclab.experiments.judging.criteria import at_least, at_most, leads, none_of, present, within
from mrclab.experiments.judging.phases import judge_full, judge_lowest
from mrclab.experiments.judging.readings import (
    Result,
    by_repetition,
    duration_us,
    events_complete,
    flows,
    mean_of,
    path_events,
    series_of,
    transport_of,
    trials_of,
)
from mrclab.experiments.judging.scale import (
    BYPASS_SOURCE,
    bypass_limit_us,
    capacity_mbps,
    fabric_of,
    nic_mbps,
    payload_mbps,
    placement_of,
    rtt_us,
)
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.pcap import MRC_PORT
from mrclab.experiments.result.statistics import (
    mean_interval,
    median_interval,
    rate_ratio_interval,
    ratio_interval,
)
from mrclab.topologies import Fabric
from mrclab.topologies.ev_paths import hashed_path, structured_paths
from mrclab.topologies.model import ev_fields

PAPER_FIG04 = (
    "losses a second: 9.2e5 at 3.4 min, 1.5e4 at 4.4, 4.9e3 at 5.9, 1.2e3 to 2e3 from 10 min on; fewer than "
    "5 packets lost per queue pair in the first minute"
)
FALL = 9.2e5 / 2e3
FALL_SOURCE = "paper: from 9.2e5 losses a second to 2e3 at most, 460 times fewer"
PER_QP = 5
PER_QP_SOURCE = "paper, section 2.4: fewer than 5 packets lost per queue pair in the first minute"


def judge_fig04(result: Result) -> Verdict:
    """Check the losses: the decrease from the first to the last third of the run, and the number per QP.

    A sender without EV states must still lose packets in the last third, because the links are still dead.
    """
    end = duration_us(result)
    first, last, blind = (
        _lost(result, name, window)
        for name, window in (
            ("mrc", (0.0, end / 3)),
            ("mrc", (end * 2 / 3, end)),
            ("oblivious", (end * 2 / 3, end)),
        )
    )
    fall = rate_ratio_interval(last, first) if first else None
    return all_hold(
        [
            present(
                "losses without EV health, in the last third", blind, "control: the links are still dead"
            ),
            at_most("losses of the last third over those of the first", fall, 1 / FALL, FALL_SOURCE),
            _per_queue_pair(result),
        ]
    )


def _lost(result: Result, transport: str, window: tuple[float, float]) -> int:
    return sum(series.lost_in(window) for series in series_of(result, transport))


def _per_queue_pair(result: Result) -> Check:
    asked = "packets lost per queue pair"
    if not events_complete(result, "mrc"):
        return Check(asked, "the result lacks the events", None, PER_QP_SOURCE)
    options: dict[str, Any] = transport_of(result, "mrc").get("options", {})
    counts = dict.fromkeys((e["repetition"] for e in transport_of(result, "mrc")["path_events"]), 0)
    for repetition, _ in path_events(result, "mrc", "lost"):
        counts[repetition] += 1
    rates = flows(result, "mrc")
    pairs = len(rates[0]) * int(options.get("qps", 1)) if rates else 0
    found = mean_interval([count / pairs for count in counts.values()]) if pairs else None
    return at_most(asked, found, PER_QP, PER_QP_SOURCE)


PAPER_FIG12 = (
    "20 % loss on a path: its EV inactive at once, one of its plane takes over; 1532, lowest 1515 Gbit/s"
)
FIG12_LEAST = 1515 / 1532
FIG12_LEAST_SOURCE = "paper: 1515 of 1532 in its lowest 200 ms"
REPLACED_SOURCE = "paper, figure 13: EV-B of the same plane takes over when EV-A is retired"
FELT_SOURCE = "without a fault that took packets there is nothing to show"
LASTING = 0.01
LASTING_SOURCE = "paper, figure 13: EV-A carries nothing from then on, to the width of a line, 1 %"
AT_ONCE_US = 1.0


def judge_fig12(result: Result) -> Verdict:
    """Check the throughput, the retirement of the lossy path's EV, its replacement, and later losses."""
    felt = sum(trial["felt"] is True for trial in trials_of(result, "mrc"))
    return all_hold(
        [
            present("paths that took packets", felt, FELT_SOURCE),
            judge_full(result, "mrc", 1532, 1600),
            judge_lowest(result, "mrc", FIG12_LEAST, FIG12_LEAST_SOURCE),
            _retired_in_time(result),
            *_replaced(result),
            _lasting(result),
        ]
    )


def _retired_in_time(result: Result) -> Check:
    by_repetition: dict[int, list[float]] = {}
    for trial in trials_of(result, "mrc"):
        if trial["detected_us"] is not None and trial["first_loss_us"] is not None:
            waited = trial["detected_us"] - trial["first_loss_us"]
            by_repetition.setdefault(trial["repetition"], []).append(waited)
    longest = mean_of([max(found) for found in by_repetition.values()])
    limit = bypass_limit_us(rtt_us(result, "mrc"))
    return at_most("from a path's first loss until its EV is retired", longest, limit, BYPASS_SOURCE, " us")


def _replaced(result: Result) -> list[Check]:
    """Check that each retired EV was replaced at the same time by another EV of the same plane."""
    asked = "EVs retired and not replaced at once by one of their plane"
    if not events_complete(result, "mrc"):
        return [none_of(asked, None, REPLACED_SOURCE)]
    swapped = {
        (repetition, row[1], row[2], row[3]): row
        for repetition, row in path_events(result, "mrc", "replaced")
    }
    first: dict[tuple[int, float, float, float], float] = {}
    for repetition, row in path_events(result, "mrc", "retired"):
        first.setdefault((repetition, row[1], row[2], row[3]), row[0])
    missing = 0
    for key, at_us in first.items():
        found = swapped.get(key)
        same_plane = found is not None and ev_fields(int(found[3]))[0] == ev_fields(int(found[4]))[0]
        missing += not (same_plane and found is not None and abs(found[0] - at_us) <= AT_ONCE_US)
    return [present("EVs retired", len(first), REPLACED_SOURCE), none_of(asked, missing, REPLACED_SOURCE)]


def _lasting(result: Result) -> Check:
    """Compare MRC's losses with the losses of a sender without EV states.

    Count only the losses after the time at which MRC must have stopped using the failed path.
    """
    settled = bypass_limit_us(rtt_us(result, "mrc"))
    counts = []
    for name in ("mrc", "oblivious"):
        begins = {
            fault["repetition"]: fault["at_us"] + settled
            for fault in transport_of(result, name).get("faults", ())
        }
        end = duration_us(result)
        counts.append(sum(s.lost_in((begins.get(s.repetition, end), end)) for s in series_of(result, name)))
    lasting = rate_ratio_interval(*counts) if counts[1] else None
    asked = "losses from then on, over those without EV health"
    return at_most(asked, lasting, LASTING, LASTING_SOURCE)


PAPER_FIG14 = (
    "the second flow starts at 65 to 69 s: the first moves from EV-A to EV-B of its plane, by ECN alone"
)
MOVED_SOURCE = "theory: both flows have their rates only if the first one sends so much over the other paths"
FIG14_RATE = 0.99
FIG14_RATE_SOURCE = "theory: the links carry both flows, to the 1 % of the paper's figures"
MARKS_SOURCE = "paper: the move is by ECN alone"


def judge_fig14(result: Result) -> Verdict:
    """Check that ECN marks alone move the first flow to other links when the second flow begins."""
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
            at_least("rate of both flows over what they ask for", rates, FIG14_RATE, FIG14_RATE_SOURCE),
            present("EVs skipped for a mark", skips, MARKS_SOURCE),
            none_of("packets lost and EVs retired", gone if complete else None, MARKS_SOURCE),
        ]
    )


def must_move(result: Result) -> float:
    """Return the factor by which the first flow's rate must grow on links that the second flow cannot use.

    The first flow moves traffic to these links, because the second flow fills the shared links.
    """
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
    """Return, for each repetition, by which factor the rate of the measured links grew with the second flow.

    The factor is the links' total rate with both flows, divided by this rate with only the first flow.
    """
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


PAPER_EV_MODES = (
    "sections 2.1 and 2.3: an EV is hashed by switches or stands for a segment list; what loses is retired"
)
MODES = ("mrc", "mrc-structured", "mrc-ecmp")
SEVERAL = 2
EXACT_SOURCE = "theory: an EV is one path, so a dead link breaks those over it and no other"
HASH_SOURCE = "theory: the hash puts 128 EVs onto 16 paths, so each has several, of which each must lose"
LEFT_SOURCE = "theory: once all EVs over a link are retired, nothing is sent over it"
DELIVERED_SOURCE = "theory: a reliable transport delivers all that was lost"


def judge_ev_modes(result: Result) -> Verdict:
    """Check for each EV mode that only EVs with a broken path were retired, and that all data arrived."""
    return all_hold([check for name in MODES for check in _judge_mode(result, name)])


def _judge_mode(result: Result, name: str) -> list[Check]:
    felt = [trial for trial in trials_of(result, name) if trial["felt"]]
    checks = [present(f"{name}: faults that took packets", len(felt), "without one there is nothing to show")]
    if not felt:
        return checks
    fabric = fabric_of(result, name)
    sound = left = 0
    for_each_path: list[float] = []
    for trial in felt:
        number = trial["repetition"]
        placement = placement_of(result, fabric, number)
        src, dst = (placement.hosts[rank] for rank in placement.pairs[0])
        fault = FaultRecord("blackhole", trial["fault"]["where"], 0, 0)
        retired, away = _retirements(result, name, trial)
        broken = _broken(fabric, src, dst, fault, name, retired)
        sound += len(retired - broken)
        left += len(broken - retired - away)
        crossing = sum(fault.breaks(path) for path in fabric.paths(src, dst))
        for_each_path.append(len(retired) / crossing if crossing else 0.0)
    known = events_complete(result, name)
    checks.append(none_of(f"{name}: sound EVs retired", sound if known else None, EXACT_SOURCE))
    if name == "mrc-ecmp":
        asked = f"{name}: EVs retired for each path over the link, median"
        found = median_interval(for_each_path) if known else None
        checks.append(at_least(asked, found, SEVERAL, HASH_SOURCE))
    else:
        asked = f"{name}: EVs over the dead link that stayed in use"
        counted = known and _all_in_use(result, name, fabric)
        checks.append(none_of(asked, left if counted else None, EXACT_SOURCE))
    went_on = _not_silent(felt)
    checks.append(none_of(f"{name}: faults after which data went on over the link", went_on, LEFT_SOURCE))
    never = sum(t["detected_us"] is None or t["recovered_us"] is None for t in felt)
    checks.append(none_of(f"{name}: faults not detected, or not recovered from", never, DELIVERED_SOURCE))
    used = sum(t["rerouted_us"] is None for t in felt)
    checks.append(none_of(f"{name}: faults whose path was used until its repair", used, LEFT_SOURCE))
    return checks


def _retirements(result: Result, name: str, trial: Mapping[str, Any]) -> tuple[set[int], set[int]]:
    """Return the EVs that were retired during a fault, and the EVs retired before the fault began."""
    fault, begin = trial["fault"], trial["fault"]["at_us"]
    middle_ns = (fault["t_before_ns"] + fault["t_after_ns"]) // 2
    until_ns = fault["restore_before_ns"]
    end = float("inf") if until_ns is None else begin + (until_ns - middle_ns) / 1e3
    rows = [
        (row[0], kind, int(row[3]))
        for kind in ("retired", "restored")
        for repetition, row in path_events(result, name, kind)
        if repetition == trial["repetition"]
    ]
    away: set[int] = set()
    for at, kind, ev in sorted(rows):
        if at < begin:
            (away.add if kind == "retired" else away.discard)(ev)
    return {ev for at, kind, ev in rows if kind == "retired" and begin <= at < end}, away


def _broken(fabric: Fabric, src: str, dst: str, fault: FaultRecord, name: str, retired: set[int]) -> set[int]:
    """Return the EVs whose path meets a fault. If switches hash the EVs, check only EVs in ``retired``."""
    if name == "mrc-ecmp":
        return {ev for ev in retired if fault.breaks(hashed_path(fabric, src, dst, ev, MRC_PORT))}
    paths = structured_paths(fabric, src, dst) if name == "mrc-structured" else fabric.paths(src, dst)
    return {path.ev for path in paths if fault.breaks(path)}


def _all_in_use(result: Result, name: str, fabric: Fabric) -> bool:
    """Return True if a sender uses at least as many EVs as there are paths."""
    src, dst = fabric.far_ends()
    most = int(transport_of(result, name).get("options", {}).get("max_active_evs", 0))
    return most >= len(fabric.paths(src, dst))


def _not_silent(felt: list[Mapping[str, Any]]) -> int | None:
    """Return the number of faults during which data was still sent over the broken link; None if unknown."""
    found = [c["ok"] for t in felt for c in t["checks"] if c["name"] == "silent_after_rerouting"]
    return sum(ok is False for ok in found) if any(ok is not None for ok in found) else None


PAPER_ENTROPY_VALUES = (
    "128 to 256 EVs a queue pair, spread equally over the planes; beyond some 100 there is little to gain"
)
ENTROPY_VALUES_MARGIN = 0.01
ENTROPY_VALUES_SOURCE = (
    "theory: the capacity of so many paths, as many in each plane; to the 1 % of the paper's figures"
)
ENOUGH_SOURCE = "paper, section 2.1: 128 to 256 EVs; more bring little"
ENOUGH = 128


def judge_entropy_values(result: Result) -> Verdict:
    """Check that the goodput is the used paths' capacity, and that more than 128 EVs do not raise it."""
    by_count = {evs_of(result, name): name for name in result["transports"]}
    checks: list[Check] = []
    for count, name in sorted(by_count.items()):
        fabric = fabric_of(result, name)
        whole = payload_mbps(result, name)
        shares = mean_of([rate / whole for rate in by_repetition(result, name, "goodput_mbps")])
        asked = f"{count} EVs: goodput over the NIC's links' capacity"
        checks.append(
            within(
                asked,
                shares,
                share_of_paths(result, fabric, count),
                ENTROPY_VALUES_MARGIN,
                ENTROPY_VALUES_SOURCE,
            )
        )
    plenty = sorted(count for count in by_count if count >= ENOUGH)
    if len(plenty) > 1:
        few, many = (by_repetition(result, by_count[plenty[end]], "goodput_mbps") for end in (0, -1))
        asked = f"{plenty[-1]} EVs over {plenty[0]}"
        checks.append(within(asked, ratio_interval(many, few), 1.0, ENTROPY_VALUES_MARGIN, ENOUGH_SOURCE))
    return all_hold(checks)


def evs_of(result: Result, name: str) -> int:
    """Return the largest number of EVs over which a queue pair of this transport sprays."""
    return int(transport_of(result, name).get("options", {}).get("max_active_evs", 256))


def share_of_paths(result: Result, fabric: Fabric, count: int) -> float:
    """Return the total rate of ``count`` paths, spread evenly over the planes, as a share of a NIC's rate."""
    placement = placement_of(result, fabric)
    src, dst = (placement.hosts[rank] for rank in placement.pairs[0])
    paths = [path for path in fabric.paths(src, dst) if path.plane == 0]
    first, inner = (fabric.link(*paths[0].links[i].split(":")).profile.rate_bps for i in (0, 1))
    here = min(len(paths), max(1, count // fabric.planes))
    return min(1.0, here * inner / first)
