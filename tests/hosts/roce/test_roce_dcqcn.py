"""DCQCN, compared with steps computed by hand from the paper's equations."""

import pytest

from mrclab.hosts.roce.config import DcqcnConfig
from mrclab.hosts.roce.dcqcn import NotificationPoint, ReactionPoint, power

LINE = 40_000_000_000
US = 1000
PAPER = DcqcnConfig(line_rate_bps=LINE, additive_increase_bps=40_000_000, hyper_increase_bps=200_000_000)


def test_times_and_weights_are_the_papers_by_default():
    config = DcqcnConfig(line_rate_bps=LINE)
    assert config.cnp_interval_ns == 50 * US
    assert config.g == 1 / 256
    assert config.alpha_timer_ns == config.rate_timer_ns == 55 * US
    assert config.byte_counter_bytes == 10_000_000
    assert config.fast_recovery_steps == 5


def test_marked_packets_are_answered_at_once_and_then_once_per_interval():
    point = NotificationPoint(50 * US)
    times = [0, 1, 49, 50, 51, 99, 100, 149, 150, 1000]
    assert [t for t in times if point.on_marked(t * US)] == [0, 50, 100, 150, 1000]


def test_the_first_cnp_halves_the_rate_because_alpha_starts_at_one():
    point = ReactionPoint(PAPER)
    assert not point.limiting
    point.on_cnp(0)
    assert point.limiting
    assert point.rate_bps == 20e9
    assert point.target_bps == 40e9
    assert point.alpha == 1.0


def test_alpha_shrinks_by_g_in_every_interval_without_a_cnp():
    point = ReactionPoint(PAPER)
    point.on_cnp(0)
    point.advance(55 * US - 1)
    assert point.alpha == 1.0
    point.advance(55 * US)
    assert point.alpha == pytest.approx(255 / 256)
    point.advance(10 * 55 * US)
    assert point.alpha == pytest.approx((255 / 256) ** 10)
    point.on_cnp(10 * 55 * US)
    assert point.alpha == pytest.approx((255 / 256) ** 11 + 1 / 256)


def test_alpha_is_the_same_bits_on_every_system() -> None:
    """DCQCN multiplies repeatedly, because the last bit of C's pow() may differ between systems."""
    x = 255 / 256
    x8 = ((x * x) * (x * x)) * ((x * x) * (x * x))
    assert power(x, 24) == x8 * (x8 * x8) != x**24
    assert power(x, 0) == 1.0


def test_the_second_cnp_cuts_by_half_of_alpha():
    point = ReactionPoint(PAPER)
    point.on_cnp(0)
    point.on_cnp(10 * US)  # no timer step happens in between
    assert point.target_bps == 20e9
    assert point.rate_bps == 10e9


def test_fast_recovery_halves_the_way_back_for_f_less_one_steps_then_the_target_rises():
    point = ReactionPoint(PAPER)
    point.on_cnp(0)
    point.on_cnp(1)  # R_T 20 Gb/s, R_C 10 Gb/s
    expected = [15e9, 17.5e9, 18.75e9, 19.375e9]  # i_T = 1..4 < F
    start = 1
    for step, rate in enumerate(expected, 1):
        assert point.advance(start + step * 55 * US) == rate
        assert point.target_bps == 20e9
    # i_T = 5: now max(i_T, i_B) is not below F, and min(i_T, i_B) is not above F.
    assert point.advance(start + 5 * 55 * US) == (20.04e9 + 19.375e9) / 2
    assert point.target_bps == 20.04e9
    assert point.advance(start + 6 * 55 * US) == (20.08e9 + 19.7075e9) / 2


def test_the_byte_counter_makes_steps_of_its_own():
    point = ReactionPoint(PAPER)
    point.on_cnp(0)
    point.on_cnp(1)
    point.on_sent(2, 9_999_999)
    assert point.rate_bps == 10e9
    point.on_sent(3, 1)
    assert point.rate_bps == 15e9


def test_hyper_increase_when_both_counters_are_past_f():
    point = ReactionPoint(PAPER)
    point.on_cnp(0)
    point.on_cnp(1)
    for _ in range(6):
        point.on_sent(2, 10_000_000)  # i_B = 6: four halvings, two additive steps
    assert point.target_bps == 20.08e9
    point.advance(1 + 5 * 55 * US)  # i_T = 1..5, i_B = 6: still additive
    assert point.target_bps == pytest.approx(20.28e9)
    point.advance(1 + 6 * 55 * US)  # i_T = 6: min(6, 6) > 5
    assert point.target_bps == pytest.approx(20.48e9)


def test_a_cnp_sets_the_counters_back():
    point = ReactionPoint(PAPER)
    point.on_cnp(0)
    point.advance(7 * 55 * US)
    point.on_cnp(7 * 55 * US)
    target = point.target_bps
    point.advance(11 * 55 * US)
    assert point.target_bps == target, "in fast recovery again"


def test_it_comes_back_to_line_rate_and_then_limits_no_more():
    point = ReactionPoint(PAPER)
    point.on_cnp(0)
    assert point.advance(1_000_000_000) == LINE
    assert not point.limiting
    assert point.alpha < 1e-6
    point.on_cnp(1_000_000_000)
    assert point.rate_bps == pytest.approx(LINE, rel=1e-6), "a first mark after long weighs little"


def test_no_number_of_cnps_brings_the_rate_below_the_least():
    point = ReactionPoint(PAPER)
    for t in range(100):
        point.on_cnp(t)
    assert point.rate_bps == PAPER.r_min_bps == 40_000_000


def test_steps_taken_late_are_the_same_as_steps_taken_in_time():
    often, late = ReactionPoint(PAPER), ReactionPoint(PAPER)
    for point in (often, late):
        point.on_cnp(0)
    for t in range(0, 20 * 55 * US, 7 * US):
        often.advance(t)
    often.advance(20 * 55 * US)
    late.advance(20 * 55 * US)
    assert often.rate_bps == late.rate_bps
    assert often.alpha == pytest.approx(late.alpha)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"g": 0.0}, "g must be"),
        ({"line_rate_bps": 10}, "line_rate_bps must be"),
        ({"rate_timer_ns": 0}, "rate_timer_ns positive"),
        ({"minimum_rate_bps": -1}, "rates must not"),
        ({"cnp_interval_ns": -1}, "cnp_interval_ns and burst_bytes must not"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        DcqcnConfig(**options)


def test_the_limiter_fills_at_the_rate_of_each_moment():
    """After many CNPs the rate rises again, so a packet waits for less time than at the lowest rate."""
    point = ReactionPoint(DcqcnConfig(line_rate_bps=1_000_000_000, minimum_rate_bps=1_000_000))
    for _ in range(50):
        point.on_cnp(0)
    point.on_sent(0, 4200)
    assert not point.may_send(0)
    assert 33_600_000 > point.next_send_ns(0) == 4 * 55 * US
    now = 0
    while not point.may_send(now):
        now = point.next_send_ns(now)
    assert 5 * 55 * US < now < 33_600_000 / 20, "the target rises from the fifth step on, by 20 Mb/s each"


def test_a_limited_sender_gets_its_rate():
    point = ReactionPoint(DcqcnConfig(line_rate_bps=1_000_000_000, rate_timer_ns=10**12))
    point.on_cnp(0)
    now, sent = 0, 0
    while now < 100_000_000:
        if point.may_send(now):
            point.on_sent(now, 4200)
            sent += 4200
        else:
            now = point.next_send_ns(now)
    assert sent * 8 == pytest.approx(0.1 * 500_000_000, rel=0.001)
