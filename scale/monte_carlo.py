"""Many lives of a job on one fabric: failures, capacity, restarts and goodput, next to closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mrclab.scale.fabric import Built
from mrclab.scale.failures import Floats, Kind, draw, kinds_of, most_at_once, out_at
from mrclab.scale.job import PORT_KINDS, Life, live, stall_ns, useful_share_expected
from mrclab.scale.parts import Job, Parts

INSTANTS = 400
"""Moments of a life at which capacity and failures are counted."""
DAYS = 90


@dataclass(frozen=True, slots=True)
class Count:
    """The failures of a kind in a job: how many, how many out at once, next to the closed forms."""

    kind: Kind
    events: float
    events_expected: float
    out_mean: float
    out_expected: float
    out_p99: float
    out_most: float


@dataclass(frozen=True)
class Study:
    """A summary of the lives of a job. ``lives`` are those runs, in order."""

    name: str
    built: Built
    sprays: bool
    hours: float
    counts: tuple[Count, ...]
    lives: tuple[Life, ...]
    restarts_expected: float
    useful_expected: float
    links_out: Floats
    """Share of the time with 0, 1, 2, ... links between switches out."""

    @property
    def restarts(self) -> Floats:
        """Restarts of each life."""
        return np.array([life.restarts for life in self.lives], np.float64)

    @property
    def goodput(self) -> Floats:
        """Goodput of each life, of failures in the network alone."""
        return np.array([life.goodput for life in self.lives])

    @property
    def goodput_with_others(self) -> Floats:
        """Goodput of each life, with interruptions of other causes."""
        return np.array([life.goodput_with_others for life in self.lives])

    @property
    def useful(self) -> Floats:
        """Share of each life that was not lost to restarts."""
        return np.array([life.useful for life in self.lives])

    @property
    def stalled(self) -> Floats:
        """Share of each life that was stalled."""
        return np.array([life.stalled for life in self.lives])

    @property
    def capacity(self) -> Floats:
        """The slowest NIC's share of its bandwidth, at all instants of all lives."""
        return np.concatenate([life.capacity for life in self.lives])


def study(
    name: str, built: Built, parts: Parts, *, sprays: bool, runs: int, seed: int, days: float = DAYS
) -> Study:
    """Draw so many lives of a job over all NICs of a fabric. The same seed gives the same study."""
    lives, tallies = [], []
    hours = 24.0 * days
    kinds = kinds_of(built, parts.failures)
    for rng in _generators(seed, runs):
        instants = np.sort(rng.uniform(0, hours, INSTANTS))
        outages = {kind.name: draw(kind, hours, rng) for kind in kinds}
        tallies.append(
            [
                (
                    int((outage.start >= 0).sum()),
                    np.bincount(out_at(outage, instants)[0], minlength=INSTANTS),
                    most_at_once(outage, hours),
                )
                for outage in outages.values()
            ]
        )
        lives.append(live(built, outages, parts.job, sprays=sprays, hours=hours, instants=instants, rng=rng))
    counts = tuple(
        Count(
            kind=kind,
            events=float(np.mean([tally[place][0] for tally in tallies])),
            events_expected=kind.per_hour * hours,
            out_mean=float(np.mean([tally[place][1] for tally in tallies])),
            out_expected=kind.mean_out,
            out_p99=float(np.percentile([tally[place][1] for tally in tallies], 99)),
            out_most=float(np.mean([tally[place][2] for tally in tallies])),
        )
        for place, kind in enumerate(kinds)
    )
    crashes = restarts_per_hour(built, kinds, parts.job, sprays=sprays)
    links = [place for place, kind in enumerate(kinds) if kind.name.startswith("fabric_link")]
    out = [sum((tally[place][1] for place in links), np.zeros(INSTANTS, np.int64)) for tally in tallies]
    return Study(
        name,
        built,
        sprays,
        hours,
        counts,
        tuple(lives),
        crashes * hours,
        useful_share_expected(crashes, parts.job),
        np.bincount(np.concatenate(out)) / (INSTANTS * runs),
    )


def restarts_per_hour(built: Built, kinds: tuple[Kind, ...], job: Job, *, sprays: bool) -> float:
    """Return how often the network ends a job, in closed form."""
    hour_ns = 3600e9
    limit = job.timeout_ns / hour_ns
    total = 0.0
    for kind in kinds:
        if kind.name == "nic":
            total += kind.per_hour
        elif kind.name in PORT_KINDS and built.design.planes == 1:
            total += kind.per_hour * float(np.exp(-limit / kind.repair_hours))
        else:
            total += kind.per_hour * (stall_ns(job, kind.name, sprays=sprays) > job.timeout_ns)
    return total


def _generators(seed: int, number: int) -> Iterator[np.random.Generator]:
    for child in np.random.SeedSequence(seed).spawn(number):
        yield np.random.Generator(np.random.PCG64(child))
