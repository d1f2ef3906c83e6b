"""The effect of failures on a synchronous job: speed, stalls, restarts and goodput.

A synchronous job is as fast as its slowest NIC. Without failures, a share f of each step is spent on the
network. If the slowest NIC has a share c of its bandwidth left, the job runs at 1 / (1 - f + f / c) of its
speed. ``c`` is the product of two factors. For dead ports, the factor is (1 - dead ports of the NIC /
planes). For dead links above the NIC's T0, the factor is (1 - dead links / uplinks of the T0 in one plane),
because planes are loaded equally. A link or switch of a higher tier carries a smaller share of the T0's
traffic, and counts with this share (`mrclab.scale.fabric.blast_radius`).

Goodput is the product of three shares: the time without restarts and repeated work, the time without stalls,
and the mean speed. Many runs are simulated on one fabric and compared with formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mrclab.experiments.measure import life
from mrclab.scale.fabric import Built
from mrclab.scale.failures import (
    Floats,
    Ints,
    Kind,
    Outages,
    by_name,
    covered_hours,
    draw,
    kinds_of,
    most_at_once,
    most_of_a_group,
    out_at,
)
from mrclab.scale.parts import Job, Parts

HOUR_NS = 3600 * 10**9


PORT_KINDS = ("host_link_flap", "host_link", "t0_reboot", "t0")
"""Failures that take a port of a NIC down."""
FLAP_KINDS = ("host_link_flap", "fabric_link_flap")
"""Failures that a switch notices at once, because the carrier is lost."""


@dataclass(frozen=True, slots=True)
class Life:
    """One simulated run of a job: the number of restarts, and shares of the run's time.

    ``capacity`` is the usable share of the slowest NIC's bandwidth at each sampled instant. ``speed`` is the
    resulting share of the job's full speed.
    """

    restarts: int
    useful: float
    stalled: float
    capacity: Floats
    speed: Floats
    goodput: float
    goodput_with_others: float


def live(
    built: Built,
    outages: Mapping[str, Outages],
    job: Job,
    *,
    sprays: bool,
    hours: float,
    instants: Floats,
    rng: np.random.Generator,
) -> Life:
    """Simulate a run of ``hours`` hours of a job, on a fabric with the failures in ``outages``.

    If ``sprays`` is true, the transport is MRC. Otherwise the transport uses one path, and the fabric routes
    around failures.
    """
    isolated, stalls = _consequences(built, outages, job, sprays=sprays)
    limit = job.timeout_ns / HOUR_NS
    crashes = [outage.start for outage in by_name(outages, "nic")]
    waits: list[tuple[Floats, Floats]] = []
    for outage in isolated:
        length = outage.end - outage.start
        crashes.append(outage.start[length > limit])
        waits.append((outage.start[length <= limit], length[length <= limit]))
    for outage, span_ns in stalls:
        span = span_ns / HOUR_NS
        if span > limit:
            crashes.append(outage.start)
        else:
            waits.append((outage.start, np.full(len(outage.start), span)))
    crash_at = np.sort(np.concatenate([np.empty(0), *crashes]))
    crash_at = crash_at[crash_at >= 0]
    others = rng.uniform(0, hours, rng.poisson(hours * built.nics / job.other_mtbf_hours))
    useful = useful_share(crash_at, hours, job)
    stalled = _covered(waits, hours) / hours
    capacity = _slowest(built, outages, len(instants), instants, isolated)
    speed = 1.0 / (1.0 - job.communication + job.communication / np.maximum(capacity, 1e-9))
    rest = (1.0 - stalled) * float(speed.mean())
    with_others = useful_share(np.sort(np.concatenate([crash_at, others])), hours, job)
    return Life(len(crash_at), useful, stalled, capacity, speed, useful * rest, with_others * rest)


def _consequences(
    built: Built, outages: Mapping[str, Outages], job: Job, *, sprays: bool
) -> tuple[list[Outages], list[tuple[Outages, int]]]:
    """Return the failures that isolate NICs until the repair, and the failures with a fixed stall time.

    A NIC with one port is isolated by every failure of that port or its T0.
    """
    ports = by_name(outages, *PORT_KINDS)
    fabric = by_name(outages, "fabric_link_flap", "fabric_link", "upper_reboot", "upper")
    stalls = [(outage, stall_ns(job, outage.kind.name, sprays=sprays)) for outage in fabric]
    if built.design.planes == 1:
        return ports, stalls
    return [], stalls + [(outage, stall_ns(job, outage.kind.name, sprays=sprays)) for outage in ports]


def stall_ns(job: Job, kind: str, *, sprays: bool) -> int:
    """Return the time (ns) for which a failure of this kind stalls a job, if no NIC is isolated."""
    if sprays:
        return job.mrc_port_stall_ns if kind in PORT_KINDS else job.mrc_stall_ns
    return job.carrier_ns if kind in FLAP_KINDS else job.reroute_ns


def _covered(waits: Sequence[tuple[Floats, Floats]], hours: float) -> float:
    start = np.concatenate([np.empty(0), *(begin for begin, _ in waits)])
    length = np.concatenate([np.empty(0), *(span for _, span in waits)])
    order = np.argsort(start, kind="stable")
    return covered_hours(start[order], length[order], hours)


def _slowest(
    built: Built,
    outages: Mapping[str, Outages],
    number: int,
    instants: Floats,
    isolated: Sequence[Outages],
) -> Floats:
    """Return the slowest NIC's share of its bandwidth at each instant.

    Failures that isolate a NIC are left out, because the job then waits, or restarts without that NIC.
    """
    planes = built.design.planes
    apart = {outage.kind.name for outage in isolated}
    ports = np.zeros(number, np.int64)
    for outage in by_name(outages, "host_link_flap", "host_link"):
        if outage.kind.name not in apart:
            ports += most_of_a_group(out_at(outage, instants), planes, number)
    for outage in by_name(outages, "t0_reboot", "t0"):
        if outage.kind.name not in apart:
            ports = np.maximum(ports, most_of_a_group(out_at(outage, instants), 1, number))
    above = np.zeros(number)
    for outage in by_name(outages, "fabric_link_flap", "fabric_link"):
        above += _lost_above(out_at(outage, instants), number, _link_groups(built))
    for outage in by_name(outages, "upper_reboot", "upper"):
        above += _lost_above(out_at(outage, instants), number, _switch_groups(built))
    left = (1.0 - np.minimum(ports / planes, 1.0)) * (1.0 - np.minimum(above, 1.0))
    return np.asarray(left, np.float64)


_Groups = list[tuple[int, int]]
"""For each tier above the T0s: the number of parts, and the size of a group. A T0 spreads the traffic of one
plane over all parts of one group, and uses no part of another group in this plane."""


def _link_groups(built: Built) -> _Groups:
    return [(built.links_per_tier, built.nics_per_t0**tier) for tier in range(1, built.design.tiers)]


def _switch_groups(built: Built) -> _Groups:
    planes, half = built.design.planes, built.nics_per_t0
    return [(size * planes, min(half**tier, size)) for tier, size in enumerate(built.tier_sizes) if tier]


def _lost_above(out: tuple[Ints, Ints], number: int, tiers: _Groups) -> Floats:
    """Return the share of a plane that the T0 with the most failures above it loses, at each instant.

    ``out`` has the parts that are down (`out_at`). Parts are numbered tier by tier, from the lowest tier on.
    """
    lost, first = np.zeros(number), 0
    for count, group in tiers:
        here = (out[1] >= first) & (out[1] < first + count)
        lost += most_of_a_group((out[0][here], out[1][here] - first), group, number) / group
        first += count
    return lost


def useful_share(crash_at: Floats, hours: float, job: Job) -> float:
    """Return the share of the time in which the job did work that no later crash undid.

    A crash undoes the work since the last checkpoint. After the timeout, which detects the crash, the job is
    restarted. Checkpoints are taken at equal intervals after each start and take no time.
    """
    tau = job.checkpoint_ns / HOUR_NS
    pause = (job.timeout_ns + job.restart_ns) / HOUR_NS
    done, began = 0.0, 0.0
    for crash in crash_at.tolist():
        if crash >= hours:
            break
        if crash > began:
            ran = crash - began
            done += ran - ran % tau if tau else ran
        began = crash + pause
    return (done + max(hours - began, 0.0)) / hours


def useful_share_expected(crashes_per_hour: float, job: Job) -> float:
    """Return the expected `useful_share` if crashes are random, by the formula in `measure.life`."""
    pause_hours = (job.timeout_ns + job.restart_ns) / HOUR_NS
    return life.useful_share(crashes_per_hour, job.checkpoint_ns / HOUR_NS, pause_hours)


INSTANTS = 400
"""Number of instants of a simulated run at which capacity and failures are sampled."""
DAYS = 90


@dataclass(frozen=True, slots=True)
class Count:
    """The failures of one kind: number of failures, and number of parts that are down at the same time.

    The values are means over simulated runs; only ``out_p99`` is a 99th percentile. The fields ``*_expected``
    are means from formulas.
    """

    kind: Kind
    events: float
    events_expected: float
    out_mean: float
    out_expected: float
    out_p99: float
    out_most: float


@dataclass(frozen=True)
class Study:
    """A summary of many simulated runs of a job. ``lives`` has the result of each run, in order."""

    name: str
    built: Built
    sprays: bool
    hours: float
    counts: tuple[Count, ...]
    lives: tuple[Life, ...]
    restarts_expected: float
    useful_expected: float
    links_out: Floats
    """The shares of the time in which 0, 1, 2, ... links between switches are down."""

    @property
    def restarts(self) -> Floats:
        """Number of restarts in each simulated run."""
        return np.array([life.restarts for life in self.lives], np.float64)

    @property
    def goodput(self) -> Floats:
        """Goodput of each simulated run, if only parts of the network fail."""
        return np.array([life.goodput for life in self.lives])

    @property
    def goodput_with_others(self) -> Floats:
        """Goodput of each simulated run, if causes outside the network also interrupt the job."""
        return np.array([life.goodput_with_others for life in self.lives])

    @property
    def useful(self) -> Floats:
        """Share of each simulated run's time that was not lost to restarts."""
        return np.array([life.useful for life in self.lives])

    @property
    def stalled(self) -> Floats:
        """Share of each simulated run's time in which the job was stalled."""
        return np.array([life.stalled for life in self.lives])

    @property
    def capacity(self) -> Floats:
        """The usable share of the slowest NIC's bandwidth, for each sampled instant of each run."""
        return np.concatenate([life.capacity for life in self.lives])


def study(
    name: str, built: Built, parts: Parts, *, sprays: bool, runs: int, seed: int, days: float = DAYS
) -> Study:
    """Simulate ``runs`` runs of a job over all NICs of a fabric. Equal seeds give equal studies."""
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
    """Compute, with formulas, how many job restarts per hour the network causes."""
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
