"""Judges of goodput and latency without faults, for figure 20, section 5.2.1, and runs with several QPs."""

from __future__ import annotations

import random
from collections import Counter

from mrclab.experiments.judging.criteria import at_least, at_most, includes, leads, within
from mrclab.experiments.judging.phases import LEVEL_MARGIN
from mrclab.experiments.judging.readings import Result, by_repetition, flows, mean_of, pooled, transport_of
from mrclab.experiments.judging.scale import fabric_of, full_mbps, nic_mbps, payload_mbps, placement_of
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import (
    mean_interval,
    median_interval,
    quantile_ratio_interval,
    ratio_interval,
)
from mrclab.hosts.options import wire_time_ns
from mrclab.topologies import Fabric

PAPER_FIG20 = (
    "8 flows of 400G NICs: MRC about 390 each; PFC with 1 QP 131 three times, 196 twice, 391 three times"
)
EVEN = 390 / 392
EVEN_SOURCE = "paper: about 390 of 392 Gbit/s for each of the eight flows"
LEAD_SOURCE = "paper: 390 against 131 for the slowest flow; how far it leads is the hash's matter"
PFC, PFC_8QP = "rocev2-pfc", "rocev2-pfc-8qp"
QPS_SOURCE = "paper: 262 against 131"
LEAD_8_SOURCE = "paper: 390 against 262"
COLLIDED = 0.75
"""A flow with less than this share of its links' capacity is assumed to share a link with another flow."""
HASH_SOURCE = "theory: flows whose hash puts them on one link (the mean of 2000 draws)"
DRAWS = 2000
WIDEST = 0.8


def judge_fig20(result: Result) -> Verdict:
    """Check that MRC's slowest flow has the rate of its links, and is faster than RoCEv2's slowest flow.

    RoCEv2's flows share links, because a hash chooses their paths. In virtual time, RoCEv2 runs under PFC as
    in the paper, and its slowest flow must be faster with 8 queue pairs than with one.
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
    """Check that collisions and the slowest flow's rate are as expected with a random hash.

    Check also that MRC's slowest flow is faster.
    """
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
    """Return the expected fraction of flows on a full link, and the expected rate of the slowest flow.

    A full link carries several flows and limits their rates. The results are averages over many random
    choices of paths. The rate is relative to the rate of a flow that is alone on its links.
    """
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


PAPER_QUEUE_PAIRS = (
    "MRC's victim has 389 Gbit/s with 1 QP and with 8 (figures 18 and 21); a permutation runs at 390 a flow "
    "with 1 QP; PFC at 245 on average with 1 QP and at 323 with 8 (figure 20)"
)
SAME_SOURCE = "paper: 389 Gbit/s with 1 and with 8 queue pairs, to the 1 % of its figures"
QUEUE_PAIRS_FULL = 390 / 392
QUEUE_PAIRS_FULL_SOURCE = "paper, figure 20: about 390 of 392 Gbit/s for each flow of a permutation"
QUEUE_PAIRS_LEAD_SOURCE = "paper, figure 20: 390 against 245 Gbit/s a flow with 1 queue pair"
MORE_SOURCE = "paper, figure 20: 323 against 245 Gbit/s a flow; theory: more hashes share more evenly"


def judge_queue_pairs(result: Result) -> Verdict:
    """Check that MRC fills its NIC with one queue pair, and has the same goodput with more queue pairs.

    RoCEv2 must be faster with more queue pairs. With one queue pair, MRC must be faster than RoCEv2.
    """
    names = result["transports"]
    judged = [name for name in names if not one_rotation(result, name)]
    mrc, roce = ({qps_of(result, n): n for n in judged if kind_of(result, n) == kind} for kind in KINDS)
    if len(mrc) < 2 or len(roce) < 2:
        return all_hold([Check("numbers of queue pairs", "fewer than two", None, SAME_SOURCE)])
    one = goodput(result, mrc[min(mrc)])
    whole = full_mbps(result, mrc[min(mrc)])
    asked = f"MRC with {min(mrc)} over its links' capacity"
    checks = [
        at_least(asked, mean_of([rate / whole for rate in one]), QUEUE_PAIRS_FULL, QUEUE_PAIRS_FULL_SOURCE)
    ]
    checks += [
        within(
            f"MRC with {number} over MRC with {min(mrc)}",
            ratio_interval(goodput(result, mrc[number]), one),
            1.0,
            LEVEL_MARGIN,
            SAME_SOURCE,
        )
        for number in sorted(mrc)[1:]
    ]
    few, many = goodput(result, roce[min(roce)]), goodput(result, roce[max(roce)])
    asked = f"RoCEv2 with {max(roce)} over RoCEv2 with {min(roce)}"
    checks.append(leads(asked, ratio_interval(many, few), MORE_SOURCE))
    checks.append(leads("MRC with 1 over RoCEv2 with 1", ratio_interval(one, few), QUEUE_PAIRS_LEAD_SOURCE))
    return all_hold(checks)


KINDS = ("mrc", "rocev2")


def kind_of(result: Result, name: str) -> str:
    """Return the kind of a transport, such as ``mrc`` or ``rocev2``."""
    return str(transport_of(result, name).get("kind", ""))


def one_rotation(result: Result, name: str) -> bool:
    """Return True if all queue pairs to a peer share one rotation of EVs. Such transports are not judged."""
    return bool(transport_of(result, name).get("options", {}).get("ev_sets") == "peer")


def qps_of(result: Result, name: str) -> int:
    """Return how many queue pairs a transport has to each peer."""
    return int(transport_of(result, name).get("options", {}).get("qps", 1))


def goodput(result: Result, name: str) -> list[float]:
    """Return the goodput of each repetition, Mbit/s."""
    return by_repetition(result, name, "goodput_mbps")


PAPER_BANDWIDTH = "messages of 32 KB reach 770 of 800 Gbit/s"
BANDWIDTH_LEAST = 770 / 800
BANDWIDTH_SOURCE = "paper, section 5.2.1: 770 of 800 Gbit/s with messages of 32 KB"
BANDWIDTH_EQUAL = 0.99
BANDWIDTH_EQUAL_SOURCE = "paper, figure 20: 390 Gbit/s a flow with MRC, at most 392 with RoCE; to 1 %"


def judge_bandwidth(result: Result) -> Verdict:
    """Check that MRC's goodput reaches RoCEv2's goodput, and the paper's share of the NIC's rate."""
    mrc, roce = (by_repetition(result, name, "goodput_mbps") for name in ("mrc", "rocev2"))
    nic = nic_mbps(fabric_of(result, "mrc"))
    return all_hold(
        [
            at_least(
                "goodput over the NIC's rate",
                mean_of([rate / nic for rate in mrc]),
                BANDWIDTH_LEAST,
                BANDWIDTH_SOURCE,
            ),
            at_least(
                "goodput over that of RoCEv2",
                ratio_interval(mrc, roce),
                BANDWIDTH_EQUAL,
                BANDWIDTH_EQUAL_SOURCE,
            ),
        ]
    )


PAPER_LATENCY = "a write of 2 bytes takes 5.09 us inside a T0 and 6.54 us across a T1"
LATENCY_EQUAL = 0.01
LATENCY_SOURCE = "theory: the same path but for the time on the wire, to the 1 % of the paper's figures"
OUTER_HEADER_BYTES = 40
"""The size of the outer IPv6 header, which MRC's packets have and RoCEv2's do not."""


def judge_latency(result: Result) -> Verdict:
    """Check that a request and its answer take no longer with MRC than with RoCEv2.

    Only the time on the wire may be longer: MRC's packets have one more header, and a plane has a lower rate.
    """
    ours, theirs = (pooled(result, name, "latency_us") for name in ("mrc", "rocev2"))
    usual = median_interval(theirs)
    extra_us = wire_us(result, "mrc", 0) - wire_us(result, "rocev2", -OUTER_HEADER_BYTES)
    limit = 1 + LATENCY_EQUAL + (max(0.0, extra_us) / usual.value if usual else 0.0)
    ratio = quantile_ratio_interval(ours, theirs, 0.5)
    return all_hold([at_most("median latency over that of RoCEv2", ratio, limit, LATENCY_SOURCE)])


def wire_us(result: Result, transport: str, more_bytes: int) -> float:
    """Return the time that a request and its answer spend on all links of their path, us."""
    fabric = fabric_of(result, transport)
    workload = result["parameters"]["workload"]
    a, b = placement_of(result, fabric).hosts
    sizes = (workload["message_bytes"] + more_bytes, workload["response_bytes"] + more_bytes)
    return (wire_time_ns(fabric, a, b, sizes[0]) + wire_time_ns(fabric, b, a, sizes[1])) / 1e3
