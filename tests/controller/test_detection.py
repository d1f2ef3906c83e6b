"""The times at which a dead link is detected, compared with times computed by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.controller.detection import Change, Detection, DetectionSchedule

MS = 1_000_000
BFD = Detection(hold_ns=150 * MS, interval_ns=50 * MS)  # as BFD with 3 times 50 ms [RFC 5880 6.8.4]
LINK = "p0-t0-0:p0-t1-1"


class Phase(random.Random):
    """A fake generator with a fixed result, the phase at which every link sends its hellos."""

    def __init__(self, phase_ns: int = 0) -> None:
        super().__init__()
        self.phase_ns = phase_ns

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return self.phase_ns


def schedule(detection: Detection = BFD, phase_ns: int = 0) -> DetectionSchedule:
    return DetectionSchedule(detection, Phase(phase_ns))


def test_the_usual_protocols() -> None:
    assert Detection(150 * MS, 50 * MS) == BFD
    assert Detection.within(3000 * MS) == Detection(3000 * MS, 1000 * MS)
    for hold, interval, restore in ((1, 2, 0), (1, 0, 0), (3, 1, -1)):
        with pytest.raises(ValueError, match=r"hold time|restore_ns"):
            Detection(hold, interval, restore)


@pytest.mark.parametrize(("cut", "noticed"), [(1000, 1150), (1001, 1150), (1049, 1150), (1050, 1200)])
def test_a_cut_is_noticed_a_hold_time_after_the_last_hello(cut: int, noticed: int) -> None:
    watch = schedule()
    watch.cut(LINK, cut * MS)
    assert watch.next_ns() == noticed * MS
    assert watch.due(noticed * MS - 1) == []
    assert watch.due(noticed * MS) == [Change(noticed * MS, LINK, False)]
    assert watch.due(10_000 * MS) == []
    assert watch.next_ns() is None


def test_hellos_fall_where_the_seed_puts_them() -> None:
    watch = schedule(phase_ns=7 * MS)
    watch.cut(LINK, 1000 * MS)
    assert watch.next_ns() == (957 + 150) * MS


def test_a_link_that_is_back_is_used_from_its_first_hello_on() -> None:
    watch = schedule()
    watch.cut(LINK, 1000 * MS)
    watch.mended(LINK, 2010 * MS)
    assert watch.due(3000 * MS) == [Change(1150 * MS, LINK, False), Change(2050 * MS, LINK, True)]
    assert watch.next_ns() is None


def test_a_return_takes_as_long_as_it_is_told_to() -> None:
    watch = schedule(Detection(150 * MS, 50 * MS, restore_ns=1000 * MS))
    watch.cut(LINK, 1000 * MS)
    watch.mended(LINK, 2010 * MS)
    watch.cut(LINK, 2500 * MS)
    watch.mended(LINK, 2600 * MS)
    assert watch.due(9000 * MS) == [Change(1150 * MS, LINK, False), Change(3600 * MS, LINK, True)]


def test_a_flap_within_the_hold_time_is_never_noticed() -> None:
    watch = schedule()
    watch.cut(LINK, 1001 * MS)
    watch.mended(LINK, 1149 * MS)
    assert watch.due(1149 * MS) == []
    assert watch.next_ns() == 1150 * MS, "a hello at the very end of the hold time"
    assert watch.due(9000 * MS) == []
    assert watch.next_ns() is None


def test_a_link_that_is_back_too_late_for_its_hello_is_withdrawn_for_a_moment() -> None:
    watch = schedule(Detection(140 * MS, 50 * MS))
    watch.cut(LINK, 1001 * MS)
    watch.mended(LINK, 1139 * MS)
    assert watch.due(9000 * MS) == [Change(1140 * MS, LINK, False), Change(1150 * MS, LINK, True)]


def test_a_hello_between_two_cuts_begins_the_hold_time_anew() -> None:
    watch = schedule()
    watch.cut(LINK, 1001 * MS)
    watch.mended(LINK, 1020 * MS)
    watch.cut(LINK, 1060 * MS)
    assert watch.due(9000 * MS) == [Change(1200 * MS, LINK, False)]
    # Now the second cut is before the hello at 1050 ms, so the hold time does not begin again.
    watch = schedule()
    watch.cut(LINK, 1001 * MS)
    watch.mended(LINK, 1020 * MS)
    watch.cut(LINK, 1040 * MS)
    assert watch.due(9000 * MS) == [Change(1150 * MS, LINK, False)]


def test_a_lost_carrier_is_noticed_at_once() -> None:
    watch = schedule()
    watch.cut(LINK, 1001 * MS, carrier=False)
    assert watch.due(1001 * MS) == [Change(1001 * MS, LINK, False)]
    watch.mended(LINK, 1010 * MS)
    assert watch.due(9000 * MS) == [Change(1050 * MS, LINK, True)]


def test_links_are_told_in_order_of_time_and_repeats_change_nothing() -> None:
    watch = schedule()
    watch.cut("b", 1060 * MS)
    watch.cut("a", 1070 * MS)
    watch.cut("c", 1120 * MS)
    watch.cut("a", 1130 * MS)
    watch.mended("d", 1135 * MS)
    assert [c.link for c in watch.due(9000 * MS)] == ["a", "b", "c"]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 400), st.booleans(), st.sampled_from("abc")), max_size=40),
    st.integers(1, 60),
    st.integers(1, 4),
    st.integers(0, 100),
    st.integers(0, 1000),
)
def test_changes_of_a_link_alternate_and_keep_their_delays(
    steps: list[tuple[int, bool, str]], interval: int, multiplier: int, restore: int, seed: int
) -> None:
    detection = Detection(interval * multiplier, interval, restore)
    watch = DetectionSchedule(detection, random.Random(seed))
    now, cut_at, told = 0, dict[str, int](), dict[str, list[Change]]()
    for wait, up, link in steps:
        now += wait
        if up:
            cut_at.pop(link, None)
            watch.mended(link, now)
        else:
            cut_at.setdefault(link, now)
            watch.cut(link, now)
        for change in watch.due(now):
            assert change.at_ns <= now
            told.setdefault(change.link, []).append(change)
    for change in watch.due(now + 100_000):
        told.setdefault(change.link, []).append(change)
    for link, changes in told.items():
        assert [c.up for c in changes] == [n % 2 == 1 for n in range(len(changes))]
        assert [c.at_ns for c in changes] == sorted(c.at_ns for c in changes)
        if link in cut_at and not changes[-1].up:
            assert changes[-1].at_ns <= cut_at[link] + detection.hold_ns
    assert {link for link, c in told.items() if not c[-1].up} == set(cut_at)
