"""Figure 20: a permutation of flows."""

from __future__ import annotations

import random
from collections import Counter

from mrclab.experiments.judging.criteria import at_least, includes, leads
from mrclab.experiments.judging.readings import Result, flows, mean_of, transport_of
from mrclab.experiments.judging.scale import fabric_of, nic_mbps, payload_mbps, placement_of
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import mean_interval, ratio_interval
from mrclab.topologies import Fabric

PAPER = "8 flows of 400G NICs: MRC about 390 each; PFC with 1 QP 131 three times, 196 twice, 391 three times"
EVEN = 390 / 392
EVEN_SOURCE = "paper: about 390 of 392 Gbit/s for each of the eight flows"
LEAD_SOURCE = "paper: 390 against 131 for the slowest flow; how far it leads is the hash's matter"
PFC, PFC_8QP = "rocev2-pfc", "rocev2-pfc-8qp"
QPS_SOURCE = "paper: 262 against 131"
LEAD_8_SOURCE = "paper: 390 against 262"
COLLIDED = 0.75
"""A flow below this part of its links' capacity shares a link."""
HASH_SOURCE = "theory: flows whose hash puts them on one link (the mean of 2000 draws)"
DRAWS = 2000
WIDEST = 0.8


def judge(result: Result) -> Verdict:
    """MRC's slowest flow has the rate of its links, and leads RoCEv2's, which shares links by its hash.

    Virtual time has RoCEv2 under PFC, as the paper has: it is judged there in place of RoCEv2 on links that
    drop. With 8 queue pairs its slowest flow is faster.
    """
    mrc = flows(result, "mrc")
    whole = payload_mbps(result, "mrc")
    checks = [
        at_least(
            "MRC's slowest flow over its links' capacity",
            mean_of([min(rates) / whole for rates in mrc]),
            EVEN,
            EVEN_SOURCE,
        ),
    ]
    if transport_of(result, PFC):
        checks += _hashed(result, PFC, "RoCEv2 under PFC", LEAD_SOURCE)
    else:
        checks += _hashed(result, "rocev2", "RoCEv2", LEAD_SOURCE)
    if transport_of(result, PFC_8QP):
        one, eight = ([min(rates) for rates in flows(result, name)] for name in (PFC, PFC_8QP))
        ours = [min(rates) for rates in mrc]
        name = "slowest flow under PFC with 8 queue pairs"
        checks.append(leads(f"{name} over that with one", ratio_interval(eight, one), QPS_SOURCE))
        checks.append(
            leads(f"MRC's slowest flow over the {name}", ratio_interval(ours, eight), LEAD_8_SOURCE)
        )
    return all_hold(checks)


def _hashed(result: Result, name: str, words: str, source: str) -> list[Check]:
    """Check how the flows of a transport share links by their hash, and MRC's lead over the slowest."""
    fabric, found = fabric_of(result, name), flows(result, name)
    whole = payload_mbps(result, "mrc")
    collided = mean_interval([sum(r < COLLIDED * whole for r in rates) / len(rates) for rates in found])
    slowed, slowest = expected_collisions(result, fabric)
    alone = mean_of([min(rates) / whole for rates in found])
    lead = ratio_interval([min(rates) for rates in flows(result, "mrc")], [min(rates) for rates in found])
    return [
        includes(f"share of the flows of {words} that share a link", collided, slowed, HASH_SOURCE, WIDEST),
        includes(f"slowest flow of {words} over one alone", alone, slowest, HASH_SOURCE, WIDEST),
        leads(f"MRC's slowest flow over that of {words}", lead, source),
    ]


def expected_collisions(result: Result, fabric: Fabric, seed: int = 1) -> tuple[float, float]:
    """Return the mean share of flows that share a full link if each is hashed to one path, and the mean rate
    of the slowest over that of a flow alone."""
    chooser = random.Random(seed)
    placement = placement_of(result, fabric)
    pairs = [(placement.hosts[a], placement.hosts[b]) for a, b in placement.pairs]
    paths = [fabric.paths(a, b) for a, b in pairs]
    nic_bps = nic_mbps(fabric) * 1e6
    slowed = slowest = 0.0
    for _ in range(DRAWS):
        chosen = [chooser.choice(ways) for ways in paths]
        used = [tuple(zip(("up", "down"), path.links[1:-1], strict=False)) for path in chosen]
        load = Counter(way for ways in used for way in ways)
        rates = [
            min(
                [
                    1.0,
                    *(_rate_bps(fabric, link) / load[direction, link] / nic_bps for direction, link in ways),
                ]
            )
            for ways in used
        ]
        slowed += sum(rate < COLLIDED for rate in rates) / len(rates)
        slowest += min(rates)
    return slowed / DRAWS, slowest / DRAWS


def _rate_bps(fabric: Fabric, link: str) -> int:
    return fabric.link(*link.split(":")).profile.rate_bps
