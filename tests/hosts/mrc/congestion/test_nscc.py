"""NSCC by hand: a comment next to each expected value shows its computation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.controller.queues import queue_setting
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.config import NEVER_NS, NsccConfig
from mrclab.hosts.mrc.congestion import make_controller
from mrclab.hosts.mrc.nscc import Nscc
from mrclab.p4src.contract import TICKS_PER_US
from mrclab.topologies import LinkProfile

MTU = 1000
KNOBS = {
    "base_rtt_ns": 10_000,
    "target_delay_ns": 10_000,
    "max_cwnd_bytes": 100_000,
    "alpha": 0.5,
    "fi": 3000.0,
    "fi_scale": 0.5,
    "eta": 100.0,
    "gamma": 0.8,
    "delay_weight": 1.0,
    "adjust_bytes_threshold": 8000,
    "adjust_period_ns": 10_000,
}


def nscc(cwnd=10_000, *, trim=True, **changes):
    control = Nscc(NsccConfig(**{**KNOBS, **changes}), MTU, trim=trim)
    control._set(cwnd)
    # The first acknowledgement starts the clock. It has no RTT, so it does not change the window.
    control.on_ack(0, 0, None, False, 0)
    return control


# Derived settings


def test_derived_knobs():
    c = NsccConfig(base_rtt_ns=12_000, link_bps=100_000_000_000).resolve(4096, trim=True)
    # BDP = 100 Gbit/s * 12 us = 150 kB, so the factor a is 1. The target is 9 us, so the factor b is 0.75.
    assert c.target_delay_ns == 9_000
    assert c.max_cwnd_bytes == 225_000
    assert c.alpha == pytest.approx(4 * 0.75 * 4096 / 9000)
    assert (c.fi, c.fi_scale, c.eta) == (5 * 4096, 0.25, pytest.approx(0.15 * 4096))
    assert (c.adjust_bytes_threshold, c.adjust_period_ns, c.qa_gate) == (8 * 4096, 12_000, 3)
    assert (c.gamma, c.max_md_jump) == (0.8, 0.5)
    assert c.qa_threshold_ns == NEVER_NS
    assert NsccConfig(base_rtt_ns=1).resolve(4096, trim=True).target_delay_ns == 1  # not 0


def test_derived_knobs_where_switches_do_not_trim():
    c = NsccConfig(base_rtt_ns=12_000, link_bps=200_000_000_000).resolve(4096, trim=False)
    # The factors are a = 2 and b = 1. The target is one base RTT. A delay of 4 targets triggers quick adapt.
    assert (c.target_delay_ns, c.qa_threshold_ns) == (12_000, 48_000)
    assert c.alpha == pytest.approx(4 * 2 * 4096 / 12_000)


def test_the_first_window_is_the_largest():
    assert Nscc(NsccConfig(**KNOBS), MTU, trim=True).cwnd_bytes == 100_000


def test_the_base_rtt_falls_to_a_smaller_sample_and_the_largest_window_follows():
    control = Nscc(NsccConfig(base_rtt_ns=100_000, link_bps=1_000_000_000), MTU, trim=True)
    # The largest window is 1.5 * 1 Gbit/s * 100 us = 18,750 B.
    assert control.cwnd_bytes == 18_750
    control.on_ack(0, 0, 80_000, True, 0)
    # With an RTT of 80 us the largest window is 15,000 B. The target stays at 75 us.
    assert (control.base_rtt_ns, control.max_cwnd_bytes, control.cwnd_bytes) == (80_000, 15_000, 15_000)
    assert control.config.target_delay_ns == 75_000
    for rtt_ns in (90_000, 0, None):
        control.on_ack(1, 0, rtt_ns, True, 0)
        assert control.base_rtt_ns == 80_000
    control.on_ack(2, 0, 10_000, True, 0)
    # The window would be 1875 B, but it is never less than eight packets.
    assert control.cwnd_bytes == 8 * MTU


def test_a_largest_window_that_is_given_does_not_follow_the_base_rtt():
    control = nscc(cwnd=100_000)
    control.on_ack(0, 0, 1_000, True, 0)
    assert (control.base_rtt_ns, control.cwnd_bytes) == (1_000, 100_000)


def test_a_measured_base_rtt_takes_the_place_of_the_given_one():
    control = Nscc(NsccConfig(base_rtt_ns=10_000, link_bps=1_000_000_000, gamma=0.6), 4096, trim=True)
    control.on_inferred_loss(20_000)
    control.calibrate(4_000_000)
    given = NsccConfig(base_rtt_ns=4_000_000, link_bps=1_000_000_000, gamma=0.6)
    assert control.config == given.resolve(4096, trim=True)
    assert control.config.target_delay_ns == 3_000_000
    assert control.cwnd_bytes == control.config.max_cwnd_bytes == 750_000
    control.on_ack(1_000_000, 4096, 6_900_000, True, 0)
    assert control.cwnd_bytes == 750_000, "2.9 ms of delay are below the new target"


# The quadrants: delay below or above the target, with or without a mark


def test_proportional_increase_is_gathered_until_the_bytes_suffice():
    control = nscc()
    control.on_ack(1_000, 4000, 14_000, False, 0)
    control.on_ack(2_000, 4000, 14_000, False, 0)
    assert control.cwnd_bytes == 10_000, "8000 bytes are not more than 8000"
    control.on_ack(3_000, 1000, 14_000, False, 0)
    # Delay 4 us, 6 us below the target: 0.5 * 9000 * 6000 = 27,000,000; divided by 10,000: 2700.
    assert control.cwnd_bytes == 12_700


def test_fair_increase_and_eta_when_the_period_is_over():
    control = nscc()
    control.on_ack(10_000, 2000, 25_000, False, 0)
    # Delay 15 us: 3000 * 2000 = 6,000,000; divided by 10,000: 600. Plus eta, 100.
    assert control.cwnd_bytes == 10_700
    control.on_ack(15_000, 2000, 25_000, False, 0)
    assert control.cwnd_bytes == 10_700
    control.on_ack(20_000, 0, 25_000, False, 0)
    # The increase is 6,000,000 / 10,700 = 560.7, plus eta.
    assert control.cwnd_bytes == 11_360


def test_an_increase_by_bytes_neither_brings_eta_nor_ends_the_period():
    control = nscc()
    control.on_ack(9_000, 9000, 25_000, False, 0)
    # The increase is 3000 * 9000 / 10,000.
    assert control.cwnd_bytes == 12_700
    control.on_ack(10_000, 0, 25_000, False, 0)
    assert control.cwnd_bytes == 12_800


def test_ecn_with_delay_decreases_at_most_once_per_base_rtt():
    control = nscc()
    control.on_ack(1_000, 1000, 30_000, True, 0)
    # Average delay 20 us, target 10: 1 - 0.8 * 10/20 = 0.6.
    assert control.cwnd_bytes == 6_000
    control.on_ack(10_999, 1000, 30_000, True, 0)
    # A second decrease within a base RTT is not allowed. But a period is over, which always adds eta.
    assert control.cwnd_bytes == 6_100
    control.on_ack(11_000, 1000, 30_000, True, 0)
    assert control.cwnd_bytes == 3_660


def test_a_smaller_base_rtt_lets_decreases_follow_sooner():
    control = nscc()
    control.on_ack(0, 0, 5_000, True, 0)
    for now in (1_000, 5_999, 6_000):
        control.on_ack(now, 0, 30_000, True, 0)
    # Delay 25 us: 1 - 0.8 * 15/25 = 0.52, twice.
    assert control.cwnd_bytes == 2_704


def test_one_decrease_goes_no_further_than_max_md_jump():
    control = nscc(max_md_jump=0.75)
    control.on_ack(1_000, 1000, 49_000, True, 0)
    # 1 - 0.8 * 29/39 = 0.405 would be below the limit.
    assert control.cwnd_bytes == 7_500


def test_the_average_decides_how_far_a_decrease_goes():
    control = nscc(delay_weight=0.25)
    control.on_ack(1_000, 1000, 26_000, True, 0)
    # Average = 0.25 * 16 us = 4 us, below the target: one late packet does not decrease the window.
    assert control.cwnd_bytes == 10_000
    for _ in range(4):
        control.on_ack(1_000, 0, 50_000 - 1, True, 0)
    # The average moves by a quarter of the distance each time: 4, 12.99975, 19.750, ... us. The second value
    # is above the target, so the window is multiplied by 1 - 0.8 * 2.99975 / 12.99975 = 0.8154.
    assert control.cwnd_bytes == 8_153


def test_fast_increase_after_a_whole_window_without_delay():
    control = nscc(adjust_bytes_threshold=1 << 30, adjust_period_ns=1 << 30)
    control.on_ack(100, 10_000, 10_500, False, 0)
    assert control.cwnd_bytes == 10_000
    control.on_ack(200, 2_000, 10_500, False, 0)
    # 12,000 > 10,000 bytes in a row without delay: the window grows by half of these 2000 bytes.
    assert control.cwnd_bytes == 11_000
    control.on_ack(300, 2_000, 12_000, False, 0)
    control.on_ack(400, 2_000, 10_500, False, 0)
    assert control.cwnd_bytes == 11_000, "a delay ends it"


def test_fast_increase_takes_the_place_of_the_proportional_one():
    control = nscc(adjust_bytes_threshold=12_000, adjust_period_ns=1 << 30)
    control.on_ack(100, 12_000, 10_000, False, 0)
    # 12,000 B are more than 10,000 B, so the window grows by 6000 B at once. No proportional increase is
    # saved for the end of the period.
    assert control.cwnd_bytes == 16_000
    control.on_ack(200, 1, 10_500, True, 0)
    assert control.cwnd_bytes == 16_000


ACKS = st.lists(
    st.tuples(
        st.integers(0, 30_000),  # time passed, ns
        st.integers(0, 20_000),  # bytes
        st.one_of(st.none(), st.integers(10_000, 80_000)),  # rtt
        st.booleans(),
        st.sampled_from(["ack", "ack", "ack", "loss"]),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(ACKS)
def test_ecn_never_changes_the_window_while_delay_is_below_target(history):
    control, now = nscc(cwnd=40_000, eta=0.0), 0
    for passed, size, rtt, ecn, what in history:
        now += passed
        before = control.cwnd_bytes
        if what == "loss":
            control.on_inferred_loss(size)
            assert control.cwnd_bytes <= before
        else:
            # The saved increase must take effect before the acknowledgement under test.
            control.on_ack(now, 8001, 10_000, True, 0)
            before = control.cwnd_bytes
            control.on_ack(now, size, rtt, ecn, size)
            if ecn and (rtt is None or rtt - 10_000 < 10_000):
                assert control.cwnd_bytes == before
        assert MTU <= control.cwnd_bytes <= 100_000


def test_a_mark_with_little_delay_changes_nothing_though_the_average_is_high():
    control = nscc(delay_weight=0.5)
    control.average_delay_ns = 20_000.0
    control.on_ack(1_000, 1_000, 14_000, True, 0)
    # The delay is 4 us, the average 12 us, and the target 10 us.
    assert (control.average_delay_ns, control.cwnd_bytes) == (12_000, 10_000)


# Losses, trims and quick adapt


def test_an_inferred_loss_costs_its_size_and_nothing_more():
    control = nscc(cwnd=50_000)
    control.on_ack(0, 0, 10_000, True, 0)
    control.on_inferred_loss(2_000)
    assert control.cwnd_bytes == 48_000
    for now in (20_000, 40_000, 60_000):
        control.on_ack(now, 1_000, 15_000, True, 0)
    # The flow has little to send: 1000 B a round trip are far below the gate. The window grows by 3 eta.
    assert control.cwnd_bytes == 48_300
    control.on_inferred_loss(100_000)
    assert control.cwnd_bytes == MTU, "never below one packet"


def trimmed():
    """Return an NSCC object after quick adapt. At 20 us its window is 9000 B, and 24,000 B are in flight."""
    control = nscc(cwnd=50_000)
    control.on_ack(0, 0, 10_000, True, 0)  # this begins a period of base RTT + target = 20 us
    control.on_ack(10_000, 5_000, 15_000, True, 30_000)
    assert control.cwnd_bytes == 50_100, "eta"
    control.on_trim(12_000, 2_000, 28_000)
    assert control.cwnd_bytes == 48_100, "within the period a trim costs its size"
    control.on_ack(20_000, 4_000, 15_000, False, 24_000)
    # 5000 + 4000 B were acknowledged, less than the gate of 100,000 / 8.
    assert control.cwnd_bytes == 9_000
    return control


def test_after_quick_adapt_marks_and_trims_of_what_was_in_flight_are_ignored():
    control = trimmed()
    control.on_trim(21_000, 1_000, 23_000)
    control.on_ack(22_000, 22_000, 30_000, True, 1_000)
    # 23,000 of 24,000 B are acknowledged.
    assert control.cwnd_bytes == 9_000
    control.on_ack(23_000, 1_000, 30_000, True, 0)
    # All bytes are acknowledged. A delay of 20 us gives the factor 0.6, and the period since 10 us adds eta.
    assert control.cwnd_bytes == 5_500


def test_after_quick_adapt_inferred_losses_count_as_ignored_too():
    control = trimmed()
    control.on_inferred_loss(1_000)
    control.on_ack(21_000, 22_999, 30_000, True, 1)
    assert control.cwnd_bytes == 8_000
    control.on_ack(21_000, 1, 30_000, True, 0)
    # The window is 0.6 * 8000, plus eta.
    assert control.cwnd_bytes == 4_900


def test_quick_adapt_drops_what_was_gathered():
    control = trimmed()
    control.on_ack(20_000, 0, 14_000, False, 24_000)
    assert control.cwnd_bytes == 9_100, "eta, of the period that began at 10 us"
    control.on_ack(21_000, 7_000, 14_000, False, 17_000)  # saves an increase of 0.5 * 7000 * 6000
    control.on_ack(22_000, 2_000, 15_000, True, 15_000)  # a mark that is ignored
    control.on_ack(23_000, 1_500, 14_000, False, 13_500)
    assert control.cwnd_bytes == 9_100, "1500 bytes since, not 10,500"
    control.on_ack(30_000, 0, 14_000, False, 13_500)
    # The increase is 0.5 * 1500 * 6000 / 9100 = 494.5, plus eta.
    assert control.cwnd_bytes == 9_694


@pytest.mark.parametrize(("acked", "cwnd"), [(20_000, 149_000), (10_000, 10_000)])
def test_gate_and_period_of_quick_adapt_follow_the_base_rtt(acked, cwnd):
    control = Nscc(NsccConfig(base_rtt_ns=100_000, link_bps=16_000_000_000), MTU, trim=True)
    control.on_ack(0, 0, 50_000, True, 0)
    # The largest window is 3 B per ns for 50 us: 150,000 B. The gate is an eighth of this window: 18,750 B.
    # The period is 50 + 75 us.
    control.on_ack(100_000, acked, None, False, 0)
    control.on_trim(125_000, 1_000, 0)
    assert control.cwnd_bytes == cwnd


def test_without_trims_or_delay_a_period_begins_anew():
    control = nscc(cwnd=50_000)
    control.on_ack(0, 0, 10_000, True, 0)
    control.on_ack(20_000, 9_000, 15_000, True, 0)  # this ends the period in which 9000 B were acknowledged
    control.on_ack(39_999, 3_000, 15_000, True, 0)
    control.on_trim(40_000, 1_000, 0)
    assert control.cwnd_bytes == 3_000


@pytest.mark.parametrize("changes", [{"disable_qa": True}, {"qa_gate": 4}])
def test_quick_adapt_may_be_off_or_gated(changes):
    control = nscc(cwnd=50_000, **changes)
    control.on_ack(0, 0, 10_000, True, 0)
    control.on_ack(10_000, 9_000, 15_000, True, 0)
    control.on_trim(20_000, 2_000, 0)
    # With gate 4, quick adapt acts only below 100,000 / 16 = 6250 B. So the trim costs only its size.
    assert control.cwnd_bytes == 48_100


@pytest.mark.parametrize(
    ("trim", "rtt_ns", "cwnd"), [(False, 50_001, 5_000), (False, 50_000, 50_400), (True, 1_000_000, 50_400)]
)
def test_delay_alone_calls_for_quick_adapt_only_where_switches_do_not_trim(trim, rtt_ns, cwnd):
    control = nscc(cwnd=50_000, trim=trim)
    control.on_ack(0, 0, 10_000, True, 0)
    control.on_ack(20_000, 5_000, rtt_ns, False, 0)
    # The delay is more than 4 targets of 10 us. Without quick adapt: 3000 * 5000 / 50,000 = 300, plus eta.
    assert control.cwnd_bytes == cwnd


def test_a_trim_feeds_the_average_with_the_configured_base_rtt():
    control = nscc(cwnd=50_000)
    control.on_ack(0, 0, 8_000, True, 0)
    control.on_trim(1_000, 1_000, 0)
    assert (control.base_rtt_ns, control.average_delay_ns) == (8_000, 10_000)


def test_the_average_may_be_the_mean_of_the_last_base_rtt():
    control = nscc(delay_weight=0.0)
    control.on_ack(1_000, 0, 12_000, True, 0)
    control.on_ack(6_000, 0, 16_000, True, 0)
    assert control.average_delay_ns == (2_000 + 6_000) / 2
    control.on_ack(11_000, 0, None, True, 0)
    assert control.average_delay_ns == 4_000, "no sample, no change"
    # The first sample no longer counts: it is 10,001 ns old, more than the base RTT of 10 us.
    control.on_ack(11_001, 0, 14_000, True, 0)
    assert control.average_delay_ns == (6_000 + 4_000) / 2
    control.on_trim(11_002, 0, 0)
    assert control.average_delay_ns == pytest.approx((6_000 + 4_000 + 10_000) / 3)


@pytest.mark.parametrize(
    ("rtt_ns", "ecn", "ends", "ends_uec"),
    [
        (12_000, False, True, True),  # delay below the target, no mark
        (12_000, True, True, False),
        (25_000, False, True, False),  # above the target
        (25_000, True, True, True),  # this causes a decrease
    ],
)
@pytest.mark.parametrize("by_marks", [True, False])
def test_what_ends_the_fast_increase(rtt_ns, ecn, ends, ends_uec, by_marks):
    control = nscc(fast_ends_by_marks=by_marks)
    control.on_ack(1, 10_001, 10_000, False, 0)
    assert control._cwnd == 15_000.5, "half of a whole window without delay"
    control.on_ack(1, 0, rtt_ns, ecn, 0)
    before = control._cwnd
    control.on_ack(1, 1000, 10_000, False, 0)
    assert control._cwnd - before == (0 if (ends if by_marks else ends_uec) else 500)


@pytest.mark.parametrize("nack_rtt", [True, False])
def test_the_rtt_of_a_nack_may_lower_the_base_rtt(nack_rtt):
    control = nscc(nack_rtt=nack_rtt)
    for rtt_ns, base_ns in ((11_000, 10_000), (0, 10_000), (8_000, 8_000), (9_000, 8_000)):
        control.on_nack_rtt(rtt_ns)
        assert control.base_rtt_ns == (base_ns if nack_rtt else 10_000)


def test_a_last_hop_trim_lowers_the_window_and_a_refusal_does_not():
    control = make_controller(MrcConfig(congestion="nscc"))
    first = control.cwnd_bytes
    for _ in range(4):
        control.on_sent(0, 4180)
    control.on_trim(0, 4180, last_hop=True)
    control.on_trim(0, 4180, last_hop=False)
    control.on_withdrawn(4180)
    assert (control.cwnd_bytes, control.inflight_bytes) == (first - 2 * 4180, 4180)


def test_where_queues_are_deep_their_delay_alone_does_not_quick_adapt():
    slow = MrcConfig(congestion="nscc", port_bps=25_000_000, trim=False)
    assert slow.queue_time_ns() == 24 * 9014 * 8 * 40  # 40 ns for each bit
    switch = queue_setting(LinkProfile(rate_bps=25_000_000, delay_ns=0, mtu_bytes=9000), last_hop=True)
    assert slow.queue_time_ns() == pytest.approx(switch.trim_from * 1000 / TICKS_PER_US, rel=1e-5)
    assert MrcConfig(congestion="nscc").queue_time_ns() == 0
    control = make_controller(slow)
    control.calibrate(5_000_000)
    assert control.nscc.config.qa_threshold_ns == slow.queue_time_ns() > 4 * 5_000_000
    given = MrcConfig(congestion="nscc", port_bps=25_000_000, nscc=NsccConfig(qa_threshold_ns=1))
    assert make_controller(given).nscc.config.qa_threshold_ns == 1


@pytest.mark.parametrize("trim", [True, False])
def test_who_is_slow_behind_a_deep_queue_is_not_kept_slow(trim):
    """Three senders to a NIC fill its queue, without marks. The small window of a fourth sender must grow."""
    base_ns, byte_ns = 5_600_000, 80  # 100 Mbit/s
    config = MrcConfig(
        congestion="nscc", port_bps=25_000_000, nscc=NsccConfig(link_bps=100_000_000), trim=trim
    )
    flows = [make_controller(config) for _ in range(4)]
    for flow in flows:
        flow.calibrate(base_ns)
        flow.on_ack(0, 0, None, False)
    flows[3].nscc._set(8_000)
    flows[3].on_ack(0, 0, None, False)
    now = 0
    for _ in range(60):
        rtt = max(base_ns, sum(flow.cwnd_bytes for flow in flows) * byte_ns)
        for _ in range(8):  # a window is acknowledged within one round trip
            now += rtt // 8
            for flow in flows:
                part = flow.cwnd_bytes // 8
                flow.on_sent(now, part)
                flow.on_ack(now, part, rtt, False)
    assert min(f.cwnd_bytes for f in flows) > 0.9 * max(f.cwnd_bytes for f in flows)


# The receiver's penalty


def test_a_penalty_cuts_the_window_to_what_is_in_flight_and_takes_its_part():
    control = nscc()
    control.on_ack(1_000, 2_000, None, False, 8_000, penalty=64)
    # 8000 B are in flight. Half of the 2000 acknowledged bytes is subtracted.
    assert control.cwnd_bytes == 7_000
    control.on_ack(2_000, 1_000, None, False, 20_000, penalty=127)
    # The window shrinks by 127 * 1000 >> 7 = 992.
    assert control.cwnd_bytes == 6_008
    control.on_ack(3_000, 0, None, False, -300, penalty=1)
    assert control.cwnd_bytes == MTU, "never below one packet, though what is in flight may be negative"


def test_the_window_before_the_penalty_comes_back_once_where_the_receiver_says_so():
    control = nscc()
    for now in (1_000, 2_000):
        control.on_ack(now, 1_000, None, False, 50_000, penalty=64)
    assert control.cwnd_bytes == 9_000
    control.on_ack(3_000, 0, None, False, 50_000, penalty=64, restore=True)
    control.on_ack(4_000, 0, None, False, 50_000)
    assert control.cwnd_bytes == 9_000, "not as long as the penalty lasts, nor without the bit"
    control.on_ack(5_000, 0, None, False, 50_000, restore=True)
    assert control.cwnd_bytes == 10_000
    control.on_inferred_loss(1_000)
    control.on_ack(6_000, 0, None, False, 50_000, restore=True)
    assert control.cwnd_bytes == 9_000


@pytest.mark.parametrize("rtt_ns", [10_000, 14_000, 25_000])
def test_under_a_penalty_no_quadrant_increases_the_window(rtt_ns):
    control = nscc()
    for n in range(4):
        control.on_ack(2_000 * n, 12_800, rtt_ns, False, 50_000, penalty=1)
    # The window shrinks by four times 12,800 / 128, although more than 8000 B arrived each time.
    assert control.cwnd_bytes == 9_600
    control.on_ack(9_000, 9_000, 14_000, True, 50_000)
    assert control.cwnd_bytes == 9_600, "nothing was gathered"


def test_under_a_penalty_a_marked_delay_decreases_the_window():
    control = nscc()
    control.on_ack(1_000, 1_280, 30_000, True, 50_000, penalty=10)
    # 10 * 1280 / 128 = 100 is subtracted, then the rest is multiplied by 0.6.
    assert control.cwnd_bytes == 5_940


def test_the_first_window_may_be_smaller_than_the_largest():
    def made(first_cwnd_bytes):
        return Nscc(NsccConfig(**KNOBS, first_cwnd_bytes=first_cwnd_bytes), MTU, trim=True)

    assert made(20_000).cwnd_bytes == 20_000
    assert made(0).cwnd_bytes == made(1_000_000).cwnd_bytes == 100_000
    again = made(20_000)
    again.on_inferred_loss(5_000)
    again.calibrate(again.base_rtt_ns)
    assert again.cwnd_bytes == 20_000
    with pytest.raises(ValueError, match="first_cwnd_bytes"):
        made(-1)
