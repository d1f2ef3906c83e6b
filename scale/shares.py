"""Max-min fair shares of flows on a fabric with dead links: flows that spray, and flows with one path.

The fabric has two tiers and up to 131,072 NICs. A flow that sprays puts the same rate into each plane in
which its ends still have a path. In a plane such a flow divides its rate evenly over the paths whose links
are up. Like MRC's queue pairs, a flow does not use a plane in which the flow has no path. Nothing is
simulated. All rates rise together until a link is full. Then the flows over this link keep their rates, and
the other rates rise further (progressive filling). The result is max-min shares.

Two assumptions about the paths in a plane are a lower and an upper bound for MRC:

* ``even``: the rate is divided evenly over all working paths, at any load (EVs in rotation, no reaction to
  ECN marks);
* ``adaptive``: the rate is divided so that the only limit is the total capacity of each T0's uplinks (ECN
  steers every packet perfectly).

The loads of the flows between the same two T0s are added. The loads of one plane are matrices of T0s by T1s,
so a step of the filling is a few matrix products. Rates are in units of a NIC's rate. A link counts as full
if it is full within ``tolerance``, so the relative error of a share is at most ``tolerance``.

Conventional transports use one path for each flow, which a hash selects. Their shares are computed on one
plane with any number of tiers. The hash puts several flows onto some links and no flow onto other links. Dead
links are avoided, as after the convergence of routing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from mrclab.linux.errors import InputError
from mrclab.scale.fabric import Built

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Spread = Literal["even", "adaptive"]

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Fabric:
    """The two-tier fabric: ``up[plane, t0, t1]`` and ``ports[plane, nic]`` are True for working links."""

    up: Bools
    ports: Bools
    nics_per_t0: int

    @classmethod
    def of(cls, built: Built) -> Fabric:
        """Return the fabric with all links working. Raise InputError if there are not two tiers."""
        if built.design.tiers != 2:
            raise InputError(f"shares are computed for two tiers, not {built.design.tiers}")
        t0s, half = built.tier_sizes[0], built.nics_per_t0
        # A fabric with few NICs has fewer T1s than a T0 has uplinks. Then several parallel links join a T0
        # and a T1. In this model, path i uses uplink i of each T0.
        planes = built.design.planes
        return cls(np.ones((planes, t0s, half), bool), np.ones((planes, built.nics), bool), half)

    @property
    def planes(self) -> int:
        """Number of planes."""
        return int(self.up.shape[0])

    @property
    def nics(self) -> int:
        """Number of NICs."""
        return int(self.ports.shape[1])

    def with_dead_links(self, number: int, rng: np.random.Generator) -> Fabric:
        """Return the fabric without ``number`` random T0-T1 links.

        Raise InputError if the fabric has fewer than ``number`` such links.
        """
        if not 0 <= number <= self.up.size:
            raise InputError(f"the fabric has {self.up.size:,} T0-T1 links, not {number:,}")
        up = self.up.copy()
        up.reshape(-1)[rng.choice(up.size, number, replace=False)] = False
        return Fabric(up, self.ports, self.nics_per_t0)

    def with_dead_ports(self, number: int, rng: np.random.Generator) -> Fabric:
        """Return the fabric without ``number`` random NIC-T0 links.

        Raise InputError if the fabric has fewer than ``number`` such links.
        """
        if not 0 <= number <= self.ports.size:
            raise InputError(f"the fabric has {self.ports.size:,} NIC-T0 links, not {number:,}")
        ports = self.ports.copy()
        ports.reshape(-1)[rng.choice(ports.size, number, replace=False)] = False
        return Fabric(self.up, ports, self.nics_per_t0)


@dataclass(frozen=True)
class Flows:
    """Flows or classes of equal flows: the T0s of both ends, the number of flows, and the planes in use.

    ``weight[plane, flow]`` is the share of the flow's rate in a plane. ``most`` is the rate that the flow's
    NICs allow. ``ideal`` is the rate of a flow on a fabric without failures. A flow inside one T0 uses no
    links above it.
    """

    src: Ints
    dst: Ints
    count: Floats
    weight: Floats
    most: Floats
    ideal: float = 1.0


@dataclass(frozen=True, slots=True)
class Shares:
    """The rate of each flow in units of ``ideal``, the number of flows, and the number of filling steps."""

    rates: Doubles
    count: Doubles
    steps: int

    @property
    def total(self) -> float:
        """The mean rate of all flows."""
        return float(np.average(self.rates, weights=self.count))

    @property
    def least(self) -> float:
        """The rate of the slowest flow, which limits a synchronous job."""
        return float(self.rates.min())

    def percentile(self, percent: float) -> float:
        """Return the rate that ``percent`` of the flows do not exceed."""
        order = np.argsort(self.rates)
        reached = np.cumsum(self.count[order])
        return float(self.rates[order][np.searchsorted(reached, reached[-1] * percent / 100)])


def permutation(fabric: Fabric, rng: np.random.Generator) -> Flows:
    """Return flows in which every NIC sends to one other NIC and receives from one other NIC."""
    to = rng.permutation(fabric.nics)
    stay = np.flatnonzero(to == np.arange(fabric.nics))
    to[stay] = to[np.roll(stay, 1)] if len(stay) > 1 else to[stay]
    alive = fabric.ports & fabric.ports[:, to]
    planes = alive.sum(axis=0)
    weight = np.where(planes, alive / np.maximum(planes, 1), 0.0).astype(np.float32)
    t0 = (np.arange(fabric.nics) // fabric.nics_per_t0).astype(np.int32)
    return Flows(
        src=t0,
        dst=t0[to],
        count=np.ones(fabric.nics, np.float32),
        weight=weight,
        most=(planes / fabric.planes).astype(np.float32),
    )


def all_to_all(fabric: Fabric) -> Flows:
    """Return flows from every NIC to every other NIC. Raise InputError if a NIC port is dead.

    All flows between the same two T0s are one class, because these flows are equal. A flow's ideal rate is a
    NIC's rate, divided by the number of other NICs.
    """
    if not fabric.ports.all():
        raise InputError("all-to-all is computed with all NIC ports working: kill T0-T1 links alone")
    t0s = fabric.up.shape[1]
    inside = np.bincount(np.arange(fabric.nics) // fabric.nics_per_t0, minlength=t0s)
    count = np.outer(inside, inside) - np.diag(inside)
    src, dst = (side.astype(np.int32).reshape(-1) for side in np.indices((t0s, t0s)))
    used = count.reshape(-1) > 0
    flows = int(used.sum())
    return Flows(
        src=src[used],
        dst=dst[used],
        count=count.reshape(-1)[used].astype(np.float32),
        weight=np.full((fabric.planes, flows), 1 / fabric.planes, np.float32),
        most=np.full(flows, 1 / (fabric.nics - 1), np.float32),
        ideal=1 / (fabric.nics - 1),
    )


def max_min(fabric: Fabric, flows: Flows, spread: Spread = "even", tolerance: float = TOLERANCE) -> Shares:
    """Return max-min fair shares of flows. A flow without a working path in any plane gets 0."""
    planes = [_Plane(fabric, plane, spread) for plane in range(fabric.planes)]
    flows = _without_dead_planes(planes, flows)
    goes_up = flows.src != flows.dst
    rates = np.zeros(len(flows.src), np.float64)
    open_ = flows.most > 0
    level, steps = 0.0, 0
    growing = [_loads_of(plane, number, flows, open_) for number, plane in enumerate(planes)]
    fixed = [(np.zeros_like(up), np.zeros_like(down)) for up, down in growing]
    while open_.any():
        steps += 1
        rise = float(flows.most[open_].min()) - level
        for number, plane in enumerate(planes):
            rise = min(rise, plane.room(growing[number], fixed[number], level))
        level += max(rise, 0.0)
        rates[open_] = level
        full = flows.most <= level * (1 + tolerance)
        for number, plane in enumerate(planes):
            held = plane.holds_back(flows, growing[number], fixed[number], level, tolerance)
            full |= held & goes_up & (flows.weight[number] > 0)
        open_ &= ~full
        for number, plane in enumerate(planes):
            rest = _loads_of(plane, number, flows, open_)
            for before, after, stays in zip(growing[number], rest, fixed[number], strict=True):
                stays += np.maximum(before - after, 0) * np.float32(
                    level
                )  # load of flows whose rate is now final
            growing[number] = rest
    return Shares(rates / flows.ideal, flows.count.astype(np.float64), steps)


def _without_dead_planes(planes: Sequence[_Plane], flows: Flows) -> Flows:
    """Take flows out of planes in which they have no path. The flows' rate limits in other planes stay."""
    weight = flows.weight.copy()
    for number, plane in enumerate(planes):
        weight[number, (flows.src != flows.dst) & plane.cut_off(flows.src, flows.dst)] = 0
    before, left = ((w > 0).sum(axis=0) for w in (flows.weight, weight))
    if (before == left).all():
        return flows
    total = weight.sum(axis=0)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    most = (flows.most * left / np.maximum(before, 1)).astype(np.float32)
    return replace(flows, weight=weight, most=most)


def _loads_of(plane: _Plane, number: int, flows: Flows, open_: Bools) -> tuple[Floats, Floats]:
    """Return the loads on links if each of the open flows (rate not final) has the rate 1."""
    return plane.loads(flows, np.where(open_, flows.weight[number] * flows.count, np.float32(0)))


class _Plane:
    """One plane: its links and their loads. Capacities are in units of a NIC's rate."""

    def __init__(self, fabric: Fabric, number: int, spread: Spread) -> None:
        self._up = fabric.up[number].astype(np.float32)
        self._t0s = self._up.shape[0]
        self._even = spread == "even"
        self._link = 1.0 / fabric.planes
        self._whole = bool(fabric.up[number].all())
        self._paths = self._up @ self._up.T  # number of working paths between two T0s
        if self._even:
            self._capacity = np.where(self._up > 0, np.float32(self._link), np.float32(np.inf))
        else:
            self._capacity = (self._up.sum(axis=1) * self._link)[:, None]

    def cut_off(self, src: Ints, dst: Ints) -> Bools:
        """Return True for each flow that has no working path."""
        found: Bools = self._paths[src, dst] == 0
        return found

    def loads(self, flows: Flows, share: Floats) -> tuple[Floats, Floats]:
        """Return the load on each T0's links up and down, if flow ``i`` puts ``share[i]`` into this plane."""
        share = np.where(flows.src != flows.dst, share, np.float32(0))
        pair = flows.src.astype(np.int64) * self._t0s + flows.dst
        by_pair = np.bincount(pair, weights=share, minlength=self._t0s**2).reshape(self._t0s, self._t0s)
        if not self._even:
            up, down = by_pair.sum(axis=1)[:, None], by_pair.sum(axis=0)[:, None]
            return up.astype(np.float32), down.astype(np.float32)
        each = np.divide(by_pair, self._paths, out=np.zeros_like(by_pair), where=self._paths > 0)
        if self._whole:  # if all links work, every T1 has the same load
            ones = np.ones((1, self._up.shape[1]), np.float32)
            up, down = each.sum(axis=1)[:, None] * ones, each.sum(axis=0)[:, None] * ones
            return up.astype(np.float32), down.astype(np.float32)
        single = each.astype(np.float32)
        return (single @ self._up) * self._up, (single.T @ self._up) * self._up

    def room(self, growing: tuple[Floats, Floats], fixed: tuple[Floats, Floats], level: float) -> float:
        """Return how much the rate of open (not final) flows can rise from ``level`` until a link is full."""
        least = np.inf
        for grows, stays in zip(growing, fixed, strict=True):
            used = grows > 0
            if used.any():
                capacity = np.broadcast_to(self._capacity, grows.shape)[used]
                least = min(least, float(((capacity - stays[used]) / grows[used]).min()) - level)
        return least

    def holds_back(
        self,
        flows: Flows,
        growing: tuple[Floats, Floats],
        fixed: tuple[Floats, Floats],
        level: float,
        tolerance: float,
    ) -> Bools:
        """Return True for each flow that uses a full link.

        All flows whose rate is not final have the rate ``level``.
        """
        full_up, full_down = (
            (grows > 0) & (grows * level * (1 + tolerance) + stays >= self._capacity)
            for grows, stays in zip(growing, fixed, strict=True)
        )
        if not self._even:
            held: Bools = full_up[flows.src, 0] | full_down[flows.dst, 0]
            return held
        pairs = np.zeros((self._t0s, self._t0s), bool)
        for sources, full in ((True, full_up), (False, full_down)):
            rows = np.flatnonzero(full.any(axis=1))
            if len(rows):
                over = (full[rows].astype(np.float32) @ self._up.T) > 0
                if sources:
                    pairs[rows, :] |= over
                else:
                    pairs[:, rows] |= over.T
        found: Bools = pairs[flows.src, flows.dst]
        return found


LongInts = npt.NDArray[np.int64]

_TRIES = 64


def ecmp_permutation(
    built: Built, rng: np.random.Generator, dead_links: int = 0, tolerance: float = TOLERANCE
) -> Shares:
    """Return the shares of a random permutation, one flow for each NIC. ``dead_links`` T0-T1 links are dead.

    A flow without a working path gets 0. Raise InputError for a fabric of several planes, or a fabric with
    fewer than ``dead_links`` such links.
    """
    if built.design.planes != 1:
        raise InputError("flows of one path are computed on one plane")
    if not 0 <= dead_links <= built.links_per_tier:
        raise InputError(f"the fabric has {built.links_per_tier:,} T0-T1 links, not {dead_links:,}")
    to = rng.permutation(built.nics)
    flows = np.flatnonzero(to != np.arange(built.nics))
    dead = np.sort(rng.choice(max(built.links_per_tier, 1), dead_links, replace=False))
    of_flow, link, cut_off = _links_used(built, flows, to[flows], dead, rng)
    rates, steps = max_min_single(of_flow, link, len(flows), tolerance)
    return Shares(np.where(cut_off, 0.0, rates), np.ones(len(flows)), steps)


def _links_used(
    built: Built, src: LongInts, dst: LongInts, dead: LongInts, rng: np.random.Generator
) -> tuple[LongInts, LongInts, Bools]:
    """Return pairs of (flow, link), the links that each flow uses, and a mask of flows without a path.

    Links are numbered from 0 in any order. A flow without a path uses no link.
    """
    half, tiers = built.nics_per_t0, built.design.tiers
    src_t0, dst_t0 = src // half, dst // half
    height = np.zeros(len(src), np.int64)  # number of tiers that the flow climbs above its T0
    for tier in range(tiers - 1):
        # The flow climbs one more tier if its two T0s are in different groups at this tier.
        height += src_t0 // half**tier != dst_t0 // half**tier
    choice = rng.integers(0, half, (tiers, len(src)))
    cut_off = np.zeros(len(src), bool)
    for tried in range(_TRIES):
        hit = np.flatnonzero(
            (height > 0)
            & (np.isin(src_t0 * half + choice[0], dead) | np.isin(dst_t0 * half + choice[0], dead))
        )
        if not len(hit):
            break
        if tried < _TRIES - 1:
            choice[0, hit] = rng.integers(0, half, len(hit))
            continue
        # Few paths work for these flows, so list their working paths.
        up = np.ones((built.tier_sizes[0], half), bool)
        up.reshape(-1)[dead] = False
        working = up[src_t0[hit]] & up[dst_t0[hit]]
        choice[0, hit] = np.argmax(rng.random(working.shape) * working, axis=1)
        cut_off[hit] = ~working.any(axis=1)
    height[cut_off] = 0
    pairs = []
    for tier in range(tiers - 1):
        climbs = np.flatnonzero(height > tier)
        over = np.zeros(len(climbs), np.int64)  # number of the upper switch, from the chosen uplinks
        for below in range(tier + 1):
            over = over * half + choice[below, climbs]
        for way, t0 in enumerate((src_t0, dst_t0)):
            group = t0[climbs] // half**tier
            # `name` is a unique number for each link, made of tier, direction, group and upper switch.
            name = ((group * half ** (tier + 1) + over) * 2 + way) * tiers + tier
            pairs.append(np.stack([climbs, name]))
    every = np.concatenate([np.empty((2, 0), np.int64), *pairs], axis=1)
    _, link = np.unique(every[1], return_inverse=True)
    return every[0], link.astype(np.int64), cut_off


def max_min_single(
    of_flow: LongInts, link: LongInts, flows: int, tolerance: float = TOLERANCE
) -> tuple[Doubles, int]:
    """Return max-min rates of flows over links of rate 1, and the number of steps.

    The input is pairs of (flow, link). No flow gets more than 1, the rate of its NIC.
    """
    links = int(link.max(initial=-1)) + 1
    rates = np.zeros(flows)
    open_ = np.ones(flows, bool)
    left = np.ones(links)  # free capacity: 1 minus the final rates of flows
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
        of_flow, link = of_flow[goes_on], link[goes_on]  # keep the flows whose rates still rise
        open_ &= ~stops
    return rates, steps
