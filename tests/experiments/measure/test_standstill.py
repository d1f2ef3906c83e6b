"""A standstill is a time without any data frame.

It lasts at least 1 ms, and at least five times as long as the usual gap between bursts.
"""

from dataclasses import replace

import numpy as np
import pytest

from mrclab.experiments.measure.recording import ClockMap, OffsetSample
from mrclab.experiments.measure.trace import Arrivals, RoundTrips, Trace, Transmissions
from mrclab.experiments.measure.validity import Standstills, chosen_aside, standstills_of

MS = 1_000_000


def trace_of(*t_ns: int) -> Trace:
    """Return data frames that were sent at these times. The receiver captured nothing."""
    sent = np.array(t_ns, np.int64)
    zeros, no = np.zeros(len(sent), np.int64), np.zeros(len(sent), bool)
    none = np.zeros(0, np.int64)
    return Trace(
        (),
        Transmissions(sent, zeros, zeros, zeros, zeros, no, zeros, sent, no, sent, no, zeros),
        Arrivals(none, none, none, none, none, none.astype(bool), none.astype(bool), none),
        RoundTrips(none, none),
        ClockMap((OffsetSample(0, 0, 0),)),
    )


def bursts(*, pause_ns: int, count: int = 1000, but: tuple[int, int] = (-1, 0)) -> list[int]:
    """Return times of frames in bursts of eight. After burst ``but[0]`` there is a gap of ``but[1]`` ns."""
    found, now = [], 0
    for number in range(count):
        found += [now + 2_000 * i for i in range(8)]
        now += pause_ns + (but[1] if number == but[0] else 0)
    return found


def test_the_pauses_of_bursts_are_usual() -> None:
    assert not len(standstills_of([trace_of(*bursts(pause_ns=200_000))]).t_ns)
    assert not len(standstills_of([trace_of(*bursts(pause_ns=3 * MS))]).t_ns)  # slow but even bursts
    assert not len(standstills_of([]).t_ns)


def test_a_machine_that_stops_is_found_with_its_moment() -> None:
    found = standstills_of([trace_of(*bursts(pause_ns=200_000, but=(500, 6 * MS)))])
    assert found.t_ns.tolist() == [500 * 200_000 + 14_000]
    assert found.length_ns.tolist() == [6 * MS + 186_000]
    assert found.limit_ns == MS
    begin = int(found.t_ns[0])
    assert found.longest_between_ns(begin + MS, begin + 2 * MS) == 6 * MS + 186_000
    assert found.longest_between_ns(0, begin) == 0
    assert found.to_dict(0)["found"] == [[100_014.0, 6186.0]]
    assert found.words().startswith("1 standstill of 1 ms or more")


def test_a_host_that_goes_on_sending_does_not_stand_still() -> None:
    other = [at + 100_000 for at in bursts(pause_ns=200_000, count=1100)]
    both = [trace_of(*bursts(pause_ns=200_000, but=(500, 6 * MS))), trace_of(*other)]
    assert not len(standstills_of(both).t_ns)


@pytest.mark.parametrize(
    ("found", "trials", "aside"),
    [({}, 20, []), ({3: MS}, 4, [3]), ({7: MS, 3: MS}, 20, [3, 7]), ({3: MS, 7: MS, 9: MS}, 20, [])],
)
def test_more_than_a_tenth_of_the_trials_is_no_chance(
    found: dict[int, int], trials: int, aside: list[int]
) -> None:
    assert chosen_aside(found, trials) == aside


def test_a_result_holds_the_longest() -> None:
    many = Standstills(np.arange(500) * MS, np.arange(500) + MS, MS)
    rows = many.to_dict(0)
    assert (rows["count"], len(rows["found"])) == (500, 200)
    assert min(length for _, length in rows["found"]) == (300 + MS) / 1e3
    assert replace(many, t_ns=np.zeros(0, np.int64), length_ns=np.zeros(0, np.int64)).words() == ""
