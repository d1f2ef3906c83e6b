"""Judges of switches that fail and return (figures 8, 10 and 11), and of a planned reboot with a drain.

During a drain, the hosts avoid a T1, and its reboot must have no effect. The control is the
reboot of a T1 without a drain.
"""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_least, at_most, includes, none_of, present, within
from mrclab.experiments.judging.phases import (
    LEVEL_MARGIN,
    LEVEL_SOURCE,
    judge_full,
    judge_levels,
    judge_lowest,
    phases_of,
    sample_us,
)
from mrclab.experiments.judging.readings import (
    Result,
    events_complete,
    flows,
    mean_of,
    path_events,
    series_of,
    transport_of,
)
from mrclab.experiments.judging.scale import expected_share, fabric_of, packets_a_second, placement_of
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import Interval, rate_ratio_interval, share_interval

PAPER_FIG08 = (
    "a T1 dead: 12.4 to 10.1 Pbit/s for a minute, then 12 to 12.5; 0.0014 % of packets sent again in that "
    "minute, a quarter of the QPs hit; its reboot: no effect"
)
RESENT = 0.0014e-2
RESENT_SOURCE = "paper: 0.0014 % of the packets of its minute were sent again"
MINUTE_US = 60e6
QPS_SOURCE = (
    "theory: a queue pair is hit if the dead T1 is among the paths that it uses (a quarter in the paper)"
)
REBOOT = 1 / 13.8
REBOOT_SOURCE = "paper: no effect; its repeats are at 1 of the 13.8 units of the failure"
WIDEST = 0.2


def judge_fig08(result: Result) -> Verdict:
    """Check rate, losses and affected queue pairs when the T1 fails, and the losses when it returns."""
    resent: list[float | None] = []
    died = returned = 0
    back: list[float | None] = []
    for series in series_of(result, "mrc"):
        phases = phases_of(result, "mrc", series.repetition)
        if len(phases) < 3:
            continue
        before, dead, after = (phase.window for phase in phases[:3])
        usual = series.rate_mbps(before)
        lost = series.lost_in(dead)
        minute = packets_a_second(fabric_of(result, "mrc"), usual) * MINUTE_US / 1e6
        resent.append(lost / minute if minute else None)
        back.append(series.rate_mbps(after) / usual if usual else None)
        died, returned = died + lost, returned + series.lost_in(after)
    reboot = rate_ratio_interval(returned, died) if died else None
    return all_hold(
        [
            judge_lowest(result, "mrc", 10.1 / 12.4, "paper: 10.1 of 12.4 Pbit/s at worst"),
            at_least("rate after its return over that before", mean_of(back), 12 / 12.4, "paper: 12 of 12.4"),
            at_most(
                "losses over the packets of a minute, in %", _percent(resent), RESENT * 100, RESENT_SOURCE
            ),
            _queue_pairs_hit(result),
            at_most("losses from its return on, over those of its death", reboot, REBOOT, REBOOT_SOURCE),
        ]
    )


def _percent(shares: list[float | None]) -> Interval | None:
    return mean_of([None if share is None else share * 100 for share in shares])


def _queue_pairs_hit(result: Result) -> Check:
    """Check the share of queue pairs that lost a packet after the T1 failed."""
    asked = "share of queue pairs that lost a packet"
    found, rates = transport_of(result, "mrc"), flows(result, "mrc")
    if not events_complete(result, "mrc") or not rates:
        return Check(asked, "the result lacks the events", None, QPS_SOURCE)
    options = found.get("options", {})
    hit = {(repetition, row[1], row[2]) for repetition, row in path_events(result, "mrc", "lost")}
    pairs = len(rates[0]) * int(options.get("qps", 1)) * len(rates)
    fabric = fabric_of(result, "mrc")
    t1s = sum(1 for _ in fabric.t1s(0))
    active = -(-int(options.get("max_active_evs", 256)) // fabric.planes)
    return includes(
        asked, share_interval(min(len(hit), pairs), pairs), min(1.0, active / t1s), QPS_SOURCE, WIDEST
    )


PAPER_FIG10 = "a T0 fails at 73 s: 1533, one sample of 0, then 1338 Gbit/s, 7/8"
FIG10_SOURCE = "paper: one sample of 200 ms at 0"


def judge_fig10(result: Result) -> Verdict:
    """Check that the rate falls to the rate of the working planes.

    For at most one time bin, the rate may be lower than the rate of the working planes.
    """
    low: list[float | None] = []
    width = sample_us(result)
    for series in series_of(result, "mrc"):
        phases = phases_of(result, "mrc", series.repetition)
        if len(phases) > 1:
            dead = phases[1].window
            usual = series.rate_mbps(((dead[0] + dead[1]) / 2, dead[1]))
            step = width / 20
            low.append(float((series.rates_mbps(dead, step) < usual / 2).sum()) * step / 1e3)
    asked = "time at less than half of the rate that is left"
    dip = at_most(asked, mean_of(low), width / 1e3, FIG10_SOURCE, " ms")
    return all_hold([judge_full(result, "mrc", 1533, 1600), *judge_levels(result, "mrc"), dip])


PAPER_FIG11 = "a T1 down from 119 s to 190 s: median 1533, lowest 1508 Gbit/s in bins of 200 ms"
FIG11_LEAST = 1508 / 1533
FIG11_SOURCE = "paper: 1508 of 1533 in its lowest 200 ms"


def judge_fig11(result: Result) -> Verdict:
    """Check the lowest rate of all time bins, divided by the rate before the fault.

    This ratio must be at least the paper's ratio.
    """
    return all_hold(
        [judge_full(result, "mrc", 1533, 1600), judge_lowest(result, "mrc", FIG11_LEAST, FIG11_SOURCE)]
    )


PAPER_DRAIN = (
    "a planned reboot of a T1 has no effect (figure 8); in the lowest 200 ms 1508 of 1533 Gbit/s (figure 11)"
)
DRAIN_LEAST_SOURCE = "paper, figure 11: 1508 of 1533 in its lowest 200 ms"
NONE_SOURCE = "theory: nothing is sent onto a path that is not used"
CONTROL_SOURCE = "control: the second T1 is rebooted without having been drained"


def judge_drain(result: Result) -> Verdict:
    """Check that the reboot of a drained T1 loses no packet, and that another T1's reboot loses packets."""
    levels: list[float | None] = []
    windows = {}
    fabric = fabric_of(result, "mrc")
    share = 1.0
    for series in series_of(result, "mrc"):
        phases = phases_of(result, "mrc", series.repetition)
        if len(phases) < 4:
            continue
        usual = series.rate_mbps(phases[0].window)
        levels.append(series.rate_mbps(phases[1].window) / usual if usual else None)
        windows[series.repetition] = (phases[1].window[0], phases[2].window[0], phases[3].window[0])
        placement = placement_of(result, fabric, series.repetition)
        src, dst = (placement.hosts[rank] for rank in placement.pairs[0])
        share = expected_share(fabric, src, dst, phases[1].broken)
    drained = other = 0
    for repetition, row in path_events(result, "mrc", "lost"):
        if repetition in windows:
            first, back, second = windows[repetition]
            drained += first <= row[0] < back
            other += row[0] >= second
    known = events_complete(result, "mrc") and bool(windows)
    asked = "rate while it is away over that before"
    return all_hold(
        [
            present("packets lost to a T1 that was not drained", other, CONTROL_SOURCE),
            none_of("packets lost while the drained T1 was away", drained if known else None, NONE_SOURCE),
            within(asked, mean_of(levels), share, LEVEL_MARGIN, LEVEL_SOURCE),
            judge_full(result, "mrc", 1533, 1600),
            judge_lowest(result, "mrc", FIG11_LEAST, DRAIN_LEAST_SOURCE),
        ]
    )
