"""Figure 8: a T1 fails and is rebooted later."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_least, at_most, includes
from mrclab.experiments.judging.phases import judge_lowest, phases_of
from mrclab.experiments.judging.readings import (
    Result,
    events_complete,
    flows,
    mean_of,
    path_events,
    series_of,
    transport_of,
)
from mrclab.experiments.judging.scale import fabric_of, packets_a_second
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import Interval, rate_ratio_interval, share_interval

PAPER = (
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


def judge(result: Result) -> Verdict:
    """Check the rate, the losses and the queue pairs hit when the T1 dies, and the losses when it returns."""
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
    """Check the share of queue pairs that lost a packet after the T1's death."""
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
