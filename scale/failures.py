"""Failures during a job: when each part fails, and how many parts are down at the same time.

A part is down from its failure until its repair. Failures of a kind are a Poisson process of ``count`` parts,
each with its mean time between failures. Repair times are exponential. So the number of parts that are down
is distributed as in an M/G/infinity queue. This number is Poisson. Its mean is the rate times the mean repair
time, for any distribution of repair times. In this model a part that is down may fail again. The relative
error of the number is therefore the share of parts that are down, about 1e-5.

Times are in hours from the job's start. Arrays of one kind have one entry for each failure, in order of
start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mrclab.scale.fabric import Built
from mrclab.scale.parts import Failures

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WARM_UP_REPAIRS = 20
"""Random failures begin this number of mean repair times before the job: some last into the job."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure: number of parts, hours between failures of one part, hours of a repair."""

    name: str
    count: int
    mtbf_hours: float
    repair_hours: float

    @property
    def per_hour(self) -> float:
        """The number of failures per hour, over all parts."""
        return self.count / self.mtbf_hours

    @property
    def mean_out(self) -> float:
        """The mean number of parts that are down at the same time, by formula."""
        return self.per_hour * self.repair_hours


@dataclass(frozen=True, slots=True)
class Outages:
    """The failures of one kind. ``part`` has the numbers of the parts that failed."""

    kind: Kind
    start: Floats
    end: Floats
    part: Ints


def kinds_of(built: Built, failures: Failures) -> tuple[Kind, ...]:
    """Return the kinds of failure of a fabric, with the number of parts of each kind."""
    planes = built.design.planes
    t0s = built.tier_sizes[0] * planes
    upper = built.switches - t0s
    counts = {
        "fabric_link_flap": ("fabric_link_flap", built.fabric_links),
        "fabric_link": ("fabric_link", built.fabric_links),
        "host_link_flap": ("host_link_flap", built.host_links),
        "host_link": ("host_link", built.host_links),
        "nic": ("nic", built.nics),
        "t0_reboot": ("switch_reboot", t0s),
        "t0": ("switch", t0s),
        "upper_reboot": ("switch_reboot", upper),
        "upper": ("switch", upper),
    }
    parts = failures.by_kind()
    return tuple(
        Kind(name, count, parts[part].mtbf_hours, parts[part].repair_hours)
        for name, (part, count) in counts.items()
        if count
    )


def draw(kind: Kind, hours: float, rng: np.random.Generator) -> Outages:
    """Return random failures of a kind. Each failure overlaps a job of ``hours`` hours."""
    early = WARM_UP_REPAIRS * kind.repair_hours
    number = rng.poisson(kind.per_hour * (hours + early))
    start = np.sort(rng.uniform(-early, hours, number))
    end = start + rng.exponential(kind.repair_hours, number)
    part = rng.integers(0, kind.count, number)
    alive = end > 0
    return Outages(kind, start[alive], end[alive], part[alive])


def most_at_once(outages: Outages, hours: float) -> int:
    """Return the largest number of parts that were down at the same time during the job."""
    if not len(outages.start):
        return 0
    times = np.concatenate([np.maximum(outages.start, 0.0), outages.end])
    steps = np.concatenate([np.ones(len(outages.start), np.int64), -np.ones(len(outages.end), np.int64)])
    order = np.lexsort((steps, times))  # at equal times, repairs come before failures
    inside = times[order] <= hours
    running = np.cumsum(steps[order])[inside]
    return int(running.max(initial=0))


def out_at(outages: Outages, instants: Floats) -> tuple[Ints, Ints]:
    """Return the parts that are down at each instant: pairs of (index of instant, number of part).

    ``instants`` must be sorted.
    """
    first = np.searchsorted(instants, outages.start, side="left")
    last = np.searchsorted(instants, outages.end, side="left")
    times = last - first
    which = np.repeat(first - np.concatenate([[0], np.cumsum(times)[:-1]]), times) + np.arange(times.sum())
    return which.astype(np.int64), np.repeat(outages.part, times)


def most_of_a_group(pairs: tuple[Ints, Ints], group_size: int, instants: int) -> Ints:
    """Return for each instant the largest number of parts of one group that are down.

    A group has ``group_size`` parts with consecutive numbers. A part with two failures at the same time
    counts once.
    """
    most = np.zeros(instants, np.int64)
    if not len(pairs[0]):
        return most
    distinct = np.unique(np.stack(pairs), axis=1)
    groups = np.stack([distinct[0], distinct[1] // group_size])
    of, counts = np.unique(groups, axis=1, return_counts=True)
    np.maximum.at(most, of[0], counts)
    return most


def covered_hours(start: Floats, length: Floats | float, hours: float) -> float:
    """Return the length of the part of [0, hours] that the intervals cover. ``start`` must be sorted."""
    begin = np.clip(start, 0.0, hours)
    end = np.clip(start + length, 0.0, hours)
    reached = np.maximum.accumulate(np.concatenate([[0.0], end]))
    return float(np.maximum(reached[1:] - np.maximum(begin, reached[:-1]), 0.0).sum())


def by_name(outages: Mapping[str, Outages], *names: str) -> list[Outages]:
    """Return the outages of these kinds, without kinds that the fabric does not have."""
    return [outages[name] for name in names if name in outages]
