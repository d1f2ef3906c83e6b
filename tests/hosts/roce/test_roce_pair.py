"""Two RoCEv2 endpoints over a network with all kinds of faults. The same checks must pass after every run."""

import hashlib
import itertools
import os
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.rdma.events import (
    LossReason,
    PacketLost,
    QpError,
    ReceiveCompleted,
    Retransmitted,
    SendCompleted,
    Status,
)
from mrclab.hosts.rdma.paths import RemotePaths
from mrclab.hosts.roce import DcqcnConfig, Endpoint, RoceConfig
from mrclab.hosts.roce.queue_pair import stripes
from mrclab.hosts.roce.wire import choose_path, choose_plane, flow_label, udp_source
from tests.support.mrc_sim import (
    Network,
    Sim,
    bth_offset,
    finish,
    frame_psn,
    is_data,
    opcode,
    port_addresses,
    remote_paths,
    stream,
)

SCHEDULES = int(os.environ.get("MRC_SCHEDULES", "40"))
"""The number of random fault schedules. A long run sets MRC_SCHEDULES to 10,000."""
LENGTHS = st.lists(
    st.sampled_from([0, 1, 3, 4, 100, 4095, 4096, 4097, 8192, 20_000]), min_size=1, max_size=12
)
SMALL = st.sampled_from([0.0, 0.0, 0.005, 0.02])


def roce(seed=1, network=None, keep_frames=False, **options):
    return Sim(
        seed,
        config=RoceConfig(**options),
        endpoint_class=Endpoint,
        network=network,
        keep_frames=keep_frames,
    )


def test_a_turn_lasts_over_several_calls():
    sim = Sim(1, config=RoceConfig(), endpoint_class=Endpoint, qps=2)
    a, b = sim.ends
    region = b.register_memory(bytearray(1 << 20))
    for qpn, _ in sim.connections:
        a.post_write(qpn, 1, bytes(1 << 18), region.address, region.rkey)
    asked = [a.frames_to_send(sim.now_ns, None, 1) for _ in range(20)]
    assert [len(frames) for frames in asked] == [1] * 20
    at = bth_offset(asked[0][0][1]) + 5
    targets = [frame[at : at + 3] for ((_, frame),) in asked]
    assert [len(list(run)) for _, run in itertools.groupby(targets)] == [8, 8, 4]


def check(sim, lengths, data, region):
    """Check what must be true after any run without a QP error."""
    assert not sim.of(0, QpError) + sim.of(1, QpError)
    assert [(e.wr_id, e.status, e.length_bytes, e.qpn) for e in sim.of(0, SendCompleted)] == [
        (n, Status.SUCCESS, length, sim.qpns[0]) for n, length in enumerate(lengths)
    ]
    assert [(e.imm, e.length_bytes, e.rqmsn, e.qpn) for e in sim.of(1, ReceiveCompleted)] == [
        (n, length, n & 0xFFFF, sim.qpns[1]) for n, length in enumerate(lengths)
    ]
    assert hashlib.sha256(region.view).digest() == hashlib.sha256(data).digest()
    receiver = sim.ends[1].qp_counters(sim.qpns[1])
    assert receiver.bytes_placed == sim.ends[1].bytes_placed(sim.qpns[1]) == len(data), "each byte once"
    sender = sim.ends[0].qp_counters(sim.qpns[0])
    assert sender.inflight_packets == 0
    assert sender.bytes_acked == len(data)
    assert sender.sent - sender.retransmitted == receiver.placed
    assert sim.ends[0].next_timer() is None
    assert sim.ends[1].next_timer() is None


@pytest.mark.slow
@settings(max_examples=SCHEDULES, deadline=None)
@example(
    # With these values, the peer's timer and the sender's next packet are due in the same step.
    seed=0,
    lengths=[0, 0, 0, 0, 100, 4097, 20_000, 20_000],
    loss=0.02,
    duplicate=0.005,
    corrupt=0.0,
    ce=0.5,
    control_loss=0.0,
    jitter_ns=1000,
    options={"qps": 2, "encapsulation": "plain", "mtu_bytes": 256, "window_bytes": 16 * 4096}
    | {"ack_interval": 1, "dcqcn": DcqcnConfig(), "timeout_exponent": 6},
)
@given(
    seed=st.integers(0, 1 << 32),
    lengths=LENGTHS,
    loss=SMALL,
    duplicate=SMALL,
    corrupt=SMALL,
    ce=st.sampled_from([0.0, 0.05, 0.5]),
    control_loss=SMALL,
    jitter_ns=st.sampled_from([0, 0, 1_000, 50_000]),
    options=st.fixed_dictionaries(
        {
            "qps": st.sampled_from([1, 1, 2, 16]),
            "encapsulation": st.sampled_from(["plain", "srv6"]),
            "mtu_bytes": st.sampled_from([256, 1024, 4096]),
            "window_bytes": st.sampled_from([1, 16 * 4096, 64 * 4096]),
            "ack_interval": st.sampled_from([1, 8, 1000]),
            "receive_credits": st.sampled_from([None, 1000]),
            "dcqcn": st.sampled_from([None, DcqcnConfig()]),
            "timeout_exponent": st.sampled_from([6, 12]),
        }
    ),
)
def test_everything_arrives_once_and_in_order(
    seed, lengths, loss, duplicate, corrupt, ce, control_loss, jitter_ns, options
):
    network = Network(
        loss=loss,
        duplicate=duplicate,
        corrupt=corrupt,
        ce=ce,
        control_loss=control_loss,
        jitter_ns=jitter_ns,
    )
    sim = roce(seed, network, **options)
    data, region = stream(sim, lengths)
    finish(sim, len(lengths))
    if sim.of(0, QpError):
        # On such a network go-back-N may run out of retries. No other error may happen.
        assert {e.status for e in sim.of(0, QpError)} == {Status.RETRY_EXCEEDED}
        assert loss or duplicate or corrupt or control_loss or jitter_ns
        assert len(sim.of(0, SendCompleted)) == len(lengths)
        assert sim.ends[1].qp_counters(sim.qpns[1]).bytes_placed <= len(data)
        return
    check(sim, lengths, data, region)


@pytest.mark.parametrize("encapsulation", ["plain", "srv6"])
def test_a_queue_pair_keeps_to_one_plane_and_one_path(encapsulation):
    sim = roce(keep_frames=True, encapsulation=encapsulation)
    stream(sim, [500_000])
    finish(sim, 1)
    ways = {(s.port, s.frame[38:54], s.frame[54:56]) for s in sim.sightings if s.source == 0}
    assert len(ways) == 1
    assert {s.port for s in sim.sightings} == {next(iter(ways))[0]}, "answers come back in the same plane"


def test_sixteen_queue_pairs_share_a_message_and_use_several_paths():
    sim = roce(keep_frames=True, qps=16)
    data, region = stream(sim, [1 << 20, 5000, 1])
    finish(sim, 3)
    check(sim, [1 << 20, 5000, 1], data, region)
    outer = {s.frame[38:54] for s in sim.sightings if s.source == 0}
    assert 8 < len(outer) <= 16
    assert len({s.port for s in sim.sightings}) == 4
    assert len(sim.ends[0].ev_counters(sim.qpns[0])) == 16


@given(st.integers(0, 1 << 22), st.integers(1, 128), st.sampled_from([1, 128]))
def test_stripes_cover_a_message_without_gap_or_overlap(length, count, alignment):
    parts = list(stripes(length, count, alignment))
    assert len(parts) == count
    assert parts[0][0] == 0
    assert parts[-1][1] == length
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert len({end - start for start, end in parts if end < length}) <= 1


def test_both_ends_of_a_connection_choose_the_same_plane_and_hashes_spread():
    planes = remote_paths(0, 1, 4, 16).planes
    back = remote_paths(1, 0, 4, 16)
    seen = set()
    for a in range(0x100, 0x140):
        label = flow_label(a, a * 7)
        plane = choose_plane(RemotePaths(planes), label)
        assert plane.port == choose_plane(back, flow_label(a * 7, a)).port
        seen.add((plane.port, choose_path(plane, label, udp_source(label), 4791).ev))
    assert len({port for port, _ in seen}) == 4
    assert len(seen) > 25


def drop_once(sim, wanted):
    """Drop a data packet once. ``wanted`` is its offset from the first PSN."""
    first = sim.ends[0].local_attributes(sim.qpns[0]).psn
    dropped = []

    def rule(source, _port, frame):
        if source == 0 and is_data(frame) and frame_psn(frame) == (first + wanted) & 0xFFFFFF and not dropped:
            dropped.append(sim.now_ns)
            return True
        return False

    sim.unpredictable = rule
    return dropped


def test_one_lost_packet_costs_all_that_was_sent_behind_it():
    sim = roce(network=Network(jitter_ns=0), keep_frames=True)
    drop_once(sim, 10)
    data, region = stream(sim, [64 * 4096])
    finish(sim, 1)
    check(sim, [64 * 4096], data, region)
    [lost] = sim.of(0, PacketLost)
    assert lost.reason is LossReason.NACK
    assert len(sim.of(0, Retransmitted)) == 54, "from the tenth on, of 64"
    naks = [s for s in sim.sightings if s.source == 1 and s.frame[-8] == 0x60]
    assert len(naks) == 1, "one NAK for the gap, however many packets came early"
    assert sim.ends[1].qp_counters(sim.qpns[1]).out_of_order == 53


def test_a_lost_last_packet_waits_for_the_timeout():
    sim = roce(network=Network(jitter_ns=0), timeout_exponent=8)
    dropped = drop_once(sim, 15)
    data, region = stream(sim, [16 * 4096])
    finish(sim, 1)
    check(sim, [16 * 4096], data, region)
    [lost] = sim.of(0, PacketLost)
    assert lost.reason is LossReason.TIMEOUT
    assert lost.t_ns >= dropped[0] + (4096 << 8)
    assert sim.ends[0].qp_counters(sim.qpns[0]).timeouts == 1


def test_a_second_loss_of_the_same_packet_waits_for_the_timeout_too():
    """A receiver sends only one NAK for a missing packet [IBTA 9.7.5.2.1]."""
    sim = roce(network=Network(jitter_ns=0), timeout_exponent=8)
    first = sim.ends[0].local_attributes(sim.qpns[0]).psn
    times = []

    def rule(source, _port, frame):
        hit = source == 0 and is_data(frame) and frame_psn(frame) == (first + 3) & 0xFFFFFF and len(times) < 2
        if hit:
            times.append(sim.now_ns)
        return hit

    sim.unpredictable = rule
    data, region = stream(sim, [16 * 4096])
    finish(sim, 1)
    check(sim, [16 * 4096], data, region)
    assert [e.reason for e in sim.of(0, PacketLost)] == [LossReason.NACK, LossReason.TIMEOUT]


def test_a_dead_path_fails_the_connection_when_retries_run_out():
    sim = roce(timeout_exponent=8, retry_count=3, qps=2)
    stream(sim, [100_000, 5])
    sim.unpredictable = lambda source, port, frame: True
    start = sim.now_ns
    sim.run(1_000_000_000)
    [error] = sim.of(0, QpError)
    assert error.status is Status.RETRY_EXCEEDED
    assert error.qpn == sim.qpns[0]
    assert start + 4 * (4096 << 8) <= error.t_ns < start + 5 * (4096 << 8)
    statuses = [(e.wr_id, e.status) for e in sim.of(0, SendCompleted)]
    assert statuses == [(0, Status.RETRY_EXCEEDED), (1, Status.FLUSHED)]
    sim.ends[0].post_write(sim.qpns[0], 7, b"x", 0, 0)
    [late] = sim.ends[0].poll_cq()
    assert (late.wr_id, late.status) == (7, Status.FLUSHED)


def test_a_path_that_dies_for_less_than_the_retries_last_is_never_left():
    sim = roce(timeout_exponent=8, encapsulation="srv6", keep_frames=True)
    data, region = stream(sim, [1 << 20])
    sim.at(sim.now_ns + 500_000, lambda: setattr(sim, "unpredictable", lambda *_: True))
    sim.at(sim.now_ns + 3_500_000, lambda: setattr(sim, "unpredictable", None))
    finish(sim, 1)
    check(sim, [1 << 20], data, region)
    assert {s.frame[38:54] for s in sim.sightings if s.source == 0 and s.t_ns > 5_000_000} == {
        s.frame[38:54] for s in sim.sightings if s.source == 0
    }


@pytest.mark.parametrize("late", [False, True])
def test_a_write_where_it_may_not_go_fails_both_ends(late):
    sim = roce()
    region = sim.ends[1].register_memory(bytearray(10_000))
    length = 10_001 if late else 8
    rkey = region.rkey if late else region.rkey ^ 1
    sim.ends[0].post_write(sim.qpns[0], 0, bytes(length), region.address, rkey, imm=1)
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(8), region.address, region.rkey, imm=2)
    sim.run(1_000_000_000)
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.REMOTE_ACCESS_ERROR, Status.FLUSHED]
    assert [e.status for e in sim.of(0, QpError)] == [Status.REMOTE_ACCESS_ERROR]
    assert [e.status for e in sim.of(1, QpError)] == [Status.REMOTE_ACCESS_ERROR]
    assert not sim.of(1, ReceiveCompleted)
    assert bytes(region.view) == bytes(10_000)


def test_a_region_that_is_closed_amid_a_write_takes_no_more_of_it():
    sim = roce()
    a, b = sim.ends
    buffer = bytearray(8192)
    region = b.register_memory(buffer)
    a.post_write(sim.qpns[0], 0, b"x" * 8192, region.address, region.rkey, imm=1)
    (port, first), (_, last) = a.frames_to_send(sim.now_ns)
    b.receive(port, first, sim.now_ns)
    b.deregister_memory(region)
    b.receive(port, last, sim.now_ns)
    assert buffer == b"x" * 4096 + bytes(4096)
    sim.run(1_000_000)
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.REMOTE_ACCESS_ERROR]
    assert [e.status for e in sim.of(1, QpError)] == [Status.REMOTE_ACCESS_ERROR]
    assert not sim.of(1, ReceiveCompleted)


def test_a_flood_of_writes_that_no_receive_waits_for_is_answered_within_bounds():
    sim = roce(receive_credits=0)
    stream(sim, [5])
    ((port, frame),) = sim.ends[0].frames_to_send(sim.now_ns)
    for _ in range(1000):
        sim.ends[1].receive(port, frame, sim.now_ns)
    assert len(sim.ends[1].frames_to_send(sim.now_ns, None, 2000)) == 256


def test_a_receiver_that_is_not_ready_is_tried_again_after_its_timer():
    sim = roce(receive_credits=2)
    data, region = stream(sim, [5000] * 5)

    def post_three() -> None:
        sim.ends[1].qps[sim.qpns[1]].responder.credits += 3

    sim.at(sim.now_ns + 10_000_000, post_three)
    finish(sim, 5)
    check(sim, [5000] * 5, data, region)
    counters = sim.ends[0].qp_counters(sim.qpns[0])
    assert 10 <= counters.rnr_naks_received <= 16, "every 0.64 ms for 10 ms"
    assert counters.timeouts == 0
    assert sim.of(1, ReceiveCompleted)[2].t_ns >= 11_000_000


def test_a_receiver_that_is_never_ready_fails_the_connection_after_rnr_retries():
    sim = roce(receive_credits=0, rnr_retry=3)
    stream(sim, [5])
    sim.run(100_000_000)
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.RNR_RETRY_EXCEEDED]
    assert sim.ends[0].qp_counters(sim.qpns[0]).rnr_naks_received == 4


def test_acks_are_asked_for_and_merged():
    sim = roce(network=Network(jitter_ns=0), keep_frames=True, ack_interval=8)
    stream(sim, [64 * 4096])
    finish(sim, 1)
    asked = [s for s in sim.sightings if s.source == 0 and s.frame[110] & 0x80]
    assert 8 <= len(asked) <= 10
    acks = [s for s in sim.sightings if s.source == 1]
    assert len(acks) <= len(asked)


def test_marks_slow_a_sender_down_and_silence_lets_it_go():
    config = DcqcnConfig(line_rate_bps=1_000_000_000)
    sim = roce(network=Network(ce=1.0, port_rate_bps=1_000_000_000, jitter_ns=0), dcqcn=config)
    stream(sim, [2_000_000])
    sim.run(10_000_000)
    slow = sim.ends[0].qp_counters(sim.qpns[0])
    assert slow.cnps_received > 10
    assert slow.rate_bps < 300_000_000
    sim.network.ce = 0.0
    finish(sim, 1)
    assert sim.ends[0].qp_counters(sim.qpns[0]).rate_bps > slow.rate_bps


def test_a_limited_sender_that_is_asked_late_still_goes_on():
    """A driver may ask for frames late. If the time to send has passed, the sender must still send."""
    config = DcqcnConfig(line_rate_bps=1_000_000, rate_timer_ns=1_000_000_000, burst_bytes=0)
    options = {"timeout_exponent": 0, "mtu_bytes": 1024, "window_bytes": 4096, "ack_interval": 1}
    sim = roce(network=Network(ce=1.0, jitter_ns=0), dcqcn=config, **options)
    stream(sim, [50_000])
    held = sim.ends[0]

    def waits():
        counters = held.qp_counters(sim.qpns[0])
        return counters.cnps_received and not counters.inflight_packets

    sim.run(1_000_000_000, until=waits)
    due = held.next_timer()
    assert waits(), "all that was sent is acknowledged"
    assert due is not None
    assert due > sim.now_ns, "the rest is held back by the rate"
    late = sim.now_ns + 50_000_000
    assert not held.frames_to_send(late)
    assert held.next_timer() == late
    held.handle_timer(late)
    assert held.frames_to_send(late)


@pytest.mark.slow
def test_marks_of_a_bottleneck_hold_senders_to_its_rate():
    """In each direction, a queue with half of the line rate marks packets. It must stay busy.

    The first marks reduce the rate strongly, because alpha starts at 1. The rate needs 30 ms to grow again.
    """
    config = DcqcnConfig(line_rate_bps=1_000_000_000)
    network = Network(jitter_ns=0, delay_ns=10_000)
    sim = roce(network=network, dcqcn=config)
    queue = {0: 0, 1: 0}
    rate = 500_000_000

    original = sim._put

    def put(target, port, frame):
        start = max(queue[target], sim.now_ns)
        depth_bytes = (start - sim.now_ns) * rate // 8_000_000_000
        queue[target] = start + len(frame) * 8_000_000_000 // rate
        if is_data(frame) and sim.rng.random() < (depth_bytes - 5_000) / 200_000:
            frame = frame[:15] + bytes([frame[15] | 0x30]) + frame[16:]
        network.delay_ns = 10_000 + queue[target] - sim.now_ns
        original(target, port, frame)

    sim._put = put
    for source in (0, 1):
        stream(sim, [10_000_000], source=source)
    start = sim.now_ns
    finish(sim, 1)
    finish(sim, 1, source=1)
    for end in (0, 1):
        took = sim.of(end, SendCompleted)[0].t_ns - start
        assert took < 1.4 * 10_000_000 * 8_000_000_000 // rate
        counters = sim.ends[end].qp_counters(sim.qpns[end])
        assert counters.cnps_received > 0
        assert counters.retransmitted == 0


def test_ends_that_do_not_fit_are_told():
    ends = [Endpoint(port_addresses(n, 2), RoceConfig(qps=n + 1)) for n in (0, 1)]
    qpns = [end.create_qp() for end in ends]
    with pytest.raises(ValueError, match="2 queue pairs per connection, we 1"):
        ends[0].connect(qpns[0], ends[1].local_attributes(qpns[1]), remote_paths(0, 1, 2, 4))
    mrc = MrcEndpoint(port_addresses(1, 2))
    with pytest.raises(ValueError, match="not those of a RoCEv2"):
        ends[0].connect(qpns[0], mrc.local_attributes(mrc.create_qp()), remote_paths(0, 1, 2, 4))


def test_a_destroyed_connection_is_silent():
    sim = roce(qps=4)
    stream(sim, [1 << 20])
    sim.run(200_000)
    for end, qpn in zip(sim.ends, sim.qpns, strict=True):
        end.destroy_qp(qpn)
    sim.run(1_000_000_000)
    assert sim.ends[0].next_timer() is None
    assert not sim.ends[0].qps
    assert not sim.of(0, SendCompleted)


def test_busy_ports_hold_back_their_own_queue_pairs_only():
    sim = roce(qps=16)
    stream(sim, [1 << 20])
    out = sim.ends[0].frames_to_send(sim.now_ns, {1, 2}, limit=64)
    assert {port for port, _ in out} == {1, 2}
    rest = sim.ends[0].frames_to_send(sim.now_ns, {0, 3}, limit=1000)
    assert {port for port, _ in rest} == {0, 3}
    assert all(opcode(frame) in (0x06, 0x07, 0x08, 0x09) for _, frame in out + rest)


def test_a_packet_that_may_have_been_sent_twice_gives_no_rtt_sample():
    """Karn's rule: the answer may belong to the first transmission."""
    sim = roce(seed=3, network=Network(delay_ns=20_000, jitter_ns=0))
    rtt = sim.ends[0].qps[sim.qpns[0]].requester.rtt
    unknown_ns = rtt.srtt_ns
    first = []
    sim.unpredictable = lambda source, port, frame: (
        source == 0 and is_data(frame) and not first and not first.append(frame)
    )
    stream(sim, [20_000])
    finish(sim, 1)
    assert len(first) == 1
    assert rtt.srtt_ns == unknown_ns
    stream(sim, [100])
    finish(sim, 2)
    assert rtt.srtt_ns < unknown_ns
