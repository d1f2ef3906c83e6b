"""How many EVs it takes: MRC's goodput on thin paths with 4 to 256 of them."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import within
from mrclab.experiments.judging.readings import Result, by_repetition, mean_of, transport_of
from mrclab.experiments.judging.scale import fabric_of, payload_mbps, placement_of
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import ratio_interval
from mrclab.topologies import Fabric

PAPER = "128 to 256 EVs a queue pair, spread equally over the planes; beyond some 100 there is little to gain"
MARGIN = 0.01
SOURCE = "theory: the capacity of so many paths, as many in each plane; to the 1 % of the paper's figures"
ENOUGH_SOURCE = "paper, section 2.1: 128 to 256 EVs; more bring little"
ENOUGH = 128


def judge(result: Result) -> Verdict:
    """Each number of EVs gives the rate of its paths, and above 128 there is no gain."""
    by_count = {evs_of(result, name): name for name in result["transports"]}
    checks: list[Check] = []
    for count, name in sorted(by_count.items()):
        fabric = fabric_of(result, name)
        whole = payload_mbps(result, name)
        shares = mean_of([rate / whole for rate in by_repetition(result, name, "goodput_mbps")])
        asked = f"{count} EVs: goodput over the NIC's links' capacity"
        checks.append(within(asked, shares, share_of_paths(result, fabric, count), MARGIN, SOURCE))
    plenty = sorted(count for count in by_count if count >= ENOUGH)
    if len(plenty) > 1:
        few, many = (by_repetition(result, by_count[plenty[end]], "goodput_mbps") for end in (0, -1))
        asked = f"{plenty[-1]} EVs over {plenty[0]}"
        checks.append(within(asked, ratio_interval(many, few), 1.0, MARGIN, ENOUGH_SOURCE))
    return all_hold(checks)


def evs_of(result: Result, name: str) -> int:
    """Return how many EVs a queue pair of a transport sprays over at most."""
    return int(transport_of(result, name).get("options", {}).get("max_active_evs", 256))


def share_of_paths(result: Result, fabric: Fabric, count: int) -> float:
    """Return the share of a NIC's rate that ``count`` paths carry, spread equally over the planes."""
    placement = placement_of(result, fabric)
    src, dst = (placement.hosts[rank] for rank in placement.pairs[0])
    paths = [path for path in fabric.paths(src, dst) if path.plane == 0]
    first, inner = (fabric.link(*paths[0].links[i].split(":")).profile.rate_bps for i in (0, 1))
    here = min(len(paths), max(1, count // fabric.planes))
    return min(1.0, here * inner / first)
