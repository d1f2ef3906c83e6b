"""Congestion control by pencil and paper: each expected figure is worked out in the comment beside it."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.queues import queue_setting
from hosts.mrc import MrcConfig
from hosts.mrc.congestion.choice import NsccControl, make_controller
from hosts.mrc.congestion.nscc import Nscc, NsccConfig
from hosts.mrc.congestion.rate_cap import RateCap
from hosts.mrc.events import WindowChanged
from hosts.rdma.events import SendCompleted, Status
from hosts.rdma.headers import BTH_OFFSET
from hosts.rdma.paths import RemotePaths
from p4src.contract import TICKS_PER_US
from tests.support.mrc_sim import Network, Sim, is_data, remote_paths
from topologies import LinkProfile

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
    "qa_threshold_ns": 40_000,
}


def nscc(cwnd=10_000, **changes):
    control = Nscc(NsccConfig(**{**KNOBS, **changes}), MTU, trim=True)
    control._set(cwnd)
    # The first acknowledgement starts the clocks; it has no RTT and so decides nothing.
    control.on_ack(0, 0, None, False, 0)
    return control


def test_derived_knobs():
    c = NsccConfig(base_rtt_ns=12_000, link_bps=100_000_000_000).resolve(4096, trim=True)
    # BDP = 100 Gbit/s * 12 us = 150 kB, so a = 1; target = 9 us, so b = 0.75.
    assert c.target_delay_ns == 9_000
    assert c.max_cwnd_bytes == 225_000
    assert c.alpha == pytest.approx(4 * 0.75 * 4096 / 9000)
    assert (c.fi, c.fi_scale, c.eta) == (5 * 4096, 0.25, pytest.approx(0.15 * 4096))
    assert (c.adjust_bytes_threshold, c.adjust_period_ns, c.qa_threshold_ns) == (8 * 4096, 12_000, 36_000)
    assert NsccConfig(base_rtt_ns=12_000).resolve(4096, trim=False).target_delay_ns == 12_000


def test_where_queues_are_deep_their_delay_alone_does_not_quick_adapt():
    slow = MrcConfig(congestion="nscc", port_bps=25_000_000)
    assert slow.queue_time_ns() == 24 * 9014 * 8 * 40  # 40 ns a bit
    switch = queue_setting(LinkProfile(rate_bps=25_000_000, delay_ns=0, mtu_bytes=9000), last_hop=True)
    assert slow.queue_time_ns() == pytest.approx(switch.trim_from * 1000 / TICKS_PER_US, rel=1e-5)
    assert MrcConfig(congestion="nscc").queue_time_ns() == 0
    control = make_controller(slow)
    control.calibrate(5_000_000)
    assert control.nscc.config.qa_threshold_ns == slow.queue_time_ns() > 4 * 3_750_000
    given = MrcConfig(congestion="nscc", port_bps=25_000_000, nscc=NsccConfig(qa_threshold_ns=1))
    assert make_controller(given).nscc.config.qa_threshold_ns == 1


def test_who_is_slow_behind_a_deep_queue_is_not_kept_slow():
    """Four senders into one NIC, without marks: three fill the queue, the fourth has a narrow window."""
    base_ns, byte_ns = 5_600_000, 80  # 100 Mbit/s
    config = MrcConfig(congestion="nscc", port_bps=25_000_000, nscc=NsccConfig(link_bps=100_000_000))
    flows = [make_controller(config) for _ in range(4)]
    for flow in flows:
        flow.calibrate(base_ns)
        flow.on_ack(0, 0, None, False)
    flows[3].nscc._set(8_000)
    flows[3].on_ack(0, 0, None, False)
    now = 0
    for _ in range(60):
        rtt = max(base_ns, sum(flow.cwnd_bytes for flow in flows) * byte_ns)
        for _ in range(8):  # a window is acknowledged in the course of a round trip
            now += rtt // 8
            for flow in flows:
                part = flow.cwnd_bytes // 8
                flow.on_sent(now, part)
                flow.on_ack(now, part, rtt, False)
    assert min(f.cwnd_bytes for f in flows) > 0.9 * max(f.cwnd_bytes for f in flows)


def test_the_first_window_is_the_largest():
    assert Nscc(NsccConfig(**KNOBS), MTU, trim=True).cwnd_bytes == 100_000


def test_proportional_increase_is_gathered_until_the_bytes_suffice():
    control = nscc()
    control.on_ack(1_000, 4000, 14_000, False, 0)
    assert control.cwnd_bytes == 10_000
    control.on_ack(2_000, 4000, 14_000, False, 0)
    # Delay 4 us, 6 us to spare: 0.5 * 8000 * 6000 = 24,000,000; over 10,000 that is 2400.
    assert control.cwnd_bytes == 12_400


def test_fair_increase_and_eta_when_the_period_is_over():
    control = nscc()
    control.on_ack(10_000, 2000, 25_000, False, 0)
    # Delay 15 us: 3000 * 2000 = 6,000,000; over 10,000 that is 600. And eta, 100.
    assert control.cwnd_bytes == 10_700
    control.on_ack(15_000, 2000, 25_000, False, 0)
    assert control.cwnd_bytes == 10_700
    control.on_ack(20_000, 0, 25_000, False, 0)
    # 6,000,000 / 10,700 = 560.7, and eta.
    assert control.cwnd_bytes == 11_360


def test_ecn_with_delay_decreases_at_most_once_per_base_rtt():
    control = nscc()
    control.on_ack(1_000, 1000, 30_000, True, 0)
    # Average delay 20 us, target 10: 1 - 0.8 * 10/20 = 0.6.
    assert control.cwnd_bytes == 6_000
    control.on_ack(10_999, 1000, 30_000, True, 0)
    # No second decrease yet; but a period is over, and eta comes come what may.
    assert control.cwnd_bytes == 6_100
    control.on_ack(11_000, 1000, 30_000, True, 0)
    assert control.cwnd_bytes == 3_660


def test_one_decrease_goes_no_further_than_max_md_jump():
    control = nscc(max_md_jump=0.75)
    control.on_ack(1_000, 1000, 49_000, True, 0)
    # 1 - 0.8 * 29/39 = 0.405 would be less.
    assert control.cwnd_bytes == 7_500


def test_the_average_decides_how_far_a_decrease_goes():
    control = nscc(delay_weight=0.25)
    control.on_ack(1_000, 1000, 26_000, True, 0)
    # Average = 0.25 * 16 us = 4 us, below the target: one late packet is no reason.
    assert control.cwnd_bytes == 10_000
    for _ in range(4):
        control.on_ack(1_000, 0, 50_000 - 1, True, 0)
    # The average moves a quarter of the way each time: 12.999, 19.750, ...: past the target with the second.
    # 4 -> 12.99975 us: 1 - 0.8 * 2.99975 / 12.99975 = 0.8154.
    assert control.cwnd_bytes == 8_153


def test_fast_increase_after_a_whole_window_without_delay():
    control = nscc(adjust_bytes_threshold=1 << 30, adjust_period_ns=1 << 30)
    control.on_ack(100, 10_000, 10_500, False, 0)
    assert control.cwnd_bytes == 10_000
    control.on_ack(200, 2_000, 10_500, False, 0)
    # 12,000 > 10,000 in a row without delay: half of these 2000 bytes.
    assert control.cwnd_bytes == 11_000
    control.on_ack(300, 2_000, 12_000, False, 0)
    control.on_ack(400, 2_000, 10_500, False, 0)
    assert control.cwnd_bytes == 11_000, "a delay ends it"


def test_quick_adapt_takes_what_was_delivered_in_the_period():
    control = nscc(cwnd=50_000)
    control.on_ack(0, 0, 10_000, False, 0)  # starts a period of base RTT + target = 20 us
    control.on_ack(10_000, 5_000, 60_000, True, 0)
    # Within the period only the decrease: average delay 50 us, 1 - 0.8 * 40/50 = 0.36, held at 0.5. Then eta.
    assert control.cwnd_bytes == 25_100
    control.on_ack(20_000, 4_000, 60_000, False, 7_000)
    # Delay 50 us > 40: 9000 bytes were delivered, less than the gate, 100,000 / 8.
    assert control.cwnd_bytes == 9_000
    control.on_ack(31_000, 7_000, 60_000, True, 0)
    assert control.cwnd_bytes == 9_100, "eta alone: marks of what was in flight belong to the old window"
    control.on_ack(32_000, 100, 60_000, True, 0)
    assert control.cwnd_bytes == 4_550


@pytest.mark.parametrize("changes", [{"disable_qa": True}, {"qa_gate": 4}])
def test_quick_adapt_may_be_off_or_gated(changes):
    control = nscc(cwnd=50_000, **changes)
    control.on_ack(0, 0, 10_000, False, 0)
    control.on_ack(20_000, 9_000, 60_000, False, 0)
    # Gate 4: 9000 delivered is not less than 100,000 / 16 = 6250. Fair increase instead: 540 and eta.
    assert control.cwnd_bytes == 50_640


def test_a_loss_costs_its_size_and_calls_for_quick_adapt():
    control = nscc(cwnd=50_000)
    control.on_ack(0, 0, 10_000, False, 0)
    control.on_loss(1_000, 2_000, 0)
    assert control.cwnd_bytes == 48_000
    control.on_ack(20_000, 6_000, 15_000, False, 0)
    assert control.cwnd_bytes == 6_000
    control.on_loss(50_000, 100_000, 0)
    assert control.cwnd_bytes == MTU, "never below one packet"


def test_the_receiver_narrows_and_restores():
    control = nscc()
    control.on_receiver(64, False, 10_000)
    # 64/128 of a whole window: half.
    assert control.cwnd_bytes == 5_000
    control.on_receiver(127, False, 5_000)
    # 127 * 5000 >> 7 = 4960; the floor is one packet.
    assert control.cwnd_bytes == MTU
    control.on_receiver(0, True, 0)
    assert control.cwnd_bytes == 10_000


ACKS = st.lists(
    st.tuples(
        st.integers(0, 30_000),  # time passed, ns
        st.integers(0, 20_000),  # bytes
        st.one_of(st.none(), st.integers(0, 80_000)),  # rtt
        st.booleans(),
        st.sampled_from(["ack", "ack", "ack", "loss"]),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(ACKS)
def test_ecn_never_changes_the_window_while_delay_is_below_target(history):
    control, now = nscc(cwnd=40_000), 0
    for passed, size, rtt, ecn, what in history:
        now += passed
        before = control.cwnd_bytes
        if what == "loss":
            control.on_loss(now, size, size)
            assert control.cwnd_bytes <= before
        else:
            control.on_ack(now, size, rtt, ecn, size)
            if ecn and (rtt is None or rtt - 10_000 < 10_000):
                assert control.cwnd_bytes == before
        assert MTU <= control.cwnd_bytes <= 100_000


# The controllers behind the seam


def test_rate_cap_lets_through_its_rate_and_no_more():
    cap = RateCap(cwnd_bytes=1 << 30, rate_bps=8_000_000, burst_bytes=1000)
    now = sent = 0
    while now < 10_000_000:
        if cap.budget_bytes(now) > 0:
            cap.on_sent(now, 400)
            sent += 400
        else:
            due = cap.next_send_ns(now)
            assert due > now
            assert cap.budget_bytes(due - 1001) <= 0
            now = due
    # 1 byte per us for 10 ms, and the burst; one packet more or less.
    assert 11_000 - 400 <= sent <= 11_000 + 400


def test_a_rate_cap_wakes_its_sender_once_for_each_quantum():
    # 8 Mbit/s is a byte per us: the two packets of 400 B leave a debt of 300 B in a bucket of 500.
    cap = RateCap(cwnd_bytes=1 << 30, rate_bps=8_000_000, burst_bytes=500, quantum_bytes=401)
    assert cap.budget_bytes(0) == 500
    for _ in range(2):
        cap.on_sent(0, 400)
    due = cap.next_send_ns(0)
    assert (
        700_000 <= due <= 701_001
    )  # 300 us until it is empty, and 400 us more for another packet behind one
    assert cap.budget_bytes(due - 1001) == 0
    assert cap.budget_bytes(due) >= 401


def test_a_repair_goes_out_ahead_of_its_tokens_and_what_follows_pays_for_it():
    # A byte per us again. After two packets of 400 B the bucket owes 300 B; at 200 us it still owes 100 B.
    cap = RateCap(cwnd_bytes=1 << 30, rate_bps=8_000_000, burst_bytes=500, quantum_bytes=401)
    cap.budget_bytes(0)
    for _ in range(2):
        cap.on_sent(0, 400)
    assert cap.budget_bytes(200_000) <= 0
    cap.on_loss(200_000, 400)
    assert cap.budget_bytes(200_000) == 400
    assert cap.next_send_ns(200_000) is None
    cap.on_sent(200_000, 400)
    # 500 us for the debt, and the 400 more of a quantum.
    assert cap.budget_bytes(200_000) <= 0
    assert 1_100_000 <= cap.next_send_ns(200_000) <= 1_101_001


def test_repairs_go_ahead_by_a_burst_at_most():
    cap = RateCap(cwnd_bytes=1 << 30, rate_bps=8_000_000, burst_bytes=500)
    cap.on_sent(0, 500)
    for _ in range(5):
        cap.on_loss(0, 400)
    assert cap.budget_bytes(0) == 500
    cap.on_sent(0, 400)
    assert cap.budget_bytes(0) == 100


def test_an_answer_is_asked_for_where_nothing_more_follows_within_a_round_trip():
    def asked(window, quantum=1):
        config = MrcConfig(
            congestion="rate",
            rate_bps=8_000_000,
            rate_burst_bytes=2000,
            mtu_bytes=1000,
            cwnd_bytes=window,
            rate_quantum_bytes=quantum,
            initial_rtt_ns=100_000,
        )
        sim = Sim(seed=4, config=config)
        sim.ends[0].post_write(sim.qpns[0], 1, bytes(9000), 0, 0)
        frames = sim.ends[0].frames_to_send(sim.now_ns, None, 8)
        return [bool(frame[BTH_OFFSET + 8] & 0x80) for _, frame in frames]

    assert asked(100_000) == [False, False]
    assert asked(2000) == [False, True]
    assert asked(100_000, quantum=200) == [False, True]  # at a byte per us, 200 us without anything more


def test_a_capped_transfer_takes_its_time_and_wakes_itself():
    config = MrcConfig(congestion="rate", rate_bps=400_000_000)
    sim = Sim(seed=4, config=config, network=Network(jitter_ns=0), keep_frames=True)
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 20), region.address, region.rkey)
    start = sim.now_ns
    sim.run(until=lambda: bool(sim.of(0, SendCompleted)))
    took = sim.of(0, SendCompleted)[0].t_ns - start
    # (1 MiB - the burst of 64 KiB) * 8 / 400 Mbit/s = 19.66 ms, and an RTT.
    assert 19_500_000 < took < 19_900_000
    probes = [s for s in sim.sightings if s.source == 0 and not is_data(s.frame)]
    assert len(probes) <= 1, "waiting is no tail, but the first burst may leave a gap to ask about"


def capped(write_bytes=20_000):
    """A sender whose first packet emptied the bucket of its cap, 1 Mbit/s: the next may go 32.8 ms later."""
    config = MrcConfig(congestion="rate", rate_bps=1_000_000, rate_burst_bytes=1, mtu_bytes=4096)
    sim = Sim(seed=4, config=config, network=Network(jitter_ns=0))
    region = sim.ends[1].register_memory(bytearray(write_bytes))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(write_bytes), region.address, region.rkey)
    return sim, sim.ends[0]


def test_a_capped_sender_that_is_asked_late_still_goes_on():
    """A driver may ask for frames at any time; a moment to send at that passed meanwhile must not be lost."""
    sim, sender = capped()
    start = sim.now_ns
    sim.run(5_000_000)
    counters = sender.qp_counters(sim.qpns[0])
    assert (counters.sent, counters.inflight_bytes) == (1, 0)
    due = sender.next_timer()
    assert 32_000_000 < due - start < 33_000_000
    late = due + 50_000_000
    assert not sender.frames_to_send(late)
    assert sender.next_timer() == late
    sender.handle_timer(late)
    assert sender.frames_to_send(late)


def test_a_capped_sender_goes_on_at_its_time_though_a_packet_is_unanswered():
    _, sender = capped()
    [_] = sender.frames_to_send(0)
    due = 0
    while not any(is_data(frame) for _, frame in sender.frames_to_send(due)):
        due = sender.next_timer()
        assert due is not None
        assert due < 33_000_000
        sender.handle_timer(due)


def nscc_sim(queue_pairs=1, **network):
    knobs = NsccConfig(base_rtt_ns=50_000, link_bps=6_000_000_000)
    sim = Sim(seed=4, config=MrcConfig(congestion="nscc", nscc=knobs), network=Network(**network))
    qpns = [list(sim.qpns)]
    for _ in range(queue_pairs - 1):
        pair = [end.create_qp() for end in sim.ends]
        for me in (0, 1):
            remote = sim.ends[1 - me].local_attributes(pair[1 - me])
            sim.ends[me].connect(pair[me], remote, remote_paths(me, 1 - me, sim.planes, sim.paths))
        qpns.append(pair)
    return sim, qpns


def test_queue_pairs_to_one_destination_share_a_window():
    sim, qpns = nscc_sim(queue_pairs=5, delay_ns=25_000, jitter_ns=0)
    a = sim.ends[0]
    controllers = {id(a.qps[mine].requester.congestion) for mine, _ in qpns}
    assert len(controllers) == 1
    control = a.qps[qpns[0][0]].requester.congestion
    assert isinstance(control, NsccControl)
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    for mine, _ in qpns:
        a.post_write(mine, mine, bytes(1 << 18), region.address, region.rkey)
    burst = a.frames_to_send(sim.now_ns, None, 1000)
    # Counted are 84 bytes a packet beyond the payload; a packet may start while the window is not full.
    assert len(burst) == -(-control.cwnd_bytes // (4096 + 84))
    for port, frame in burst:
        sim._transmit(0, port, frame)
    sim.run(until=lambda: len(sim.of(0, SendCompleted)) == 5)
    assert len(sim.of(0, SendCompleted)) == 5
    assert control.inflight_bytes == 0
    assert not a.qps[qpns[0][0]].sharing.waiting


def test_a_slow_network_narrows_the_window_and_says_so():
    sim, _ = nscc_sim(delay_ns=20_000, jitter_ns=0, port_rate_bps=50_000_000, ce=0.5)
    region = sim.ends[1].register_memory(bytearray(4 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(4 << 20), region.address, region.rkey)
    first = sim.ends[0].qps[sim.qpns[0]].requester.congestion.cwnd_bytes
    sim.run(until=lambda: bool(sim.of(0, SendCompleted)))
    changes = sim.of(0, WindowChanged)
    assert min(e.cwnd_bytes for e in changes) < first
    assert all(b.t_ns - a.t_ns >= 1_000_000 for a, b in itertools.pairwise(changes))


def test_a_destroyed_qp_gives_its_share_back():
    sim, qpns = nscc_sim(queue_pairs=2)
    a = sim.ends[0]
    for mine, _ in qpns:
        a.post_write(mine, 1, bytes(1 << 20), 0, 0)
    assert a.frames_to_send(sim.now_ns, None, 1000)
    control = a.qps[qpns[1][0]].requester.congestion
    assert a.frames_to_send(sim.now_ns) == []
    a.destroy_qp(qpns[0][0])
    held = control.inflight_bytes
    a.destroy_qp(qpns[1][0])
    assert held > 0
    assert control.inflight_bytes == 0


def shared_sim(messages, **knobs):
    """Queue pairs to one destination that share a window, and post these messages all at once."""
    sim = Sim(seed=4, config=MrcConfig(sack_threshold_bytes=1, **knobs), qps=len(messages))
    region = sim.ends[1].register_memory(bytearray(1 << 17))
    for (mine, _), lengths in zip(sim.connections, messages, strict=True):
        for n, length in enumerate(lengths):
            sim.ends[0].post_write(mine, n, bytes(length), region.address, region.rkey)
    sim.run(1_000_000_000, until=lambda: len(sim.of(0, SendCompleted)) == sum(map(len, messages)))
    return sim


@pytest.mark.parametrize("last", [0, 4096])
def test_room_that_one_queue_pair_leaves_goes_to_the_next_that_waits(last):
    """Found by a long run of random schedules: an answer let the first go, which still counted as waiting,
    had nothing to send when it was called, and passed nothing on.
    """
    sim = shared_sim([[4096, 8192], [last]], congestion="rate", cwnd_bytes=4096)
    assert sorted(e.qpn for e in sim.of(0, SendCompleted)) == [sim.connections[n][0] for n in (0, 0, 1)]
    assert not sim.ends[0].qps[sim.qpns[0]].sharing.waiting


def test_who_waits_for_a_window_is_woken_when_tokens_are_what_lacks_by_then():
    """One queue pair begins to wait for an acknowledgement; by then the other has emptied the bucket."""
    sim = shared_sim(
        [[8192], [4096]], congestion="rate", cwnd_bytes=4096, rate_burst_bytes=4097, rate_bps=8_000_000
    )
    assert sorted(e.qpn for e in sim.of(0, SendCompleted)) == [mine for mine, _ in sim.connections]
    # 8192 bytes were sent of 4097 and what 40 us earn: 1 byte per us pays the rest.
    assert sim.of(0, SendCompleted)[1].t_ns > 4_000_000


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_a_queue_pair_without_a_plane_does_not_keep_the_room_of_a_shared_window(order):
    sim = Sim(seed=4, planes=2, config=MrcConfig(congestion="rate", cwnd_bytes=4096), qps=2)
    only = [[end.create_qp() for end in sim.ends]]
    for me, end in enumerate(sim.ends):
        remote = sim.ends[1 - me].local_attributes(only[0][1 - me])
        paths = remote_paths(me, 1 - me, 2, 2)
        end.connect(only[0][me], remote, RemotePaths(paths.planes[:1]))
    a = sim.ends[0]
    region = sim.ends[1].register_memory(bytearray(1 << 17))
    a.set_port_state(0, False, sim.now_ns)
    for n in order:
        a.post_write((sim.connections + only)[n][0], 1, bytes(4096), region.address, region.rkey)
    sim.run(1_000_000_000, until=lambda: len(sim.of(0, SendCompleted)) == 2)
    assert {e.qpn for e in sim.of(0, SendCompleted)} == {mine for mine, _ in sim.connections}


@pytest.mark.parametrize(
    ("congestion", "cwnd_bytes", "rate_bps", "jitter_ns"),
    [("rate", 4096, 0, 0), ("rate", 8192, 0, 0), ("rate", 1 << 18, 10**9, 5000), ("nscc", 1, 10**9, 5000)],
)
@pytest.mark.parametrize("imm", [None, 1])
def test_long_writes_keep_no_shorter_one_from_a_shared_window(
    congestion, cwnd_bytes, rate_bps, jitter_ns, imm
):
    """Answers to itself must not let a queue pair go before those that wait: turns go round."""
    config = MrcConfig(congestion=congestion, cwnd_bytes=cwnd_bytes, rate_bps=10**10, max_wimm=1)
    sim = Sim(seed=4, config=config, network=Network(port_rate_bps=rate_bps, jitter_ns=jitter_ns), qps=5)
    region = sim.ends[1].register_memory(bytearray(1 << 19))
    long, *short = (mine for mine, _ in sim.connections)

    def post(mine, sizes):
        for n, size in enumerate(sizes):
            sim.ends[0].post_write(mine, n, bytes(size), region.address, region.rkey, imm=imm)

    post(long, [4096] * 512)
    sim.at(sim.now_ns + 100_000, lambda: [post(mine, [1 << 16]) for mine in short])
    start = sim.now_ns
    sim.run(until=lambda: len(sim.of(0, SendCompleted)) == 516)
    took = {e.qpn: e.t_ns - start for e in sim.of(0, SendCompleted)}
    # A fifth of the bytes each until the short ones are done: 320 KiB of 2.25 MiB, and what went before.
    assert len(took) == 5
    assert max(took[mine] for mine in short) < took[long] / 2


def test_timestamps_date_the_answer_to_a_retransmission():
    """Without them its RTT would be ambiguous; with them every packet gives a sample."""

    def samples(timestamps):
        sim = Sim(seed=3, config=MrcConfig(timestamps=timestamps, sack_threshold_bytes=1))
        region = sim.ends[1].register_memory(bytearray(8192))
        sim.ends[0].post_write(sim.qpns[0], 1, bytes(8192), region.address, region.rkey)
        lost = sim.ends[0].frames_to_send(1_000_000, None, 1)
        second = sim.ends[0].frames_to_send(2_000_000, None, 1)
        rtt = sim.ends[0].qps[sim.qpns[0]].requester.recovery.rtt

        def answer(frames, now):
            for port, frame in frames:
                sim.ends[1].receive(port, frame, now)
            for port, frame in sim.ends[1].frames_to_send(now):
                sim.ends[0].receive(port, frame, now)

        assert lost
        answer(second, 2_100_000)
        before = rtt.samples
        answer(sim.ends[0].frames_to_send(2_100_000), 2_177_000)
        return rtt.samples - before, rtt.latest_ns

    assert samples(timestamps=False)[0] == 0
    count, latest = samples(timestamps=True)
    assert count == 1
    assert abs(latest - 77_000) <= 256


@pytest.mark.parametrize("congestion", ["rate", "nscc"])
def test_a_closed_shared_window_holds_back_no_probe(congestion):
    """What fills the window may be lost, and then only a probe opens it again."""
    sim = Sim(seed=4, config=MrcConfig(congestion=congestion, cwnd_bytes=4096, tail_probe_max_ns=1_000_000))
    lost = []
    sim.unpredictable = lambda source, port, frame: (
        is_data(frame) and len(lost) < 9 and not lost.append(frame)
    )
    region = sim.ends[1].register_memory(bytearray(1 << 17))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 17), region.address, region.rkey)
    sim.run(50_000_000, until=lambda: bool(sim.of(0, SendCompleted)))
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.SUCCESS]


def test_a_measured_base_rtt_takes_the_place_of_the_given_one():
    config = NsccConfig(base_rtt_ns=10_000, link_bps=1_000_000_000, gamma=0.6)
    nscc = Nscc(config, 4096, trim=True)
    nscc.on_loss(0, 20_000, 0)
    nscc.calibrate(4_000_000)
    assert nscc.config == replace(config, base_rtt_ns=4_000_000).resolve(4096, trim=True)
    assert nscc.config.target_delay_ns == 3_000_000
    assert nscc.cwnd_bytes == nscc.config.max_cwnd_bytes == 750_000
    nscc.on_ack(1_000_000, 4096, 6_900_000, True, 0)
    assert nscc.cwnd_bytes == 750_000, "2.9 ms of delay are below the new target"


def test_an_endpoint_is_told_the_base_rtt_of_a_destination():
    sim = Sim(seed=1, config=MrcConfig(congestion="nscc"))
    before = sim.ends[0].qp_counters(sim.qpns[0]).cwnd_bytes
    sim.ends[0].set_base_rtt(sim.qpns[0], 4_000_000)
    assert sim.ends[0].qp_counters(sim.qpns[0]).cwnd_bytes == 750_000 > before
    with pytest.raises(ValueError, match="positive"):
        sim.ends[0].set_base_rtt(sim.qpns[0], 0)
