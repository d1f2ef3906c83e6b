"""Retransmissions of lost or refused packets: their order, their EVs, and their times."""

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.events import EvRetired, SpuriousLoss
from mrclab.hosts.mrc.wire import NackReason, Opcode
from mrclab.hosts.rdma.events import LossReason, PacketLost, Retransmitted
from mrclab.hosts.rdma.frames import BTH_OFFSET, traffic_class
from tests.support.endpoint_state import set_refusal
from tests.support.mrc_pair import T_SENT, Pair
from tests.support.mrc_sim import Network, Sim, frame_psn, is_data, trim


def refusals(pair, frames, now):
    """Trim packets and return the NACKs that the receiver sends for them."""
    for port, frame in frames:
        pair.b.receive(port, trim(frame), now)
    return pair.b.frames_to_send(now, None, 1000)


def test_the_oldest_gap_is_sent_again_first():
    pair = Pair()
    pair.post(8 * 4096)
    frames = pair.a.frames_to_send(T_SENT, None, 6)
    for port, nack in refusals(pair, [frames[4], frames[1], frames[3]], T_SENT):
        pair.a.receive(port, nack, T_SENT + 40_000)
    again = [frame for _, frame in pair.a.frames_to_send(T_SENT + 40_000, None, 1000)]
    assert [(frame_psn(frame) - pair.psn) & 0xFFFFFF for frame in again] == [1, 3, 4, 6, 7]
    assert [bool(frame[BTH_OFFSET + 8] & 0x20) for frame in again] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("seed", range(5))
def test_a_packet_that_was_refused_goes_on_another_ev(seed):
    """With two paths, the rotation alone would choose the same EV again in half of the cases."""
    sim = Sim(seed=seed, planes=1, paths=2, network=Network(jitter_ns=0))
    region = sim.ends[1].register_memory(bytearray(1 << 16))
    set_refusal(sim.ends[1], sim.qpns[1], NackReason.NO_RESOURCE)
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 16), region.address, region.rkey)
    sim.run(400_000)
    again = sim.of(0, Retransmitted)
    assert len(again) > 100
    assert all(event.old_ev != event.new_ev for event in again)


@pytest.mark.parametrize("silent", [0, 1], ids=["all refused", "one unanswered"])
def test_refusals_without_end_take_bounded_memory(silent):
    """Only NACKs arrive, and no SACK. The sender must keep all its packets in bounded memory."""
    pair = Pair(mpr=128)
    pair.post(8 * 4096)
    frames = pair.send()[silent:]
    for turn in range(1, 101):
        now = T_SENT + turn * 40_000
        for port, nack in refusals(pair, frames, now):
            pair.a.receive(port, nack, now)
        frames = pair.a.frames_to_send(now, None, 1000)
        assert len(frames) == 8 - silent
    assert len(pair.a.qps[pair.qpn_a].requester.recovery.order._packets) <= 4 * 128


@pytest.mark.parametrize("own", [True, False])
def test_what_is_in_flight_on_a_port_that_goes_down_is_sent_again_at_once(own):
    pair = Pair()
    pair.post(8 * 4096)
    lost = {frame_psn(frame) for port, frame in pair.send() if port == 0}
    assert len(lost) == 4
    (pair.a if own else pair.b).set_port_state(0, False, T_SENT)
    for port, update in [] if own else pair.b.frames_to_send(T_SENT):
        pair.a.receive(port, update, T_SENT)
    sent = [(port, frame) for port, frame in pair.send() if is_data(frame)]
    assert {port for port, _ in sent} == {1}
    assert {frame_psn(frame) for _, frame in sent} == lost
    events = list(pair.a.events())
    assert [e.reason for e in events if isinstance(e, PacketLost)] == [LossReason.PORT_DOWN] * 4
    assert not [e for e in events if isinstance(e, EvRetired)], "the paths are not to blame"


@pytest.mark.parametrize("ev_sets", ["queue-pair", "peer"])
@pytest.mark.parametrize("own", [True, False])
def test_a_port_that_goes_down_moves_the_packets_of_all_queue_pairs(own, ev_sets):
    sim = Sim(planes=2, paths=1, config=MrcConfig(ev_sets=ev_sets), network=Network(jitter_ns=0), qps=2)
    a, b = sim.ends
    region = b.register_memory(bytearray(1 << 15))
    for qpn, _ in sim.connections:
        a.post_write(qpn, 1, bytes(1 << 15), region.address, region.rkey)
    a.frames_to_send(T_SENT, None, 1000)
    (a if own else b).set_port_state(0, False, T_SENT)
    for port, update in [] if own else b.frames_to_send(T_SENT):
        a.receive(port, update, T_SENT)
    lost = [e.qpn for e in a.events() if isinstance(e, PacketLost) and e.reason is LossReason.PORT_DOWN]
    assert {qpn: lost.count(qpn) for qpn, _ in sim.connections} == {qpn: 4 for qpn, _ in sim.connections}


@pytest.mark.parametrize("own", [True, False])
def test_what_arrived_before_its_port_went_down_does_not_widen_the_reordering_window(own):
    pair = Pair()
    pair.post(8 * 4096)
    frames = pair.send()
    first = next(frame for frame in frames if frame[0] == 0)
    second = next(frame for frame in frames if frame[0] == 1)
    for port, frame in (first, second):
        pair.b.receive(port, frame, T_SENT)
    answers = pair.b.frames_to_send(T_SENT)
    assert {port for port, _ in answers} == {1}, "one answer to both"
    (pair.a if own else pair.b).set_port_state(0, False, T_SENT)
    for port, update in [] if own else pair.b.frames_to_send(T_SENT):
        pair.a.receive(port, update, T_SENT)
    for port, sack in answers:
        pair.a.receive(port, sack, T_SENT + 40_000)
    (late,) = [e for e in pair.a.events() if isinstance(e, SpuriousLoss)]
    assert late.psn == frame_psn(first[1])
    assert pair.a.qps[pair.qpn_a].requester.recovery.window.widening == 1


def test_a_loss_says_that_its_repair_goes_before_the_next_frame_is_read():
    pair = Pair()
    pair.post(2 * 4096)
    (lost,) = pair.a.frames_to_send(T_SENT, None, 1)
    ((port, frame),) = pair.a.frames_to_send(T_SENT + 5_000_000, None, 1)
    assert not pair.a.repairs_wait
    pair.b.receive(port, frame, T_SENT + 5_010_000)
    for answered, sack in pair.b.frames_to_send(T_SENT + 5_010_000, None, 1000):
        pair.a.receive(answered, sack, T_SENT + 5_020_000)
    assert pair.a.repairs_wait
    ((_, repair),) = pair.a.frames_to_send(T_SENT + 5_020_001, None, 1)
    assert frame_psn(repair) == frame_psn(lost[1])
    assert not pair.a.repairs_wait


@pytest.mark.parametrize("at_gap", [False, True])
def test_the_first_answer_that_reports_a_gap_goes_before_the_next_frame_is_read_and_before_requests(at_gap):
    pair = Pair(sack_threshold_bytes=4096, sack_at_gap=at_gap)
    pair.post(8 * 4096)
    first, _, *later = pair.a.frames_to_send(T_SENT, None, 5)
    assert answers_to(pair, [first]) == [1]
    pair.b.probe_ev(pair.qpn_b, next(iter(pair.b.qps[pair.qpn_b].evs.by_value)), T_SENT)
    pair.b.receive(*later[0], T_SENT)
    assert pair.b.repairs_wait is at_gap
    ((_, frame),) = pair.b.frames_to_send(T_SENT, None, 1)
    assert (frame[BTH_OFFSET] == Opcode.SACK) is at_gap, "else the request goes first"
    assert not pair.b.repairs_wait
    pair.b.receive(*later[1], T_SENT)
    assert not pair.b.repairs_wait, "the gap is reported"


def test_a_repair_finds_the_head_of_its_frame_built():
    pair = Pair(trim=True)
    pair.post(4096)
    pair.a.frames_to_send(T_SENT, None, 1)
    (packet,) = pair.a.qps[pair.qpn_a].requester.board.in_flight()
    dscp = pair.a.config.dscp
    classes = {key & 0xFF for key in packet.ev.heads}
    assert classes == {traffic_class(d, ecn_capable=True) for d in (dscp.trimmable, dscp.trimmable_retx)}


def answers_to(pair, frames):
    """Give frames to the receiver one by one. Return the number of answers to each frame."""
    return [len(pair.take([frame])) for frame in frames]


@pytest.mark.parametrize("at_gap", [False, True])
def test_while_a_packet_is_missing_each_later_one_is_answered_if_asked_for(at_gap):
    pair = Pair(sack_threshold_bytes=8 * 4096, sack_at_gap=at_gap)
    pair.post(8 * 4096)
    first, lost, *later = pair.a.frames_to_send(T_SENT, None, 5)
    assert answers_to(pair, [first]) == [0], "nothing is missing yet"
    assert answers_to(pair, later) == [int(at_gap)] * 3
    assert answers_to(pair, [lost]) == [0], "nothing is missing any more"


def test_a_false_timeout_does_not_widen_the_reordering_window():
    """Only a loss by the window's rule may widen the window. Here a stopped peer caused the timeout."""
    pair = Pair(initial_rtt_ns=10_000, ack_timeout_exponent=6, tail_probe_max_ns=1 << 40)
    pair.post(1)
    ((port, frame),) = pair.a.frames_to_send(T_SENT, None, 1)
    pair.b.receive(port, frame, T_SENT + 10_000)
    answers = pair.b.frames_to_send(T_SENT + 10_000, None, 1000)
    requester = pair.a.qps[pair.qpn_a].requester
    requester.hear(T_SENT + 64_000)  # another packet of the peer arrives while this answer waits
    requester.recovery.tail.since_ns = 1 << 50
    pair.a.handle_timer(T_SENT + (1024 << 6))
    for answered, sack in answers:
        pair.a.receive(answered, sack, T_SENT + (1024 << 6) + 10_000)
    events = list(pair.a.events())
    assert [e.reason for e in events if isinstance(e, PacketLost)] == [LossReason.TIMEOUT]
    assert [type(e) for e in events if isinstance(e, SpuriousLoss)] == [SpuriousLoss]
    assert requester.recovery.window.widening == 1
