"""A criterion holds, does not hold, or is not shown, depending on the limit and the interval."""

from mrclab.experiments.judging.criteria import (
    at_least,
    at_most,
    includes,
    leads,
    like_control,
    none_of,
    present,
    unless_control_fails,
    within,
)
from mrclab.experiments.judging.verdict import Check, Verdict
from mrclab.experiments.result.statistics import Interval, rate_ratio_interval

HALF = Interval(0.5, 0.4, 0.6, 3)


def test_limits_outside_and_inside_the_interval() -> None:
    assert [at_least("a", HALF, limit, "").holds for limit in (0.4, 0.7, 0.5)] == [True, False, None]
    assert [at_most("a", HALF, limit, "").holds for limit in (0.6, 0.3, 0.5)] == [True, False, None]
    assert [within("a", HALF, 0.5, m, "").holds for m in (0.1, 0.05)] == [True, None]
    assert within("a", HALF, 0.9, 0.1, "").holds is False
    assert at_least("a", None, 0.1, "").holds is None
    open_ = at_least("a", HALF, 0.45, "", " s")
    assert open_.found == "0.5 s (95 % CI 0.4 to 0.6, n 3) straddles the limit, at least 0.45 s"
    assert at_least("a", HALF, 0.4, "").found == "0.5 (95 % CI 0.4 to 0.6, n 3); asked: at least 0.4"


def test_an_open_check_estimates_how_many_more_values_decide_it() -> None:
    # The interval reaches 0.1 to each side, the limit is 0.05 away. Four times the values halve the interval.
    assert at_least("a", HALF, 0.45, "").decided_by == 4.1
    assert at_most("a", HALF, 0.55, "").decided_by == 4.1
    assert within("a", HALF, 0.5, 0.05, "").decided_by == 4.1
    assert leads("a", Interval(1.2, 0.9, 1.5, 6), "").decided_by == 2.4
    assert includes("a", HALF, 0.5, "", 0.1).decided_by == 4.1
    assert at_least("a", HALF, 0.5, "").decided_by == 100
    assert [at_least("a", HALF, 0.4, "").decided_by, at_least("a", None, 0.1, "").decided_by] == [None, None]
    known, lacking = Check("a", "1", None, decided_by=3.0), Check("b", "2", None)
    assert Verdict((known,)).decided_by == 3.0
    assert Verdict((known, lacking)).decided_by is None
    assert Verdict((known, Check("c", "3", False))).decided_by is None


def test_a_lead_excludes_equal() -> None:
    assert leads("a", Interval(1.2, 1.1, 1.3, 6), "").holds is True
    assert leads("a", Interval(1.2, 0.9, 1.5, 6), "").holds is None
    assert leads("a", Interval(0.8, 0.7, 0.9, 6), "").holds is False
    assert leads("a", Interval(1.2, 1.1, 1.3, 6), "", 1.5).holds is False
    assert leads("a", Interval(1.4, 1.2, 1.6, 6), "", 1.5).holds is None
    assert leads("a", None, "").holds is None


def test_a_ratio_to_nothing_says_how_many_events_would_decide() -> None:
    """Without an event in the denominator, the ratio and the upper end of its interval are infinite."""
    few, more = rate_ratio_interval(20, 0), rate_ratio_interval(20 * 19 // 10, 0)
    check = at_least("a", few, 9.0, "")
    assert check.holds is None
    assert check.decided_by is not None
    assert check.decided_by <= 2
    assert at_least("a", more, 9.0, "").holds is True
    assert check.decided_by >= 1.8


def test_an_interval_too_wide_to_tell_does_not_include_theory() -> None:
    assert includes("a", HALF, 0.5, "", 0.3).holds is True
    assert includes("a", HALF, 0.5, "", 0.1).holds is None
    assert includes("a", HALF, 0.7, "", 0.3).holds is False


def test_controls() -> None:
    failed, passed = Check("a", "1", False), Check("b", "2", True)
    assert unless_control_fails(failed, failed).holds is None
    assert unless_control_fails(failed, Check("b", "2", None)).holds is None
    assert unless_control_fails(failed, passed).holds is False
    assert unless_control_fails(passed, failed).holds is True
    assert like_control("a", Interval(1.005, 1.0, 1.009, 6), 1.01, "").holds is True
    assert like_control("a", Interval(0.8, 0.7, 0.9, 6), 1.01, "").holds is None
    assert like_control("a", Interval(1.2, 1.1, 1.3, 6), 1.01, "").holds is False


def test_counts() -> None:
    assert [present("a", n, "").holds for n in (0, 1)] == [None, True]
    assert [none_of("a", n, "").holds for n in (0, 1, None)] == [True, False, None]


def test_a_verdict_says_what_failed_or_what_is_not_shown() -> None:
    good, bad, unknown = Check("a", "1", True, "s"), Check("b", "2", False), Check("c", "3", None)
    assert Verdict((good, bad, unknown), "the paper", ("a note",)).to_dict() == {
        "holds": False,
        "because": "b: 2; a note",
        "decided_by": None,
        "paper": "the paper",
        "checks": [
            {"asked": "a", "found": "1", "holds": True, "source": "s"},
            {"asked": "b", "found": "2", "holds": False, "source": ""},
            {"asked": "c", "found": "3", "holds": None, "source": ""},
        ],
    }
    assert Verdict((good, unknown)).to_dict()["because"] == "c: 3"
    assert Verdict((good,)).holds is True
    assert Verdict(()).holds is None
    assert Verdict((good, bad), invalid="it is not valid").holds is None
    assert Verdict((good, bad), invalid="it is not valid").to_dict()["because"] == "it is not valid"
