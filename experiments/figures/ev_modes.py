"""MRC's three EV modes under the same faults: which EVs a dead link costs follows from the mode alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrclab.experiments.judging.criteria import at_least, none_of, present
from mrclab.experiments.judging.readings import Result, events_complete, path_events, transport_of, trials_of
from mrclab.experiments.judging.scale import fabric_of, placement_of
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.pcap import MRC_PORT
from mrclab.experiments.result.statistics import median_interval
from mrclab.topologies import Fabric
from mrclab.topologies.ev_paths import hashed_path, structured_paths

PAPER = (
    "sections 2.1 and 2.3: an EV is hashed by switches or stands for a segment list; what loses is retired"
)
MODES = ("mrc", "mrc-structured", "mrc-ecmp")
SEVERAL = 2
EXACT_SOURCE = "theory: an EV is one path, so a dead link breaks those over it and no other"
HASH_SOURCE = "theory: the hash puts 128 EVs onto 16 paths, so each has several, of which each must lose"
LEFT_SOURCE = "theory: once all EVs over a link are retired, nothing is sent over it"
DELIVERED_SOURCE = "theory: a reliable transport delivers all that was lost"


def judge(result: Result) -> Verdict:
    """Check for each mode which EVs were retired, and that the dead link was left and all was delivered."""
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
    """Return the EVs that were retired during a fault, and the EVs that were out of use when it began."""
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
    """Return the EVs whose path meets a fault; by a hash only those of ``retired``, since EVs are random."""
    if name == "mrc-ecmp":
        return {ev for ev in retired if fault.breaks(hashed_path(fabric, src, dst, ev, MRC_PORT))}
    paths = structured_paths(fabric, src, dst) if name == "mrc-structured" else fabric.paths(src, dst)
    return {path.ev for path in paths if fault.breaks(path)}


def _all_in_use(result: Result, name: str, fabric: Fabric) -> bool:
    """Return True if a sender has as many EVs in use as there are paths."""
    src, dst = fabric.far_ends()
    most = int(transport_of(result, name).get("options", {}).get("max_active_evs", 0))
    return most >= len(fabric.paths(src, dst))


def _not_silent(felt: list[Mapping[str, Any]]) -> int | None:
    """Return how many faults data was sent over until they were healed; None if captures do not show it."""
    found = [c["ok"] for t in felt for c in t["checks"] if c["name"] == "silent_after_rerouting"]
    return sum(ok is False for ok in found) if any(ok is not None for ok in found) else None
