"""Compare the shares that `mrclab scale` computes with simulated packets, on a small fabric."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from benchmarks.kit.closed_forms import STILL, Point, payload_rate
from benchmarks.kit.loads import Load, fabric_of
from mrclab.scale.shares import Fabric, Flows, Shares, Spread, max_min

PLANES, RACKS, HOSTS_PER_RACK = 4, 4, 4
NICS = RACKS * HOSTS_PER_RACK


def shares_points() -> Iterator[Point]:
    """Check that the simulated shares are between the shares of the model's spreads "even" and "adaptive"."""
    for dead in (0, 2, 6, 12):
        rng = random.Random(dead)
        links = [(p, a, b) for p in range(PLANES) for a in range(RACKS) for b in range(HOSTS_PER_RACK)]
        cut = rng.sample(links, dead)
        to = [(n + HOSTS_PER_RACK * (1 + n % HOSTS_PER_RACK % 3)) % NICS for n in range(NICS)]
        rates = packets(cut, to)
        even, adaptive = model(cut, to, "even"), model(cut, to, "adaptive")
        mean, least = sum(rates) / NICS, min(rates)
        yield Point(f"{dead} links dead: mean", min(max(mean, even.total), adaptive.total), mean, 0.03, True)
        yield Point(
            f"{dead} links dead: slowest", min(max(least, even.least), adaptive.least), least, 0.15, True
        )


def model(cut: list[tuple[int, int, int]], to: list[int], spread: Spread) -> Shares:
    """Return the shares that `mrclab scale` computes."""
    up = np.ones((PLANES, RACKS, HOSTS_PER_RACK), bool)
    for link in cut:
        up[link] = False
    fabric = Fabric(up, np.ones((PLANES, NICS), bool), HOSTS_PER_RACK)
    rack = (np.arange(NICS) // HOSTS_PER_RACK).astype(np.int32)
    ones = np.ones(NICS, np.float32)
    weight = np.full((PLANES, NICS), 1 / PLANES, np.float32)
    return max_min(fabric, Flows(rack, rack[to], ones, weight, ones), spread)


def packets(cut: list[tuple[int, int, int]], to: list[int]) -> list[float]:
    """Return the shares of the flows of a run under NSCC, with links that are dead from the start.

    If no link is dead, the run uses the options `STILL`, so that every EV stays in use.
    """
    load = Load(fabric_of(PLANES, RACKS, HOSTS_PER_RACK, NICS), {} if cut else STILL, 1)
    for plane, t0, t1 in cut:
        ends = f"p{plane}-t0-{t0}", f"p{plane}-t1-{t1}"
        for near, far in (ends, ends[::-1]):
            load.network.links[near, far].set_dead(True)
    for src, dst in enumerate(to):
        load.flow(f"h{src}", f"h{dst}")
    rates, _, _ = load.measure(2_000_000)
    return [rate / PLANES / payload_rate(100) for rate in rates]
