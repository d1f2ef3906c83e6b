"""Max-min fair shares of flows that each take one path, drawn by a hash, on one plane of any number of tiers.

This is what conventional transports get: the hash puts several flows onto some links and none onto others.
A dead link is avoided, as it is once the routing has converged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mrclab.linux.errors import InputError
from mrclab.scale.fabric import Built
from mrclab.scale.shares import TOLERANCE, Shares

Ints = npt.NDArray[np.int64]

_TRIES = 64


def ecmp_permutation(
    built: Built, rng: np.random.Generator, dead_links: int = 0, tolerance: float = TOLERANCE
) -> Shares:
    """Return the shares of a random permutation, a flow a NIC. ``dead_links`` T0-T1 links are dead.

    Raise InputError for a fabric of several planes, or one that has fewer links.
    """
    if built.design.planes != 1:
        raise InputError("flows of one path are computed on one plane")
    if not 0 <= dead_links <= built.links_per_tier:
        raise InputError(f"the fabric has {built.links_per_tier:,} T0-T1 links, not {dead_links:,}")
    to = rng.permutation(built.nics)
    flows = np.flatnonzero(to != np.arange(built.nics))
    dead = np.sort(rng.choice(max(built.links_per_tier, 1), dead_links, replace=False))
    of_flow, link = _links_used(built, flows, to[flows], dead, rng)
    rates = max_min_single(of_flow, link, len(flows), tolerance)
    return Shares(rates[0], np.ones(len(flows)), rates[1])


def _links_used(
    built: Built, src: Ints, dst: Ints, dead: Ints, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return which flow uses which link, as pairs of numbers; links are numbered in any order from 0."""
    half, tiers = built.nics_per_t0, built.design.tiers
    src_t0, dst_t0 = src // half, dst // half
    height = np.zeros(len(src), np.int64)  # tiers that the flow climbs above its T0
    for tier in range(tiers - 1):
        # Below the top tier, the switches of a group are reached without going higher; the top joins all.
        height += src_t0 // half**tier != dst_t0 // half**tier
    choice = rng.integers(0, half, (tiers, len(src)))
    for _ in range(_TRIES):
        hit = (height > 0) & (
            np.isin(src_t0 * half + choice[0], dead) | np.isin(dst_t0 * half + choice[0], dead)
        )
        if not hit.any():
            break
        choice[0, hit] = rng.integers(0, half, int(hit.sum()))
    pairs = []
    for tier in range(tiers - 1):
        climbs = np.flatnonzero(height > tier)
        over = np.zeros(len(climbs), np.int64)  # the uplinks chosen so far name the switch of this tier
        for below in range(tier + 1):
            over = over * half + choice[below, climbs]
        for way, t0 in enumerate((src_t0, dst_t0)):
            group = t0[climbs] // half**tier
            # Unique over tiers, ways, groups and choices.
            name = ((group * half ** (tier + 1) + over) * 2 + way) * tiers + tier
            pairs.append(np.stack([climbs, name]))
    every = np.concatenate([np.empty((2, 0), np.int64), *pairs], axis=1)
    _, link = np.unique(every[1], return_inverse=True)
    return every[0], link.astype(np.int64)


def max_min_single(
    of_flow: Ints, link: Ints, flows: int, tolerance: float = TOLERANCE
) -> tuple[Doubles, int]:
    """Return max-min rates of flows over links of rate 1, by pairs of (flow, link), and the steps it took.

    No flow gets more than 1, which is what its NIC has.
    """
    links = int(link.max(initial=-1)) + 1
    rates = np.zeros(flows)
    open_ = np.ones(flows, bool)
    left = np.ones(links)  # each link's capacity minus the flows that have their rate
    steps = 0
    while open_.any():
        steps += 1
        growing = np.bincount(link, minlength=links)
        fair = np.divide(left, growing, out=np.full(links, np.inf), where=growing > 0)
        level = min(float(fair.min(initial=np.inf)), 1.0)
        full = fair <= level * (1 + tolerance)
        stops = np.zeros(flows, bool)
        stops[of_flow[full[link]]] = True
        if level >= 1.0:
            stops = open_.copy()
        rates[stops] = level
        goes_on = ~stops[of_flow]
        left -= np.bincount(link[~goes_on], minlength=links) * level
        of_flow, link = of_flow[goes_on], link[goes_on]  # of the flows that are still rising
        open_ &= ~stops
    return rates, steps
