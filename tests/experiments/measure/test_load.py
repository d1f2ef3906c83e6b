"""The CPU load of endpoints, and the pauses of an endpoint (gaps) that count in a trial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.load import (
    AFTER_FAULT_NS,
    AFTER_RETIREMENT_NS,
    INJECTOR,
    LEAST_GAP_NS,
    Beats,
    Gap,
    Load,
    Snapshot,
    ThreadTimes,
    compared,
    in_trial,
    load_between,
    unnoticed_ns,
)
from mrclab.experiments.measure.validity import judge, kept_up, too_fast

MS = 1_000_000
BEFORE = Snapshot(
    0, 0, 0, 0, {("sender", 1): ThreadTimes(0, 0), ("receiver", 2): ThreadTimes(0, 0)}, beats=Beats(500)
)
FAULT = FaultRecord("blackhole", "p0-t0-0:p0-t1-0", 50 * MS, 50 * MS + 10_000)


def after(
    run_ns: int, wait_ns: int, *gaps: Gap, first: bool = True, retired_ns: tuple[int, ...] = ()
) -> Snapshot:
    threads = {("sender", 1): ThreadTimes(run_ns, wait_ns), ("receiver", 2): ThreadTimes(20 * MS, 0)}
    return Snapshot(100 * MS, 99, 0, 100, threads, beats=Beats(2500, gaps, first, retired_ns))


def test_endpoints_are_judged_by_their_share_and_by_their_cost() -> None:
    usual = load_between(BEFORE, after(40 * MS, 0))
    load = load_between(BEFORE, after(60 * MS, 10 * MS))
    assert (load.share, load.busiest) == (0.7, "sender")
    assert (load.packets, load.packets_per_s) == (2000, 20_000)
    assert load.cost_ns == {"sender": 30_000, "receiver": 10_000}
    dear = compared(load, [usual, usual])
    assert (dear.cost, dear.dearest) == (1.5, "sender")
    (reason,) = judge([dear]).reasons
    assert reason == "in 1 of 1 trials a packet cost sender 1.50 times the CPU time of other trials"
    assert not too_fast(dear)  # at a lower rate a packet costs more
    slower = replace(usual, duration_ns=round(usual.duration_ns * 1.2))
    assert compared(load, [slower]).cost is None
    assert compared(load, []) == load
    full = load_between(BEFORE, after(80 * MS, 15 * MS))
    assert (full.share, full.cost) == (0.95, None)
    assert too_fast(full)
    assert judge([full]).reasons == (
        "in 1 of 1 trials sender ran or waited for a CPU 95% of the time (limit 92%)",
    )


def test_the_longest_gap_that_nobody_notices_grows_with_the_recovery() -> None:
    load = load_between(BEFORE, after(40 * MS, 0))
    assert unnoticed_ns(load, None) == unnoticed_ns(load, 1 * MS) == LEAST_GAP_NS
    assert unnoticed_ns(load, 50 * MS) == 5 * MS
    gap = Gap("sender", FAULT.t_after_ns, FAULT.t_after_ns + 5 * MS - 1)
    assert kept_up(in_trial(replace(load, gaps=(gap,)), FAULT, 51 * MS))
    assert unnoticed_ns(replace(load, packets=None), 50 * MS) is None


def test_endpoints_that_share_a_cpu_are_judged_by_how_full_it_is() -> None:
    names = ("rank 0", "rank 1", "rank 2")
    places = {"rank 0": 0, "rank 1": 1, "rank 2": 0}
    idle = {(name, number): ThreadTimes(0, 0) for number, name in enumerate(names)}
    spent = {(name, number): ThreadTimes(48 * MS, 50 * MS) for number, name in enumerate(names)}
    load = load_between(
        Snapshot(0, 0, 0, 0, idle, beats=Beats(0)),
        Snapshot(100 * MS, 99, 0, 100, spent, beats=Beats(0, first=True, cpus=places)),
    )
    assert (load.share, load.busiest) == (0.96, "rank 0 and rank 2")
    assert too_fast(replace(load, wait=None))
    assert load.gaps == ()


def test_other_programs_are_a_rule_only_if_they_can_take_a_cpu_from_endpoints() -> None:
    crowded = load_between(BEFORE, after(40 * MS, 0))
    assert crowded.busy == 0.99
    judged = judge([crowded])
    assert judged.valid
    assert "up to 99% busy, with other programs too" in judged.notes[0]
    (reason,) = judge([load_between(BEFORE, after(40 * MS, 0, first=False))]).reasons
    assert "the CPUs were 99% busy" in reason


def test_a_load_survives_its_file() -> None:
    load = load_between(BEFORE, after(60 * MS, 0, Gap("sender", 5, 6 * MS)))
    assert Load.from_dict(load.to_dict()) == load


SOON_MS = AFTER_FAULT_NS / MS
RETIRED_MS, LEAST_MS, LATER_MS = 1, LEAST_GAP_NS / MS, AFTER_RETIREMENT_NS / MS


@pytest.mark.parametrize(
    ("start_ms", "length_ms", "recovered_ms", "counts"),
    [
        (-16, 5, 1, False),  # the stall and its after-effects end before the fault
        (-14, 5, 1, True),
        (-3, 5, 1, True),
        (0.5, LEAST_MS + 0.01, 1, True),
        (0.5, LEAST_MS - 0.01, 1, False),
        (1.1, 5, 1, False),  # the stall begins after the recovery
        (40, 9, 100, False),  # the stall is shorter than a tenth of the recovery
        (40, 11, 100, True),
        (RETIRED_MS + LATER_MS - 0.1, 5, None, True),  # the recovery time is not known yet
        (RETIRED_MS + LATER_MS + 0.1, 5, None, False),
    ],
)
def test_a_gap_counts_if_it_may_have_moved_the_recovery(
    start_ms: float, length_ms: float, recovered_ms: float | None, counts: bool
) -> None:
    start = FAULT.middle_ns + round(start_ms * MS)
    gap = Gap("receiver", start, start + round(length_ms * MS))
    load = load_between(BEFORE, after(40 * MS, 0, gap, retired_ns=(FAULT.middle_ns + RETIRED_MS * MS,)))
    assert kept_up(load)  # the time of the fault is not known yet
    judged = in_trial(load, FAULT, recovered_ns(recovered_ms))
    assert kept_up(judged) is not counts
    assert (judged.stopped, judged.stopped_ns) == (("receiver", gap.length_ns) if counts else (None, 0))


@pytest.mark.parametrize(("ago_ms", "counts"), [(9, True), (11, False)])
def test_a_gap_between_two_trials_counts_for_the_next(ago_ms: int, counts: bool) -> None:
    end_ns = BEFORE.t_ns - ago_ms * MS  # a stall's after-effects take 10 ms
    assert BEFORE.beats is not None
    beats = replace(BEFORE.beats, gaps=(Gap("receiver", end_ns - 5 * MS, end_ns),))
    load = load_between(replace(BEFORE, beats=beats), after(40 * MS, 0))
    fault = replace(FAULT, t_before_ns=BEFORE.t_ns, t_after_ns=BEFORE.t_ns + 1000)
    assert kept_up(in_trial(load, fault)) is not counts


def recovered_ns(ms: float | None) -> int | None:
    return None if ms is None else round(ms * MS)


@pytest.mark.parametrize(("start_ms", "counts"), [(SOON_MS - 1, True), (SOON_MS + 1, False)])
def test_a_trial_without_a_retirement_is_judged_by_the_time_after_its_fault(
    start_ms: float, counts: bool
) -> None:
    start = FAULT.middle_ns + round(start_ms * MS)
    load = load_between(BEFORE, after(40 * MS, 0, Gap("sender", start, start + 5 * MS)))
    assert kept_up(in_trial(load, FAULT)) is not counts


def test_a_fault_whose_moment_is_not_known_well_does_not_count() -> None:
    load = replace(load_between(BEFORE, after(40 * MS, 0)), busy=0.5)
    wide = replace(FAULT, t_after_ns=FAULT.t_before_ns + LEAST_GAP_NS + 1)
    assert in_trial(load, wide).stopped == INJECTOR
    assert kept_up(in_trial(replace(load, first=False), wide))  # the gap is within the time's error
