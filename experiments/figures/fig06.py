"""Figures 6 and 7: a NIC-T0 link of one rank flaps; the whole job dips and recovers."""

from __future__ import annotations

from functools import partial

import numpy as np

from mrclab.experiments.judging.criteria import at_least, present, within
from mrclab.experiments.judging.phases import phases_of
from mrclab.experiments.judging.readings import Result, Series, by_repetition, mean_of, series_of
from mrclab.experiments.judging.scale import capacity_mbps, fabric_of, payload_mbps, placement_of
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import mean_interval, rate_ratio_interval

PAPER = (
    "50K GPUs: 7.0 to 5.1 Pbit/s (-27 %) for about a minute when a transceiver takes a link of each of four "
    "NICs away, then back; losses, figure 7, in that minute alone"
)
MARGIN = 0.02
SOURCE = (
    "theory: the ring goes as fast as its slowest NIC, at k/n of its links while it communicates (the "
    "paper's -27 % is -25 % by this, so within 2 %)"
)
LOSSES_SOURCE = "paper, figure 7: losses come with the flap (here 90 % of them at least), and end with it"
MOST_IN_FLAP = 0.9


def judge(result: Result) -> Verdict:
    """Check that the rate falls as the links predict, comes back, and that losses come with the flap."""
    shares: list[float | None] = []
    back: list[float | None] = []
    predicted: list[float] = []
    inside = outside = 0
    for series in series_of(result, "mrc"):
        phases = phases_of(result, "mrc", series.repetition)
        if len(phases) != 3:
            continue
        before, down, after = (phase.window for phase in phases)
        usual = series.rate_mbps(before)
        shares.append(series.rate_mbps(down) / usual if usual else None)
        back.append(_rate_to_end(series, after[0]) / usual if usual else None)
        predicted.append(predict(result, phases[1].broken))
        lost = series.lost_in(down)
        inside, outside = inside + lost, outside + series.lost_in((before[0], series.end_us)) - lost
    expected = mean_interval(predicted)
    wanted = expected.value if expected else 0.0
    losses = rate_ratio_interval(inside, outside)
    return all_hold(
        [
            within("share of the usual rate while the link is down", mean_of(shares), wanted, MARGIN, SOURCE),
            within("share when it is back", mean_of(back), 1.0, MARGIN, "paper: then back"),
            present("packets lost while it was down", inside, LOSSES_SOURCE),
            at_least(
                "losses while it was down over all others",
                losses,
                MOST_IN_FLAP / 0.1,
                LOSSES_SOURCE,
                " times",
            ),
        ]
    )


def _rate_to_end(series: Series, begin_us: float) -> float:
    """Return the mean rate from this time on, without the last fifth: the series is longer than the job."""
    return series.rate_mbps((begin_us, begin_us + 0.8 * (series.end_us - begin_us)))


def predict(result: Result, broken: tuple[str, ...]) -> float:
    """Return the rate of steps with these places broken over that without.

    A step computes, waits for the wire, and waits for round trips; only the wire gets slower.
    """
    fabric = fabric_of(result, "mrc")
    hosts = placement_of(result, fabric).hosts
    size = float(result["parameters"]["workload"]["size_bytes"])
    # The lower quartile is of steps without a fault.
    communicate = by_repetition(result, "mrc", "comm_us", partial(np.quantile, q=0.25))
    if not communicate:
        return 0.0
    compute_us = float(result["parameters"]["workload"]["compute_ns"]) / 1e3
    ring = [(hosts[i], hosts[(i + 1) % len(hosts)]) for i in range(len(hosts))]
    slowest = min(capacity_mbps(fabric, a, b, broken) / capacity_mbps(fabric, a, b, ()) for a, b in ring)
    wire_us = 2 * (len(hosts) - 1) / len(hosts) * size * 8 / payload_mbps(result, "mrc")
    usual_us = compute_us + float(np.median(communicate))
    return usual_us / (usual_us + wire_us * (1 / slowest - 1)) if slowest else 0.0
