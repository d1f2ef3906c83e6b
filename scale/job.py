"""What failures make of a synchronous job: its speed, its stalls, its restarts, its goodput.

A synchronous job is as fast as its slowest NIC. With a share f of each step spent on the network, and a
share c of the slowest NIC's bandwidth left, it runs at 1 / (1 - f + f / c) of its speed. ``c`` is the product
of what dead ports leave (1 - ports out / planes) and of what dead links above the T0 leave (1 - links out /
uplinks of that T0 in that plane, since planes are kept equal).

Goodput is the product of three shares that are counted separately: the time that is not spent on restarts
and repeated work, the time that is not stalled, and the mean speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mrclab.experiments.measure import life
from mrclab.scale.fabric import Built
from mrclab.scale.failures import Floats, Outages, by_name, covered_hours, most_of_a_group, out_at
from mrclab.scale.parts import Job

HOUR_NS = 3600 * 10**9


PORT_KINDS = ("host_link_flap", "host_link", "t0_reboot", "t0")
"""Failures that take a port of a NIC."""
FLAP_KINDS = ("host_link_flap", "fabric_link_flap")
"""Failures that a switch sees at once, by the loss of the carrier."""


@dataclass(frozen=True, slots=True)
class Life:
    """One job's life: restarts, and shares of time.

    ``capacity`` is the slowest NIC's share of its bandwidth, ``speed`` what that makes of the job's speed, at
    each instant that was looked at.
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
    """Return the life of a job of so many hours on a fabric with these failures.

    ``sprays``: with MRC; else on a fabric that routes around failures and a transport of one path.
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
    """Return which failures cut NICs off for as long as they last, and which stall the job for a given time.

    A NIC with one port is cut off by whatever takes that port or its T0.
    """
    ports = by_name(outages, *PORT_KINDS)
    fabric = by_name(outages, "fabric_link_flap", "fabric_link", "upper_reboot", "upper")
    stalls = [(outage, stall_ns(job, outage.kind.name, sprays=sprays)) for outage in fabric]
    if built.design.planes == 1:
        return ports, stalls
    return [], stalls + [(outage, stall_ns(job, outage.kind.name, sprays=sprays)) for outage in ports]


def stall_ns(job: Job, kind: str, *, sprays: bool) -> int:
    """Return how long a failure of this kind stalls a job whose NICs it does not cut off."""
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
    """Return the share of bandwidth that the slowest NIC has at each instant.

    What cuts a NIC off is no matter of speed: the job waits, or restarts without that NIC.
    """
    planes, half = built.design.planes, built.nics_per_t0
    apart = {outage.kind.name for outage in isolated}
    ports = np.zeros(number, np.int64)
    for outage in by_name(outages, "host_link_flap", "host_link"):
        if outage.kind.name not in apart:
            ports += most_of_a_group(out_at(outage, instants), planes, number)
    for outage in by_name(outages, "t0_reboot", "t0"):
        if outage.kind.name not in apart:
            ports = np.maximum(ports, most_of_a_group(out_at(outage, instants), 1, number))
    links = np.zeros(number, np.int64)
    for outage in by_name(outages, "fabric_link_flap", "fabric_link"):
        links += most_of_a_group(out_at(outage, instants), half, number)
    upper = np.zeros(number)
    for outage in by_name(outages, "upper_reboot", "upper"):
        upper += np.bincount(out_at(outage, instants)[0], minlength=number) / outage.kind.count
    left = (1.0 - np.minimum(ports / planes, 1.0)) * (1.0 - np.minimum(links / half + planes * upper, 1.0))
    return np.asarray(left, np.float64)


def useful_share(crash_at: Floats, hours: float, job: Job) -> float:
    """Return the share of the time in which work was done that lasted.

    A crash takes the work since the last checkpoint; the job runs again after the timeout in which the crash
    was noticed and a restart. Checkpoints are taken at equal times from each start and cost nothing.
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
    """Return the same for crashes at random, in closed form (`mrclab.experiments.measure.life`)."""
    pause_hours = (job.timeout_ns + job.restart_ns) / HOUR_NS
    return life.useful_share(crashes_per_hour, job.checkpoint_ns / HOUR_NS, pause_hours)
