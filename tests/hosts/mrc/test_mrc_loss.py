"""Loss inference and timers, to the nanosecond. Time is an argument, so the tests never wait."""

from itertools import pairwise

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.events import EvRetired, ProbeSent, SpuriousLoss
from mrclab.hosts.mrc.sending.recovery import AckTimer, ReorderingWindow, TailTimer
from mrclab.hosts.mrc.wire import Opcode
from mrclab.hosts.rdma.events import LossReason, PacketLost, QpError, Retransmitted, SendCompleted, Status
from mrclab.hosts.rdma.frames import BTH_OFFSET
from mrclab.hosts.rdma.rtt import RttEstimator
from tests.support.mrc_sim import Network, Sim, ev_value, frame_ev, frame_psn, is_data


def test_rtt_is_rfc_6298():
    rtt = RttEstimator(1_000_000)
    rtt.sample(80_000)
    assert (rtt.srtt_ns, rtt.var_ns, rtt.min_ns) == (80_000, 40_000, 80_000)
    rtt.sample(160_000)
    assert (rtt.srtt_ns, rtt.var_ns, rtt.min_ns) == (90_000, 50_000, 80_000)


def test_guard_takes_the_largest_of_floor_fraction_queueing_and_overtaking():
    rtt = RttEstimator(0)
    guard = ReorderingWindow(
        MrcConfig(
            min_reorder_ns=1000, reorder_rtt_fraction=0.5, reorder_queueing_factor=2.0, max_reorder_ns=50_000
        ),
        rtt,
    )
    assert guard.ns(0) == 1000
    rtt.sample(4000)
    assert guard.ns(0) == 2000
    rtt.sample(2504)
    # The smoothed RTT is 4000 - 1496/8 = 3813, and the smallest is 2504.
    assert guard.ns(0) == 2 * (3813 - 2504)
    guard.on_overtaken(0, 2200)
    assert guard.ns(0) == 3300
    guard.on_overtaken(0, 1 << 30)
    assert guard.ns(0) == 50_000


def test_hiccups_do_not_widen_the_guard_but_standing_queues_do():
    rtt = RttEstimator(0)
    guard = ReorderingWindow(MrcConfig(min_reorder_ns=20_000), rtt)
    for n in range(400):
        rtt.sample(2_000_000 if n % 4 else 40_000)
    assert rtt.srtt_ns > 1_000_000
    assert guard.ns(0) == 20_000
    for _ in range(16):
        rtt.sample(140_000)
    assert guard.ns(0) == 2 * (140_000 - 40_000)


def test_overtaking_is_remembered_for_one_to_two_periods():
    guard = ReorderingWindow(MrcConfig(min_reorder_ns=1000, initial_rtt_ns=0), RttEstimator(0))
    guard.on_overtaken(100_000_000, 8000)
    guard.on_overtaken(200_000_000, 6000)
    assert guard.ns(200_000_000) == 12_000
    assert guard.ns(300_000_000) == 12_000, "the period before still counts"
    guard.on_overtaken(300_000_001, 4000)
    assert guard.ns(600_000_000) == 1000, "only what was larger than all remembered is noted"


def test_a_slow_link_lifts_floor_and_ceiling_of_the_reordering_window():
    # 862 + 138 bytes are 8000 bits: 8 ms at 1 Mbit/s.
    config = MrcConfig(mtu_bytes=862, port_bps=1_000_000)
    assert config.packet_time_ns() == 8_000_000
    guard = ReorderingWindow(config, RttEstimator(1000))
    assert guard.ns(0) == 48_000_000
    guard.on_overtaken(0, 1 << 40)
    assert guard.ns(0) == 288_000_000
    fast = ReorderingWindow(MrcConfig(port_bps=400_000_000_000), RttEstimator(1000))
    assert fast.ns(0) == 20_000, "where a packet takes next to no time all is as before"
    assert TailTimer(config, RttEstimator(1 << 40)).due_ns(0) == 48_000_000
    with pytest.raises(ValueError, match="port_bps"):
        MrcConfig(port_bps=-1)


def test_guard_widens_on_a_false_loss_and_narrows_in_quiet():
    guard = ReorderingWindow(MrcConfig(min_reorder_ns=1000, initial_rtt_ns=0), RttEstimator(0))
    guard.on_spurious(0)
    guard.on_spurious(0)
    assert guard.ns(10) == 4000
    assert guard.ns(1_000_000_001) == 2000
    assert guard.ns(1_000_000_002) == 2000
    assert guard.ns(2_100_000_002) == 1000


def test_ack_timer_is_linear_then_exponential_then_exhausted():
    timer = AckTimer(
        MrcConfig(ack_timeout_exponent=8, linear_retries=2, exponential_retries=3), RttEstimator(0)
    )
    base = 1024 << 8
    seen = []
    while not timer.exhausted:
        seen.append(timer.timeout_ns() // base)
        timer.retries += 1
    assert seen == [1, 1, 2, 4, 8, 16]


def test_ack_timer_never_fires_within_four_rtts():
    timer = AckTimer(MrcConfig(ack_timeout_exponent=0), RttEstimator(500_000))
    assert timer.timeout_ns() == 2_000_000


def test_exponential_count_25_is_for_ever():
    timer = AckTimer(MrcConfig(exponential_retries=25), RttEstimator(0))
    timer.retries = 1000
    assert not timer.exhausted


def test_tail_timer_doubles_up_to_its_ceiling():
    timer = TailTimer(MrcConfig(tail_probe_max_ns=1_000_000), RttEstimator(100_000))
    timer.since_ns = 7
    waits = []
    for timer.probes in range(4):
        waits.append(timer.due_ns(50_000) - 7)
    assert waits == [150_000, 300_000, 600_000, 1_000_000]
    timer.probes = 0
    assert timer.due_ns(200_000) - 7 == 200_001, "sent later than the guard, or its answer proves nothing"


def test_no_tail_probe_comes_before_the_guard_has_passed():
    timer = TailTimer(MrcConfig(tail_probe_max_ns=1_000_000), RttEstimator(100_000))
    assert timer.due_ns(3_000_000) == 3_000_001
    timer.probes = 4
    assert timer.due_ns(3_000_000) == 3_000_001


class Hand:
    """A sender and a peer between which a test carries frames one by one, at chosen times."""

    def __init__(self, **options):
        shape = {key: options.pop(key) for key in ("planes", "paths") if key in options}
        self.sim = Sim(seed=3, config=MrcConfig(sack_coalesce=1, **options), **shape)
        self.a, self.b = self.sim.ends
        self.qpn = self.sim.qpns[0]
        self.region = self.b.register_memory(bytearray(1 << 20))
        self.wr = 0

    def post(self, packets):
        self.a.post_write(self.qpn, self.wr, bytes(4096 * packets), self.region.address, self.region.rkey)
        self.wr += 1

    def send(self, now, limit=1):
        return self.a.frames_to_send(now, None, limit)

    def answer(self, frames, now):
        """Give frames to the peer and its answers to the sender, all at one time."""
        for port, frame in frames:
            self.b.receive(port, frame, now)
        for port, frame in self.b.frames_to_send(now):
            self.a.receive(port, frame, now)

    def events(self, kind):
        return [event for event in self.a.events() if isinstance(event, kind)]


def test_lost_only_when_something_sent_more_than_the_reordering_window_later_was_acknowledged():
    hand = Hand(
        min_reorder_ns=50_000, initial_rtt_ns=1000, reorder_rtt_fraction=0.0, reorder_queueing_factor=0.0
    )
    hand.post(4)
    first = hand.send(1_000_000)
    second = hand.send(1_020_000)
    third = hand.send(1_050_000)
    fourth = hand.send(1_050_001)
    hand.answer(second, 1_100_000)
    hand.answer(third, 1_100_000)
    assert hand.events(PacketLost) == []
    hand.answer(fourth, 1_200_000)
    (lost,) = hand.events(PacketLost)
    assert (lost.psn, lost.ev) == (frame_psn(first[0][1]), frame_ev(first[0][1]))
    assert (lost.t_ns, lost.sent_ns, lost.reason) == (1_200_000, 1_000_000, LossReason.GAP)


def test_a_stall_of_the_receiver_is_no_loss():
    hand = Hand()
    hand.post(3)
    frames = [hand.send(1_000_000 + 1000 * n)[0] for n in range(3)]
    # Half a second later everything is answered. The oldest packet is answered last.
    hand.answer(frames[1:], 500_000_000)
    hand.answer(frames[:1], 500_000_000)
    events = list(hand.a.events())
    assert [type(e) for e in events] == [SendCompleted]


def test_loss_retires_the_ev_at_once_and_the_packet_goes_on_another():
    hand = Hand(initial_rtt_ns=1000, reorder_queueing_factor=0.0, reorder_rtt_fraction=0.0)
    hand.post(2)
    first = hand.send(1_000_000)
    second = hand.send(1_100_000)
    hand.answer(second, 1_150_000)
    events = list(hand.a.events())
    lost = frame_ev(first[0][1])
    assert [type(e) for e in events] == [PacketLost, EvRetired]
    assert events[1].ev == lost
    ((_, again),) = hand.send(1_150_000)
    assert frame_psn(again) == frame_psn(first[0][1])
    assert frame_ev(again) != lost
    assert again[BTH_OFFSET + 8] & 0x20, "rtx is set"
    assert again[14:16] != first[0][1][14:16], "in the class of retransmissions"
    assert [type(e) for e in hand.a.events()] == [Retransmitted]


def test_tail_probe_comes_after_one_and_a_half_rtts_and_repairs():
    hand = Hand(initial_rtt_ns=100_000, min_reorder_ns=50_000)
    hand.post(1)
    (sent,) = hand.send(1_000_000)
    assert hand.a.next_timer() == 1_000_000 + 150_000
    hand.a.handle_timer(1_149_999)
    assert hand.send(1_149_999) == []
    hand.a.handle_timer(1_150_000)
    (probe,) = hand.send(1_150_000)
    assert probe[1][BTH_OFFSET] == Opcode.PROBE_REQUEST
    assert frame_ev(probe[1]) != frame_ev(sent[1])
    assert probe[0] != sent[0], "on another plane"
    hand.answer([probe], 1_190_000)
    lost, retired = (e for e in hand.a.events() if isinstance(e, PacketLost | EvRetired))
    assert (lost.reason, retired.ev) == (LossReason.PROBE, frame_ev(sent[1]))
    (again,) = hand.send(1_190_000)
    assert is_data(again[1])
    assert frame_ev(again[1]) != frame_ev(sent[1])
    hand.answer([again], 1_230_000)
    assert [e.status for e in hand.events(SendCompleted)] == [Status.SUCCESS]


def test_a_late_original_is_recognised_and_widens_the_reordering_window():
    hand = Hand(initial_rtt_ns=1000, reorder_queueing_factor=0.0, reorder_rtt_fraction=0.0)
    hand.post(2)
    first = hand.send(1_000_000)
    second = hand.send(1_100_000)
    hand.answer(second, 1_150_000)
    again = hand.send(1_150_000)
    hand.a.handle_timer(1_151_000)
    list(hand.a.events())
    hand.answer(first, 1_160_000)
    hand.answer(again, 1_170_000)
    (spurious,) = hand.events(SpuriousLoss)
    assert spurious.ev == frame_ev(first[0][1])
    assert spurious.reordering_window_ns == 40_000, "the floor, doubled"
    assert hand.b.qp_counters(hand.sim.qpns[1]).duplicates == 1
    # The path is probed at once.
    assert hand.a.next_timer() <= 1_170_000


def test_silence_ends_in_retry_counter_exceeded_with_all_flushed_in_order():
    hand = Hand(initial_rtt_ns=10_000, ack_timeout_exponent=4, linear_retries=1, exponential_retries=1)
    for _ in range(3):
        hand.post(1)
    hand.send(1_000_000, limit=10)
    now, probes = 1_000_000, 0
    while (due := hand.a.next_timer()) is not None and now < 10_000_000:
        now = max(now, due)
        hand.a.handle_timer(now)
        probes += len(hand.send(now, limit=100))
    # The waits would be 16, 33 and 66 us. But a wait is at least four smoothed RTTs, 40 us.
    assert now == 1_000_000 + 40_000 + 40_000 + (1024 << 6)
    events = list(hand.a.events())
    (error,) = [e for e in events if isinstance(e, QpError)]
    assert (error.status, error.status.value) == (Status.RETRY_EXCEEDED, "Retry Counter Exceeded")
    done = [e for e in events if isinstance(e, SendCompleted)]
    assert [(e.wr_id, e.status) for e in done] == [
        (0, Status.RETRY_EXCEEDED),
        (1, Status.FLUSHED),
        (2, Status.FLUSHED),
    ]
    assert probes == sum(isinstance(e, ProbeSent) for e in events) > 0
    assert not [e for e in events if isinstance(e, EvRetired)], (
        "silence of all paths is no evidence against one"
    )
    hand.post(1)
    assert [e.status for e in hand.events(SendCompleted)] == [Status.FLUSHED]


def test_ack_timeout_retires_when_the_peer_was_heard_meanwhile():
    hand = Hand(initial_rtt_ns=10_000, ack_timeout_exponent=6, tail_probe_max_ns=1 << 40)
    hand.post(1)
    (sent,) = hand.send(1_000_000)
    back = hand.a.register_memory(bytearray(64))
    hand.b.post_write(hand.sim.qpns[1], 1, b"hello", back.address, back.rkey)
    for port, frame in hand.b.frames_to_send(1_064_000):
        hand.a.receive(port, frame, 1_064_000)
    hand.a.qps[hand.qpn].requester.recovery.tail.since_ns = 1 << 50
    due = hand.a.next_timer()
    assert due == 1_000_000 + (1024 << 6)
    hand.a.handle_timer(due)
    events = list(hand.a.events())
    assert [e.reason for e in events if isinstance(e, PacketLost)] == [LossReason.TIMEOUT]
    assert [e.ev for e in events if isinstance(e, EvRetired)] == [frame_ev(sent[1])]


def test_a_timer_served_late_first_lets_unread_answers_in():
    hand = Hand(initial_rtt_ns=10_000, stall_grace_ns=1_000_000)
    hand.post(1)
    sent = hand.send(1_000_000)
    hand.a.handle_timer(90_000_000)
    assert hand.send(90_000_000) == []
    hand.answer(sent, 90_000_000)
    assert [type(e) for e in hand.a.events()] == [SendCompleted]


def test_one_dead_path_of_many_is_detected_within_an_rtt_and_the_reordering_window():
    sim = Sim(seed=11, network=Network(delay_ns=20_000, jitter_ns=2_000))
    region = sim.ends[1].register_memory(bytearray(8 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(8 << 20), region.address, region.rkey)
    killed = sim.now_ns + 500_000
    sim.at(killed, lambda: sim.network.dead.add(ev_value(2, 4)))
    sim.run(until=lambda: bool(sim.of(0, SendCompleted)))
    (retired,) = [e for e in sim.of(0, EvRetired) if e.t_ns > killed]
    assert retired.ev == ev_value(2, 4)
    first_lost = min(e.sent_ns for e in sim.of(0, PacketLost))
    # The packets of the next round leave one RTT later, and their answers take another RTT.
    assert retired.t_ns - first_lost < 2 * 44_000 + 50_000 + 10_000
    assert len(sim.of(0, PacketLost)) == len(sim.of(0, Retransmitted))


def test_an_overtaken_packet_is_asked_about_at_once_when_nothing_under_way_can_tell():
    hand = Hand(initial_rtt_ns=40_000, sack_threshold_bytes=1, reorder_queueing_factor=0.0)
    hand.post(2)
    first, second = hand.send(1_000_000), hand.send(1_005_000)
    hand.answer(second, 1_045_000)
    # The second packet was sent only 5 us after the first, and the guard is 20 us. So it cannot show a loss.
    # A probe is sent 45 us after the first packet, so its answer can show a loss.
    (probe,) = hand.send(1_045_000)
    assert probe[1][BTH_OFFSET] == Opcode.PROBE_REQUEST
    assert hand.events(PacketLost) == []
    hand.answer([probe], 1_085_000)
    (lost,) = hand.events(PacketLost)
    assert (lost.ev, lost.reason) == (frame_ev(first[0][1]), LossReason.PROBE)


def test_an_overtaken_packet_is_asked_about_as_soon_as_an_answer_can_decide():
    """A later packet was acknowledged within the guard time. The probe waits until this time is over."""
    hand = Hand(initial_rtt_ns=10_000, sack_threshold_bytes=1, reorder_queueing_factor=0.0)
    hand.post(2)
    first, second = hand.send(1_000_000), hand.send(1_005_000)
    hand.answer(second, 1_015_000)
    assert hand.send(1_015_000) == []
    assert hand.a.next_timer() == 1_020_001, "the guard is 20 us; the tail timer comes 5 us later"
    hand.a.handle_timer(1_020_001)
    (probe,) = hand.send(1_020_001)
    assert probe[1][BTH_OFFSET] == Opcode.PROBE_REQUEST
    hand.answer([probe], 1_030_001)
    (lost,) = hand.events(PacketLost)
    assert (lost.ev, lost.reason) == (frame_ev(first[0][1]), LossReason.PROBE)


def test_what_is_sent_meanwhile_takes_the_place_of_that_probe():
    hand = Hand(initial_rtt_ns=10_000, sack_threshold_bytes=1, reorder_queueing_factor=0.0)
    hand.post(2)
    hand.send(1_000_000)
    second = hand.send(1_005_000)
    hand.answer(second, 1_015_000)
    assert hand.send(1_015_000) == []
    assert hand.a.next_timer() == 1_020_001
    hand.post(1)
    (third,) = hand.send(1_021_000)
    assert third[1][BTH_OFFSET] != Opcode.PROBE_REQUEST
    hand.a.handle_timer(1_021_000)
    assert hand.send(1_021_000) == []
    assert hand.events(ProbeSent) == []


def on_two_paths(**options):
    """Return a sender with two paths in one plane, and the packets that it sent on each path at 1 ms."""
    hand = Hand(planes=1, paths=2, initial_rtt_ns=100_000, **options)
    hand.post(2)
    return hand, *hand.send(1_000_000, limit=2)


def test_a_tail_probe_shuns_the_path_of_what_is_still_under_way():
    """The last packet has arrived, the first is lost. The probe must take the path of the last packet."""
    hand, lost, arrived = on_two_paths(min_reorder_ns=50_000, sack_threshold_bytes=1)
    assert frame_ev(lost[1]) != frame_ev(arrived[1])
    hand.answer([arrived], 1_050_000)
    due = hand.a.next_timer()
    hand.a.handle_timer(due)
    (probe,) = hand.send(due)
    assert frame_ev(probe[1]) == frame_ev(arrived[1])
    hand.answer([probe], due + 50_000)
    (packet,) = hand.events(PacketLost)
    assert packet.ev == frame_ev(lost[1])


def test_a_tail_probe_shuns_the_path_of_the_one_before_it():
    hand, _, second = on_two_paths(ack_timeout_exponent=13)
    evs = []
    for _ in range(6):
        due = hand.a.next_timer()
        hand.a.handle_timer(due)
        evs += [frame_ev(frame) for _, frame in hand.send(due) if frame[BTH_OFFSET] == Opcode.PROBE_REQUEST]
    assert evs[0] != frame_ev(second[1])
    assert len(evs) >= 3
    assert all(a != b for a, b in pairwise(evs))


def test_what_comes_with_a_probes_answer_was_not_overtaken_by_the_probe():
    """The packets arrived before the probe. So the probe's answer must not enlarge the reordering window."""
    hand = Hand(initial_rtt_ns=40_000, min_reorder_ns=20_000, sack_threshold_bytes=1 << 20)
    hand.post(2)
    sent = hand.send(1_000_000, limit=2)
    due = hand.a.next_timer()
    hand.a.handle_timer(due)
    (probe,) = hand.send(due)
    for port, frame in sent:  # too few packets to trigger a SACK
        hand.b.receive(port, frame, due)
    hand.answer([probe], due + 40_000)
    assert len(hand.events(SendCompleted)) == 1
    assert hand.a.qp_counters(hand.qpn).reordering_window_ns == 20_000


def test_a_probe_of_a_retired_path_proves_nothing_about_others():
    """A probe's answer on an idle path can overtake the answers to earlier packets on other paths."""
    hand = Hand(initial_rtt_ns=1000, reorder_queueing_factor=0.0, reorder_rtt_fraction=0.0)
    hand.post(2)
    first = hand.send(1_000_000)
    hand.answer(hand.send(1_100_000), 1_150_000)
    (retired,) = hand.events(EvRetired)
    hand.answer(hand.send(1_150_000), 1_200_000)  # the lost packet is sent again
    hand.post(1)
    due = hand.a.qps[hand.qpn].requester.evs.next_probe_ns()
    assert due is not None
    data = hand.send(due - 500_000)
    hand.a.handle_timer(due)
    probes = [f for f in hand.send(due, limit=10) if f[1][BTH_OFFSET] == Opcode.PROBE_REQUEST]
    probe = next(f for f in probes if frame_ev(f[1]) == retired.ev == frame_ev(first[0][1]))
    hand.answer([probe], due + 50_000)
    assert hand.events(PacketLost) == []
    hand.answer(data, due + 100_000)
    assert len(hand.events(SendCompleted)) == 1
    assert hand.events(SpuriousLoss) == []


def test_an_overtaken_packet_is_not_asked_about_while_later_packets_are_under_way():
    hand = Hand(initial_rtt_ns=40_000, sack_threshold_bytes=1, reorder_queueing_factor=0.0)
    hand.post(3)
    hand.send(1_000_000)
    second, third = hand.send(1_005_000), hand.send(1_030_000)
    hand.answer(second, 1_045_000)
    assert hand.send(1_045_000) == []
    hand.answer(third, 1_070_000)
    assert [e.reason for e in hand.events(PacketLost)] == [LossReason.GAP]


def test_the_answer_to_an_original_does_not_vouch_for_its_repetition():
    """An acknowledgement less than an RTT after a retransmission cannot be the answer to it."""
    hand = Hand(
        min_reorder_ns=10_000, reorder_queueing_factor=0.0, reorder_rtt_fraction=0.0, sack_threshold_bytes=1
    )
    hand.post(3)
    first, second, third = hand.send(1_000_000), hand.send(1_020_000), hand.send(1_021_000)
    hand.answer(second, 1_060_000)
    assert [e.psn for e in hand.events(PacketLost)] == [frame_psn(first[0][1])]
    again = hand.send(1_150_000)
    assert again[0][1][BTH_OFFSET + 8] & 0x20
    hand.answer(first, 1_152_000)
    assert hand.events(PacketLost) == []
    hand.answer(third, 1_153_000)
    assert [type(e) for e in hand.a.events()] == [SendCompleted]


def test_timers_that_are_always_served_late_still_run_out_of_retries():
    """A busy machine serves every timer late, but in a dead network the request must still fail."""
    hand = Hand(initial_rtt_ns=10_000, exponential_retries=7)
    hand.post(1)
    hand.send(1_000_000)
    now = 1_000_000
    for _ in range(20_000):
        due = hand.a.next_timer()
        if due is None:
            break
        now = max(now, due) + 3_000_000
        hand.a.handle_timer(now)
        hand.a.frames_to_send(now)
    completions = [e for e in hand.a.events() if isinstance(e, SendCompleted)]
    assert [e.status for e in completions] == [Status.RETRY_EXCEEDED]
    assert now < 20_000_000_000


def test_probes_that_nobody_answers_are_not_kept_for_ever():
    """Without a limit, a queue pair keeps thousands of unanswered probes after an hour with faults."""
    config = MrcConfig(probe_interval_ns=1_000_000, probe_interval_max_ns=1_000_000, exponential_retries=25)
    sim = Sim(seed=3, config=config)
    region = sim.ends[1].register_memory(bytearray(1 << 18))
    sim.network.dead_planes.update((0, 1))
    for n in range(20):
        sim.ends[0].post_write(sim.qpns[0], n, bytes(1 << 18), region.address, region.rkey)
    sim.run(2_000_000_000)
    assert len(sim.of(0, ProbeSent)) > 1000
    assert len(sim.ends[0].qps[sim.qpns[0]].requester.probes.outstanding) <= 2 * 32 + 16
