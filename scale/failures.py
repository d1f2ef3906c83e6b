"""Failures over the life of a job: when each part fails, how many are out at once, which hosts are hit.

Failures of a kind come as a Poisson process: ``count`` parts, each with its mean time between failures; a
repair takes an exponential time. So the number out at once is that of an M/G/infinity queue: Poisson with
mean rate times repair, for any distribution of repairs. That a part which is out cannot fail again is left
out: its error is the share of parts out, some 1e-5 here.

Times are in hours from the job's start. Arrays of one kind have one entry per failure, by start.
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
"""Failures before the job's start may last into it: from so many mean repairs before it they are drawn."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure: how many parts, and hours between failures of one and of a repair."""

    name: str
    count: int
    mtbf_hours: float
    repair_hours: float

    @property
    def per_hour(self) -> float:
        """Failures of all parts in an hour."""
        return self.count / self.mtbf_hours

    @property
    def mean_out(self) -> float:
        """Parts out at once, on average (closed form)."""
        return self.per_hour * self.repair_hours


@dataclass(frozen=True, slots=True)
class Outages:
    """The failures of one kind: ``part`` is the number of the part that failed."""

    kind: Kind
    start: Floats
    end: Floats
    part: Ints


def kinds_of(built: Built, failures: Failures) -> tuple[Kind, ...]:
    """Return the kinds of failure of a fabric, with how many parts each has."""
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
    """Return the failures of a kind that touch a job of so many hours."""
    early = WARM_UP_REPAIRS * kind.repair_hours
    number = rng.poisson(kind.per_hour * (hours + early))
    start = np.sort(rng.uniform(-early, hours, number))
    end = start + rng.exponential(kind.repair_hours, number)
    part = rng.integers(0, kind.count, number)
    alive = end > 0
    return Outages(kind, start[alive], end[alive], part[alive])


def most_at_once(outages: Outages, hours: float) -> int:
    """Return the largest number out at once during the job."""
    if not len(outages.start):
        return 0
    times = np.concatenate([np.maximum(outages.start, 0.0), outages.end])
    steps = np.concatenate([np.ones(len(outages.start), np.int64), -np.ones(len(outages.end), np.int64)])
    order = np.lexsort((steps, times))  # at one moment, repairs before failures
    inside = times[order] <= hours
    running = np.cumsum(steps[order])[inside]
    return int(running.max(initial=0))


def out_at(outages: Outages, instants: Floats) -> tuple[Ints, Ints]:
    """Return the parts that are out at each instant: pairs of (index of the instant, number of the part).

    ``instants`` are sorted.
    """
    first = np.searchsorted(instants, outages.start, side="left")
    last = np.searchsorted(instants, outages.end, side="left")
    times = last - first
    which = np.repeat(first - np.concatenate([[0], np.cumsum(times)[:-1]]), times) + np.arange(times.sum())
    return which.astype(np.int64), np.repeat(outages.part, times)


def most_of_a_group(pairs: tuple[Ints, Ints], group_size: int, instants: int) -> Ints:
    """Return for each instant the largest number of parts out in one group of ``group_size`` neighbours.

    A part that is out twice over counts once.
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
    """Return how much of [0, hours] the intervals cover, overlaps once. ``start`` is sorted."""
    begin = np.clip(start, 0.0, hours)
    end = np.clip(start + length, 0.0, hours)
    reached = np.maximum.accumulate(np.concatenate([[0.0], end]))
    return float(np.maximum(reached[1:] - np.maximum(begin, reached[:-1]), 0.0).sum())


def by_name(outages: Mapping[str, Outages], *names: str) -> list[Outages]:
    """Return those of some kinds that the fabric has."""
    return [outages[name] for name in names if name in outages]
