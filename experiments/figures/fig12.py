"""Figures 12 and 13: an EV whose path drops 20 % is replaced by another of its plane."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_most, none_of, present
from mrclab.experiments.judging.phases import judge_full, judge_lowest
from mrclab.experiments.judging.readings import (
    Result,
    duration_us,
    events_complete,
    mean_of,
    path_events,
    series_of,
    transport_of,
    trials_of,
)
from mrclab.experiments.judging.scale import BYPASS_SOURCE, bypass_limit_us, rtt_us
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import rate_ratio_interval
from mrclab.topologies.model import ev_fields

PAPER = "20 % loss on a path: its EV inactive at once, one of its plane takes over; 1532, lowest 1515 Gbit/s"
LEAST = 1515 / 1532
LEAST_SOURCE = "paper: 1515 of 1532 in its lowest 200 ms"
REPLACED_SOURCE = "paper, figure 13: EV-B of the same plane takes over when EV-A is retired"
FELT_SOURCE = "without a fault that took packets there is nothing to show"
LASTING = 0.01
LASTING_SOURCE = "paper, figure 13: EV-A carries nothing from then on, to the width of a line, 1 %"
AT_ONCE_US = 1.0


def judge(result: Result) -> Verdict:
    """Check throughput, the time until the EV is retired, its replacement, and the losses from then on."""
    felt = sum(trial["felt"] is True for trial in trials_of(result, "mrc"))
    return all_hold(
        [
            present("paths that took packets", felt, FELT_SOURCE),
            judge_full(result, "mrc", 1532, 1600),
            judge_lowest(result, "mrc", LEAST, LEAST_SOURCE),
            _retired_in_time(result),
            *_replaced(result),
            _lasting(result),
        ]
    )


def _retired_in_time(result: Result) -> Check:
    by_repetition: dict[int, list[float]] = {}
    for trial in trials_of(result, "mrc"):
        if trial["detected_us"] is not None and trial["first_loss_us"] is not None:
            waited = trial["detected_us"] - trial["first_loss_us"]
            by_repetition.setdefault(trial["repetition"], []).append(waited)
    longest = mean_of([max(found) for found in by_repetition.values()])
    limit = bypass_limit_us(rtt_us(result, "mrc"))
    return at_most("from a path's first loss until its EV is retired", longest, limit, BYPASS_SOURCE, " us")


def _replaced(result: Result) -> list[Check]:
    """Check that each EV that a loss retired was replaced at the same moment by one of its plane."""
    asked = "EVs retired and not replaced at once by one of their plane"
    if not events_complete(result, "mrc"):
        return [none_of(asked, None, REPLACED_SOURCE)]
    swapped = {
        (repetition, row[1], row[2], row[3]): row
        for repetition, row in path_events(result, "mrc", "replaced")
    }
    first: dict[tuple[int, float, float, float], float] = {}
    for repetition, row in path_events(result, "mrc", "retired"):
        first.setdefault((repetition, row[1], row[2], row[3]), row[0])
    missing = 0
    for key, at_us in first.items():
        found = swapped.get(key)
        same_plane = found is not None and ev_fields(int(found[3]))[0] == ev_fields(int(found[4]))[0]
        missing += not (same_plane and found is not None and abs(found[0] - at_us) <= AT_ONCE_US)
    return [present("EVs retired", len(first), REPLACED_SOURCE), none_of(asked, missing, REPLACED_SOURCE)]


def _lasting(result: Result) -> Check:
    """Compare losses with those of a sender without EV health, from the bypass on."""
    settled = bypass_limit_us(rtt_us(result, "mrc"))
    counts = []
    for name in ("mrc", "oblivious"):
        begins = {
            fault["repetition"]: fault["at_us"] + settled
            for fault in transport_of(result, name).get("faults", ())
        }
        end = duration_us(result)
        counts.append(sum(s.lost_in((begins.get(s.repetition, end), end)) for s in series_of(result, name)))
    lasting = rate_ratio_interval(*counts) if counts[1] else None
    asked = "losses from then on, over those without EV health"
    return at_most(asked, lasting, LASTING, LASTING_SOURCE)
