"""A receiver places every byte of data once, and answers with SACKs and NACKs."""

import random

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.events import EvSkipped
from mrclab.hosts.mrc.wire import Nack, NackReason, Opcode, Sack
from mrclab.hosts.rdma.events import QpError, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.frames import BTH_OFFSET
from mrclab.hosts.rdma.memory import Access
from tests.support.mrc_pair import Pair, with_flags
from tests.support.mrc_sim import Network, Sim, frame_psn, mark_ce, trim


def run(sim):
    sim.run(100_000_000)


def control(sim, source, opcode):
    return [s.frame for s in sim.sightings if s.source == source and s.frame[BTH_OFFSET] == opcode]


def test_sack_names_ev_cumulative_psn_and_trigger():
    config = MrcConfig(transport_ack=False)
    sim = Sim(seed=2, config=config, keep_frames=True, network=Network(jitter_ns=0))
    region = sim.ends[1].register_memory(bytearray(4096))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1000), region.address, region.rkey)
    run(sim)
    data, answer = sim.sightings
    sack = Sack.unpack(answer.frame, BTH_OFFSET + 12)
    assert len(answer.frame) == BTH_OFFSET + 12 + 36 + 4
    assert answer.frame[14] >> 4 == 6
    assert (answer.frame[14] & 15) << 2 | answer.frame[15] >> 6 == 46
    assert answer.port == data.port
    assert sack == Sack(
        cack_psn=frame_psn(data.frame),
        entropy=sack.entropy,
        rcvd_units=5,
        spdcid=sim.qpns[0] & 0xFFFF,
        dpdcid=sim.qpns[1] & 0xFFFF,
    ), "1084 B"
    assert sack.entropy == int.from_bytes(data.frame[56:58] + data.frame[94:96], "big")
    assert answer.frame[107:110] == sim.qpns[0].to_bytes(3, "big")


def test_data_is_placed_on_arrival_out_of_order():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(3 * 4096))
    data = random.Random(1).randbytes(3 * 4096)
    sim.ends[0].post_write(sim.qpns[0], 1, data, region.address, region.rkey, imm=1)
    frames = sim.ends[0].frames_to_send(sim.now_ns)
    sim.ends[1].receive(*frames[2], sim.now_ns)
    assert region.view[8192:] == data[8192:]
    assert region.view[:8192] == bytes(8192)
    sim.ends[1].receive(*frames[0], sim.now_ns)
    assert sim.ends[1].poll_cq() == []
    sim.ends[1].receive(*frames[1], sim.now_ns)
    assert region.view == data
    assert [type(e) for e in sim.ends[1].poll_cq()] == [ReceiveCompleted]


def test_duplicates_are_answered_but_not_placed():
    sim = Sim(seed=2, config=MrcConfig(transport_ack=False))
    region = sim.ends[1].register_memory(bytearray(100))
    sim.ends[0].post_write(sim.qpns[0], 1, b"a" * 100, region.address, region.rkey, imm=1)
    ((port, frame),) = sim.ends[0].frames_to_send(sim.now_ns)
    b = sim.ends[1]
    b.receive(port, frame, sim.now_ns)
    assert len(b.frames_to_send(sim.now_ns)) == 1
    region.view[:] = b"b" * 100
    b.receive(port, frame, sim.now_ns)
    assert region.view == b"b" * 100
    assert len(b.frames_to_send(sim.now_ns)) == 1
    assert len(b.poll_cq()) == 1
    assert b.qp_counters(sim.qpns[1]).duplicates == 1


def test_immediates_by_rqmsn_may_overtake_plain_writes_when_asked_for():
    for strict, expected in ((True, []), (False, [5])):
        sim = Sim(seed=2, config=MrcConfig(imm_waits_for_earlier=strict))
        region = sim.ends[1].register_memory(bytearray(100))
        sim.ends[0].post_write(sim.qpns[0], 1, b"a" * 100, region.address, region.rkey)
        sim.ends[0].post_write(sim.qpns[0], 2, b"", 0, 0, imm=5)
        frames = sim.ends[0].frames_to_send(sim.now_ns)
        sim.ends[1].receive(*frames[1], sim.now_ns)
        assert [e.imm for e in sim.ends[1].poll_cq()] == expected
        sim.ends[1].receive(*frames[0], sim.now_ns)
        assert len(sim.ends[1].poll_cq()) + len(expected) == 1


def test_immediates_that_overtake_writes_keep_their_own_order():
    pair = Pair(imm_waits_for_earlier=False)
    for n in range(3):
        pair.post(1, imm=n, wr_id=n)
    first, second, third = pair.send()
    pair.take([third, second])
    assert pair.b.poll_cq() == []
    pair.take([first])
    assert [(done.imm, done.rqmsn) for done in pair.b.poll_cq()] == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("offset", "rkey_change", "access"),
    [
        (1, 0, Access.REMOTE_WRITE),
        (-1, 0, Access.REMOTE_WRITE),
        (1 << 40, 0, Access.REMOTE_WRITE),
        (0, 1, Access.REMOTE_WRITE),
        (0, 0, Access.NONE),
    ],
)
def test_access_errors_are_fatal_and_flush(offset, rkey_change, access):
    sim = Sim(seed=2, keep_frames=True)
    region = sim.ends[1].register_memory(bytearray(100), access)
    good = sim.ends[1].register_memory(bytearray(100))
    post = sim.ends[0].post_write
    post(sim.qpns[0], 1, b"x" * 100, region.address + offset, region.rkey ^ rkey_change)
    post(sim.qpns[0], 2, b"y" * 100, good.address, good.rkey)
    run(sim)
    (nack, *_) = control(sim, 1, Opcode.NACK)
    assert Nack.unpack(nack, BTH_OFFSET + 12).reason == NackReason.UNEXP_EVENT
    assert [(e.wr_id, e.status) for e in sim.of(0, SendCompleted)] == [
        (1, Status.REMOTE_OPERATION_ERROR),
        (2, Status.FLUSHED),
    ]
    assert len(sim.of(0, QpError)) == len(sim.of(1, QpError)) == 1
    assert bytes(region.view) == bytes(100)
    post(sim.qpns[0], 3, b"z", good.address, good.rkey)
    run(sim)
    assert sim.of(0, SendCompleted)[-1].status is Status.FLUSHED
    assert sim.ends[0].next_timer() is None


@pytest.mark.parametrize("transport_ack", [False, True])
def test_writes_before_one_that_is_not_allowed_end_with_success(transport_ack):
    """All writes arrive in one batch. The NACK must leave after the answers to the earlier writes."""
    sim = Sim(seed=2, config=MrcConfig(transport_ack=transport_ack), network=Network(jitter_ns=0))
    region = sim.ends[1].register_memory(bytearray(100))
    for wr_id, rkey in ((1, region.rkey), (2, region.rkey ^ 1), (3, region.rkey)):
        sim.ends[0].post_write(sim.qpns[0], wr_id, b"x" * 100, region.address, rkey, imm=wr_id)
    run(sim)
    assert [e.imm for e in sim.of(1, ReceiveCompleted)] == [1]
    assert [(e.wr_id, e.status) for e in sim.of(0, SendCompleted)] == [
        (1, Status.SUCCESS),
        (2, Status.REMOTE_OPERATION_ERROR),
        (3, Status.FLUSHED),
    ]


def test_the_nack_of_a_trimmed_packet_goes_before_sacks():
    pair = Pair()
    pair.post(100, wr_id=1)
    pair.post(100, wr_id=2)
    good, (port, trimmed) = pair.send()
    assert [a[BTH_OFFSET] for a in pair.take([good, (port, trim(trimmed))])] == [Opcode.NACK, Opcode.SACK]


def test_a_zero_byte_write_needs_no_memory():
    sim = Sim(seed=2)
    sim.ends[0].post_write(sim.qpns[0], 1, b"", 0xDEAD, 0xBEEF, imm=7)
    run(sim)
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.SUCCESS]
    assert [(e.imm, e.length_bytes) for e in sim.of(1, ReceiveCompleted)] == [(7, 0)]


def test_window_of_mpr_psns_is_kept_by_both_sides():
    sim = Sim(seed=2, config=MrcConfig(mpr=128, cwnd_bytes=1 << 30))
    region = sim.ends[1].register_memory(bytearray(200))
    for n in range(200):
        sim.ends[0].post_write(sim.qpns[0], n, b"x", region.address + n, region.rkey)
    frames = []
    assert sim.ends[0].qps[sim.qpns[0]].requester.emit_frames(sim.now_ns, frames, 1000, None) == 128
    assert sim.ends[0].frames_to_send(sim.now_ns, None, 1000) == []
    wide = Sim(seed=2, config=MrcConfig(mpr=1024, cwnd_bytes=1 << 30))
    narrow = wide.ends[1].qps[wide.qpns[1]].responder.bitmap
    narrow.mpr = 128
    region = wide.ends[1].register_memory(bytearray(200))
    for n in range(200):
        wide.ends[0].post_write(wide.qpns[0], n, b"x", region.address + n, region.rkey)
    frames = wide.ends[0].frames_to_send(wide.now_ns, None, 1000)
    assert len(frames) == 200
    for port, frame in frames[1:]:
        wide.ends[1].receive(port, frame, 0)
    counters = wide.ends[1].qp_counters(wide.qpns[1])
    assert (counters.placed, counters.out_of_window) == (127, 72)
    assert bytes(region.view) == bytes(1) + b"x" * 127 + bytes(72)


def test_one_sack_answers_a_batch_of_at_most_the_coalescing_limit():
    def sacks(coalesce):
        sim = Sim(seed=2, config=MrcConfig(sack_coalesce=coalesce, transport_ack=False))
        region = sim.ends[1].register_memory(bytearray(1 << 20))
        sim.ends[0].post_write(sim.qpns[0], 1, bytes(64 * 4096), region.address, region.rkey)
        for port, frame in sim.ends[0].frames_to_send(sim.now_ns, None, 64):
            sim.ends[1].receive(port, frame, sim.now_ns)
        return len(sim.ends[1].frames_to_send(sim.now_ns, None, 100))

    # 64 packets of 4096 B trigger 32 SACKs, one for each 8192 B.
    assert [sacks(c) for c in (1, 4, 16, 32)] == [32, 8, 2, 1]


@pytest.mark.parametrize(
    ("flags", "ce", "answers"),
    [(0x00, False, 0), (0x80, False, 1), (0x20, False, 1), (0x00, True, 1)],
    ids=["nothing", "a", "rtx", "CE"],
)
def test_what_triggers_a_sack(flags, ce, answers):
    pair = Pair(timestamps=False)
    pair.post(100)
    ((port, frame),) = pair.send()
    plain = with_flags(frame, flags)
    assert len(pair.take([(port, mark_ce(plain) if ce else plain)])) == answers


@pytest.mark.parametrize(("size", "packets"), [(0, 8), (1, 8), (1024, 8), (1366, 6), (2048, 4), (4096, 2)])
def test_a_packet_counts_as_1024_bytes_at_least_towards_a_sack(size, packets):
    pair = Pair(timestamps=False, sack_threshold_bytes=8192)
    for n in range(2 * packets):
        pair.post(size, wr_id=n)
    answered = [len(pair.take([(port, with_flags(frame, 0))])) for port, frame in pair.send()]
    assert answered == [*[0] * (packets - 1), 1] * 2


def test_only_marks_in_a_row_ask_for_always_skip():
    pair = Pair(always_skip_after=3, sack_threshold_bytes=1)
    pair.post(14 * 4096)
    way = [(port, frame) for port, frame in pair.send() if port == 0]
    marked = (True, True, False, True, True, True, True)
    answers = []
    for (port, frame), ce in zip(way, marked, strict=True):
        answers += pair.take([(port, mark_ce(frame) if ce else frame)])
    marks = [Sack.unpack(answer, BTH_OFFSET + 12).mark for answer in answers]
    assert marks == [1, 1, 0, 1, 1, 2, 1], "SKIP_ONCE, but ALWAYS_SKIP for the third in a row"


def test_ce_is_read_from_the_outer_header_and_echoed_as_skip_once():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(8192))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(8192), region.address, region.rkey)
    (port, first), _ = sim.ends[0].frames_to_send(sim.now_ns)
    inner_only = bytearray(first)
    inner_only[55] |= 0x30
    sim.ends[1].receive(port, bytes(inner_only), sim.now_ns)
    assert sim.ends[1].frames_to_send(sim.now_ns) == [], "one packet of 4096 B is no trigger here"
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(8192))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(8192), region.address, region.rkey)
    (port, first), _ = sim.ends[0].frames_to_send(sim.now_ns)
    sim.ends[1].receive(port, mark_ce(first), sim.now_ns)
    ((back, answer),) = sim.ends[1].frames_to_send(sim.now_ns)
    assert Sack.unpack(answer, BTH_OFFSET + 12).mark == 1
    sim.ends[0].receive(back, answer, sim.now_ns)
    assert [type(e) for e in sim.ends[0].events()] == [EvSkipped]
