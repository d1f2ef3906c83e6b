"""A limit on the rate: a token bucket in addition to a fixed window."""

from dataclasses import replace

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.congestion import FixedWindow, RateCap, make_controller
from mrclab.hosts.rdma.events import SendCompleted
from mrclab.hosts.rdma.frames import BTH_OFFSET
from tests.support.mrc_sim import Network, Sim, is_data


def test_rate_cap_lets_through_its_rate_and_no_more():
    cap = RateCap(FixedWindow(1 << 30), rate_bps=8_000_000, burst_bytes=1000)
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
    # Within 10 ms, a byte per us and the burst may be sent, plus or minus one packet.
    assert 11_000 - 400 <= sent <= 11_000 + 400


def test_a_rate_cap_wakes_its_sender_once_for_each_quantum():
    # 8 Mbit/s is a byte per us. After two packets of 400 B, the bucket of 500 B has a debt of 300 B.
    cap = RateCap(FixedWindow(1 << 30), rate_bps=8_000_000, burst_bytes=500, quantum_bytes=401)
    assert cap.budget_bytes(0) == 500
    for _ in range(2):
        cap.on_sent(0, 400)
    due = cap.next_send_ns(0)
    assert 700_000 <= due <= 701_001  # 300 us until the debt is paid, and 400 us more for one quantum
    assert cap.budget_bytes(due - 1001) == 0
    assert cap.budget_bytes(due) >= 401


def test_a_repair_goes_out_ahead_of_its_tokens_and_what_follows_pays_for_it():
    # Again a byte per us. After two packets of 400 B the debt is 300 B; at 200 us it is still 100 B.
    cap = RateCap(FixedWindow(1 << 30), rate_bps=8_000_000, burst_bytes=500, quantum_bytes=401)
    cap.budget_bytes(0)
    for _ in range(2):
        cap.on_sent(0, 400)
    assert cap.budget_bytes(200_000) <= 0
    cap.on_loss(200_000, 400)
    assert cap.budget_bytes(200_000) == 400
    assert cap.next_send_ns(200_000) is None
    cap.on_sent(200_000, 400)
    # 500 us for the debt, and 400 us for the quantum.
    assert cap.budget_bytes(200_000) <= 0
    assert 1_100_000 <= cap.next_send_ns(200_000) <= 1_101_001


def test_repairs_go_ahead_by_a_burst_at_most():
    cap = RateCap(FixedWindow(1 << 30), rate_bps=8_000_000, burst_bytes=500)
    cap.on_sent(0, 500)
    for _ in range(5):
        cap.on_loss(0, 400)
    assert cap.budget_bytes(0) == 500
    cap.on_sent(0, 400)
    assert cap.budget_bytes(0) == 100


def test_an_answer_is_asked_for_where_nothing_more_follows_within_a_round_trip():
    def asked(window, quantum=1):
        config = MrcConfig(
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
    assert asked(100_000, quantum=200) == [False, True]  # tokens come at a byte per us, so it waits 200 us


def test_a_capped_transfer_takes_its_time_and_wakes_itself():
    config = MrcConfig(rate_bps=400_000_000)
    sim = Sim(seed=4, config=config, network=Network(jitter_ns=0), keep_frames=True)
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 20), region.address, region.rkey)
    start = sim.now_ns
    sim.run(until=lambda: bool(sim.of(0, SendCompleted)))
    took = sim.of(0, SendCompleted)[0].t_ns - start
    # (1 MiB - the burst of 64 KiB) * 8 / 400 Mbit/s = 19.66 ms, plus an RTT.
    assert 19_500_000 < took < 19_900_000
    probes = [s for s in sim.sightings if s.source == 0 and not is_data(s.frame)]
    assert len(probes) <= 1, "waiting is no tail, but the first burst may leave a gap to ask about"


def test_a_cap_before_nscc_counts_payload_alone():
    """A full packet of 256 B counts as 356 B in NSCC's window. The cap limits only the payload's rate."""
    nscc = make_controller(MrcConfig(congestion="nscc", mtu_bytes=256))
    size = 256 + nscc.overhead_bytes
    config = MrcConfig(congestion="nscc", mtu_bytes=256, rate_bps=8_000_000, rate_burst_bytes=512)
    cap = make_controller(config)
    assert cap.overhead_bytes == nscc.overhead_bytes > 0
    now = packets = 0
    while now < 10_000_000:
        if cap.budget_bytes(now) > 0:
            cap.on_sent(now, size)
            cap.on_ack(now, size, None, False)
            packets += 1
        else:
            now = cap.next_send_ns(now)
    # Within 10 ms, a byte per us and the burst may be sent, plus or minus one packet.
    assert abs(packets * 256 - 10_512) <= 256


def test_a_cap_lets_through_no_more_than_the_window_before_which_it_stands():
    config = MrcConfig(congestion="nscc", rate_bps=10**10, rate_burst_bytes=1 << 30)
    cap = make_controller(config)
    window = make_controller(replace(config, rate_bps=0))
    for control in cap, window:
        control.on_sent(0, 20_000)
        control.on_loss(10, 5000)
        control.on_trim(20, 4196, True)
        control.on_receiver(25, 64, False)
        control.on_ack(30, 5000, 400_000, True)
        control.on_withdrawn(1000)
    assert cap.cwnd_bytes == window.cwnd_bytes
    assert cap.inflight_bytes == window.inflight_bytes == 20_000 - 5000 - 4196 - 5000 - 1000
    assert cap.budget_bytes(40) == window.budget_bytes(40)
    assert cap.penalty == 64
    for control in cap, window:
        control.calibrate(4_000_000)
    assert cap.cwnd_bytes == window.cwnd_bytes == 750_000


def capped(write_bytes=20_000):
    """Return a sender whose first packet emptied its bucket of 1 Mbit/s.

    The next packet may leave after 32.8 ms.
    """
    config = MrcConfig(rate_bps=1_000_000, rate_burst_bytes=1, mtu_bytes=4096, ack_timeout_exponent=16)
    sim = Sim(seed=4, config=config, network=Network(jitter_ns=0))
    region = sim.ends[1].register_memory(bytearray(write_bytes))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(write_bytes), region.address, region.rkey)
    return sim, sim.ends[0]


def test_a_capped_sender_that_is_asked_late_still_goes_on():
    """A driver may ask for frames late. If the time to send has passed, the sender must still send."""
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
