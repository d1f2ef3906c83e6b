"""Phases, the times between two changes of a run's faults, and checks of the rate in each phase."""

from __future__ import annotations

from dataclasses import dataclass

from mrclab.experiments.judging.criteria import at_least, at_most, unless_control_fails, within
from mrclab.experiments.judging.readings import (
    Result,
    Series,
    Window,
    duration_us,
    mean_of,
    series_of,
    transport_of,
)
from mrclab.experiments.judging.scale import expected_share, fabric_of, full_mbps, placement_of
from mrclab.experiments.judging.verdict import Check

SAME_CHANGE = 0.02
"""Faults that begin or end closer together than this share of the measurement count as one change."""
LEVEL_MARGIN = 0.01
"""The allowed error of a level (a phase's rate), as a share of the fault-free rate."""
LEVEL_SOURCE = "paths left in the topology (paper: its steps are k/n to 1 % of the whole)"
PAPER_PAYLOAD_SHARE = 392 / 400
"""The largest payload rate of a flow in the paper (figure 20), as a share of its NIC's rate."""
SAMPLE_US = 200_000.0
"""The width of the paper's time bins, us."""
FEWEST_SAMPLES = 15
"""The smallest number of bins in a run. In a short run, the bins are narrower than the paper's."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run in which the set of broken places did not change."""

    window: Window
    broken: tuple[str, ...]


def phases_of(result: Result, transport: str, repetition: int) -> list[Phase]:
    """Return the phases of a repetition in order of time. The first phase ends with the first fault."""
    end_us = duration_us(result)
    changes: list[tuple[float, str, bool]] = []
    for fault in transport_of(result, transport).get("faults", ()):
        if fault["repetition"] != repetition:
            continue
        middle = (fault["t_before_ns"] + fault["t_after_ns"]) // 2
        begin_us = fault["at_us"]
        changes.append((begin_us, fault["where"], True))
        if fault.get("restore_after_ns") is not None:
            changes.append((begin_us + (fault["restore_after_ns"] - middle) / 1e3, fault["where"], False))
    found: list[Phase] = []
    broken: dict[str, None] = {}
    begin = 0.0
    apart = SAME_CHANGE * end_us
    for at_us, where, breaks in sorted(changes):
        if at_us >= end_us - apart:
            break
        if not found or at_us - begin > apart:
            found.append(Phase((begin, at_us), tuple(broken)))
            begin = at_us
        if breaks:
            broken[where] = None
        else:
            broken.pop(where, None)
    return [*found, Phase((begin, end_us), tuple(broken))]


def judge_full(result: Result, transport: str, gbps: float, of_gbps: float) -> Check:
    """Check that the fault-free rate is at least the paper's share of the links' capacity.

    In the paper, the rate was ``gbps`` on links of ``of_gbps``. With a smaller share, the links that still
    work could carry all traffic, and a fault would have no effect.
    """
    shares: list[float | None] = []
    for series in series_of(result, transport):
        phases = phases_of(result, transport, series.repetition)
        if len(phases) < 2:
            continue
        full = full_mbps(result, transport, series.repetition)
        shares.append(series.rate_mbps(phases[0].window) / full if full else None)
    least = gbps / of_gbps / PAPER_PAYLOAD_SHARE
    source = f"paper: {gbps:g} of {of_gbps:g} Gbit/s, of which 392 of 400 are payload (figure 20)"
    return at_least("fault-free rate over the links' capacity", mean_of(shares), least, source)


def judge_levels(
    result: Result, transport: str, dip_share: float | None = None, dip_source: str = ""
) -> list[Check]:
    """Check each phase with faults: in its second half, the rate must be the rate of the working paths.

    If ``dip_share`` is given, at most this share of the data may be missing in the whole phase.
    """
    fabric = fabric_of(result, transport)
    levels: dict[int, list[float | None]] = {}
    dips: dict[int, list[float | None]] = {}
    wanted: dict[int, float] = {}
    for series in series_of(result, transport):
        phases = phases_of(result, transport, series.repetition)
        usual = series.rate_mbps(phases[0].window)
        placement = placement_of(result, fabric, series.repetition)
        src, dst = (placement.hosts[rank] for rank in placement.pairs[0])
        for number, phase in enumerate(phases[1:], 1):
            begin, end = phase.window
            share = expected_share(fabric, src, dst, phase.broken)
            wanted[number] = share
            level = series.rate_mbps(((begin + end) / 2, end)) / usual if usual else None
            levels.setdefault(number, []).append(level)
            missing = 1 - series.rate_mbps(phase.window) / (share * usual) if share and usual else None
            dips.setdefault(number, []).append(missing)
    checks = []
    for number, share in wanted.items():
        name = f"phase {number}"
        asked = f"{name}: share of the fault-free rate"
        checks.append(within(asked, mean_of(levels[number]), share, LEVEL_MARGIN, LEVEL_SOURCE))
        if share and dip_share is not None:
            asked = f"{name}: share of its level that is missing, dip included"
            checks.append(at_most(asked, mean_of(dips[number]), dip_share, dip_source))
    return checks or [Check("phases with faults", "none", None, LEVEL_SOURCE)]


def sample_us(result: Result) -> float:
    """Return the width of a time bin, us: 200 ms as in the paper, or less in a short run."""
    return min(SAMPLE_US, duration_us(result) / FEWEST_SAMPLES)


def judge_lowest(result: Result, transport: str, limit: float, source: str) -> Check:
    """Check that no time bin after the first fault has a rate below ``limit`` times the fault-free rate.

    If a time bin before the first fault also has a lower rate, the machine was disturbed. Then the check is
    "not shown".
    """
    lowest: list[float | None] = []
    control: list[float | None] = []
    for series in series_of(result, transport):
        phases = phases_of(result, transport, series.repetition)
        if len(phases) < 2:
            continue
        before = phases[0].window
        after = (before[1], duration_us(result))
        lowest.append(lowest_share(result, series, after, before))
        control.append(lowest_share(result, series, before, before))
    width = f"{sample_us(result) / 1e3:.3g} ms"
    asked = f"lowest {width} over the fault-free rate"
    check = at_least(asked, mean_of(lowest), limit, source)
    return unless_control_fails(check, at_least(f"{asked}, before", mean_of(control), limit, source))


def lowest_share(result: Result, series: Series, window: Window, before: Window) -> float | None:
    """Return the rate of the lowest bin in ``window``, divided by the mean rate in ``before``."""
    rates, usual = series.rates_mbps(window, sample_us(result)), series.rate_mbps(before)
    return float(rates.min()) / usual if len(rates) and usual else None
