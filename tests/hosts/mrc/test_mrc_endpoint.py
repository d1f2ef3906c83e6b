"""One endpoint's edges: memory, windows, errors, whatever a port may bring in."""

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hosts.mrc import Endpoint, MrcConfig
from hosts.mrc.events import EvSkipped
from hosts.mrc.evs.states import EvInput
from hosts.mrc.received import read_sack
from hosts.mrc.wire import Nack, NackReason, Opcode, Sack
from hosts.rdma.events import PacketLost, QpError, ReceiveCompleted, SendCompleted, Status
from hosts.rdma.headers import BTH_LEN, BTH_OFFSET, ICRC_LEN
from hosts.rdma.memory import Access
from hosts.rdma.paths import Path, PlanePaths, RemotePaths
from tests.support.mrc_sim import Network, Sim, frame_psn, mark_ce, port_addresses, remote_paths, trim


def run(sim):
    sim.run(100_000_000)


def control(sim, source, opcode):
    return [s.frame for s in sim.sightings if s.source == source and s.frame[BTH_OFFSET] == opcode]


def test_frame_layout_from_ethernet_to_icrc():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(64))
    sim.ends[0].post_write(sim.qpns[0], 1, b"hello", region.address + 8, region.rkey, imm=0x01020304)
    ((port, frame),) = sim.ends[0].frames_to_send(sim.now_ns)
    plane = remote_paths(0, 1, 4, 8).planes[port]
    path = next(p for p in plane.paths if p.ev & 0xFFFF == int.from_bytes(frame[94:96], "big"))
    label = (path.ev >> 16).to_bytes(2, "big")
    udp_length = 8 + 12 + 4 + 16 + 4 + 5 + 3 + 4
    assert frame[:14] == plane.dst_mac + plane.src_mac + b"\x86\xdd"
    # Version 6, DSCP 4, ECT(0); length; next header; hop limit
    assert frame[14:22] == bytes.fromhex("6120") + label + (40 + udp_length).to_bytes(2, "big") + bytes(
        [41, 64]
    )
    assert frame[22:54] == plane.src + path.outer_dst
    assert frame[54:62] == bytes.fromhex("6120") + label + udp_length.to_bytes(2, "big") + bytes([17, 64])
    assert frame[62:94] == plane.src + plane.dst
    assert frame[96:102] == (4791).to_bytes(2, "big") + udp_length.to_bytes(2, "big") + b"\0\0"
    psn = sim.ends[0].local_attributes(sim.qpns[0]).psn
    assert frame[102:114] == b"\xcb\x30\xff\xff" + sim.qpns[1].to_bytes(4, "big") + b"\x80" + psn.to_bytes(
        3, "big"
    )
    assert frame[114:118] == bytes(4)
    assert frame[118:134] == (
        (region.address + 8).to_bytes(8, "big") + region.rkey.to_bytes(4, "big") + (5).to_bytes(4, "big")
    )
    assert frame[134:146] == bytes([1, 2, 3, 4]) + b"hello" + bytes(3)
    assert len(frame) == 150


def test_sack_names_ev_cumulative_psn_and_trigger():
    sim = Sim(seed=2, keep_frames=True, network=Network(jitter_ns=0))
    region = sim.ends[1].register_memory(bytearray(4096))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1000), region.address, region.rkey)
    run(sim)
    data, answer = sim.sightings
    sack = Sack.unpack(answer.frame, BTH_OFFSET + 12)
    assert len(answer.frame) == BTH_OFFSET + 12 + 36 + 4
    assert answer.frame[14] >> 4 == 6
    assert (answer.frame[14] & 15) << 2 | answer.frame[15] >> 6 == 46
    assert answer.port == data.port
    assert sack == Sack(cack_psn=frame_psn(data.frame), entropy=sack.entropy, rcvd_units=4)
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
    sim = Sim(seed=2)
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
        (1, Status.REMOTE_ACCESS_ERROR),
        (2, Status.FLUSHED),
    ]
    assert len(sim.of(0, QpError)) == len(sim.of(1, QpError)) == 1
    assert bytes(region.view) == bytes(100)
    post(sim.qpns[0], 3, b"z", good.address, good.rkey)
    run(sim)
    assert sim.of(0, SendCompleted)[-1].status is Status.FLUSHED
    assert sim.ends[0].next_timer() is None


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
    frames = sim.ends[0].frames_to_send(sim.now_ns, None, 1000)
    assert len(frames) == 128
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
        sim = Sim(seed=2, config=MrcConfig(sack_coalesce=coalesce))
        region = sim.ends[1].register_memory(bytearray(1 << 20))
        sim.ends[0].post_write(sim.qpns[0], 1, bytes(64 * 4096), region.address, region.rkey)
        for port, frame in sim.ends[0].frames_to_send(sim.now_ns, None, 64):
            sim.ends[1].receive(port, frame, sim.now_ns)
        return len(sim.ends[1].frames_to_send(sim.now_ns, None, 100))

    # 64 packets of 4096 B are 32 triggers of 8192.
    assert [sacks(c) for c in (1, 4, 16, 32)] == [32, 8, 2, 1]


def test_a_marked_ev_is_reported_once_while_it_waits():
    sim = Sim(seed=2)
    evs = sim.ends[0].qps[sim.qpns[0]].evs
    ev = evs.planes[0].active[0]
    evs.on_congestion(0, ev, EvInput.ECN)
    evs.on_congestion(0, ev, EvInput.ECN)
    assert [type(e) for e in sim.ends[0].events()] == [EvSkipped]
    assert next(c for c in sim.ends[0].ev_counters(sim.qpns[0]) if c.ev == ev.value).ecn_marked == 2


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


def test_a_second_nack_or_one_for_another_ev_is_old_news():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(100))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(100), region.address, region.rkey)
    ((port, frame),) = sim.ends[0].frames_to_send(sim.now_ns)
    sim.ends[1].receive(port, trim(frame), sim.now_ns)
    ((back, nack),) = sim.ends[1].frames_to_send(sim.now_ns)
    sim.ends[0].receive(back, nack, sim.now_ns)
    assert len(sim.ends[0].frames_to_send(sim.now_ns)) == 1
    sim.ends[0].receive(back, nack, sim.now_ns)
    assert sim.ends[0].frames_to_send(sim.now_ns) == []
    assert sum(isinstance(e, PacketLost) for e in sim.ends[0].events()) == 1


def test_limit_and_free_ports_bound_what_is_handed_out():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 20), region.address, region.rkey)
    assert len(sim.ends[0].frames_to_send(sim.now_ns, None, 5)) == 5
    assert {port for port, _ in sim.ends[0].frames_to_send(sim.now_ns, {1, 3}, 12)} == {1, 3}
    assert sim.ends[0].frames_to_send(sim.now_ns, set()) == []
    assert len(sim.ends[0].frames_to_send(sim.now_ns, None, 100)) == 64 - 5 - 12


def test_queue_pairs_take_turns():
    sim = Sim(seed=2)
    a, b = sim.ends
    second = [end.create_qp() for end in sim.ends]
    for me in (0, 1):
        sim.ends[me].connect(
            second[me], sim.ends[1 - me].local_attributes(second[1 - me]), remote_paths(me, 1 - me, 4, 8)
        )
    region = b.register_memory(bytearray(1 << 20))
    for qpn in (sim.qpns[0], second[0]):
        a.post_write(qpn, 1, bytes(1 << 18), region.address, region.rkey)
    targets = [frame[107:110] for _, frame in a.frames_to_send(sim.now_ns, None, 32)]
    assert targets.count(sim.qpns[1].to_bytes(3, "big")) == 16


def test_a_turn_lasts_over_several_calls():
    """Who asks frame by frame is to get no more changes of queue pair than who asks for many at once."""
    sim = Sim(seed=2, qps=2)
    a, b = sim.ends
    region = b.register_memory(bytearray(1 << 20))
    for qpn, _ in sim.connections:
        a.post_write(qpn, 1, bytes(1 << 18), region.address, region.rkey)
    targets = [frame[107:110] for _ in range(40) for _, frame in a.frames_to_send(sim.now_ns, None, 1)]
    assert [len(list(run)) for _, run in itertools.groupby(targets)] == [16, 16, 8]


def test_events_and_poll_cq_hand_each_completion_out_once():
    sim = Sim(seed=2)
    end = sim.ends[0]
    end.post_write(sim.qpns[0], 1, b"", 0, 0)
    for port, frame in end.frames_to_send(0):
        sim.ends[1].receive(port, frame, 0)
    for port, frame in sim.ends[1].frames_to_send(0):
        end.receive(port, frame, 0)
    assert [e.wr_id for e in end.poll_cq()] == [1]
    assert end.next_event() is None


def test_frames_that_are_not_ours_are_counted_by_cause():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(100))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(100), region.address, region.rkey)
    ((port, frame),) = sim.ends[0].frames_to_send(0)
    b = sim.ends[1]

    def change(at, value, source=frame):
        changed = bytearray(source)
        changed[at : at + len(value)] = value
        return bytes(changed)

    def cause(on_port, data):
        before = {name: getattr(b.drops, name) for name in b.drops.__dataclass_fields__}
        b.receive(on_port, data, 0)
        return [name for name in before if getattr(b.drops, name) != before[name]]

    assert cause(port, b"") == ["too_short"]
    assert cause(port, frame[:117]) == ["too_short"]
    assert cause(port, frame[:-1]) == ["bad_length"]
    assert cause(port, change(12, b"\x08\x00")) == ["not_mrc"]
    assert cause(port, change(20, b"\x11")) == ["not_mrc"]
    assert cause(port, change(60, b"\x06")) == ["not_mrc"]
    assert cause(port, change(96, b"\x00\x35")) == ["not_mrc"]
    assert cause((port + 1) % 4, frame) == ["wrong_port"]
    assert cause(port, change(130, b"\xff")) == ["bad_icrc"]
    b.set_port_state(port, False, 0)
    assert cause(port, frame) == ["wrong_port"]
    b.set_port_state(port, True, 0)
    assert cause(port, frame + b"padding") == []
    assert b.qp_counters(sim.qpns[1]).placed == 1
    b.destroy_qp(sim.qpns[1])
    assert cause(port, frame) == ["unknown_qp"]


def test_a_stranger_cannot_write_into_a_qp():
    sim = Sim(seed=2)
    region = sim.ends[1].register_memory(bytearray(100))
    stranger = Endpoint(port_addresses(7, 4), rng=random.Random(1))
    qpn = stranger.create_qp()
    stranger.connect(qpn, sim.ends[1].local_attributes(sim.qpns[1]), remote_paths(7, 1, 4, 8))
    stranger.post_write(qpn, 1, b"x" * 100, region.address, region.rkey)
    for port, frame in stranger.frames_to_send(0):
        sim.ends[1].receive(port, frame, 0)
        sim.ends[1].receive(port, trim(frame), 0)
    assert sim.ends[1].drops.wrong_source == 2
    assert bytes(region.view) == bytes(100)


def test_a_peer_without_trim_nacks_is_sent_nothing_trimmable():
    config = MrcConfig()
    a, b = Endpoint(port_addresses(0, 2), config), Endpoint(port_addresses(1, 2), MrcConfig(trim=False))
    qpns = a.create_qp(), b.create_qp()
    a.connect(qpns[0], b.local_attributes(qpns[1]), remote_paths(0, 1, 2, 2))
    a.post_write(qpns[0], 1, b"x", 0, 0)
    ((_, frame),) = a.frames_to_send(0)
    assert (frame[14] & 15) << 2 | frame[15] >> 6 == config.dscp.no_trim
    assert frame[15] >> 4 & 3 == 2, "ECT(0) all the same"


def test_a_flood_of_probes_is_answered_within_bounds():
    sim = Sim(seed=2, keep_frames=True)
    requester = sim.ends[0].qps[sim.qpns[0]].requester
    requester.probes.wanted.extend((ev, False) for ev in list(requester.evs.by_value.values()) * 20)
    frames = sim.ends[0].frames_to_send(0, None, 10_000)
    sim.ends[0].scheduler.wake(sim.now_ns, sim.ends[0].qps[sim.qpns[0]])
    while batch := sim.ends[0].frames_to_send(0, None, 10_000):
        frames += batch
    assert len(frames) == 640
    for port, frame in frames:
        sim.ends[1].receive(port, frame, 0)
    answers = []
    while batch := sim.ends[1].frames_to_send(0):
        answers += batch
    assert len(answers) == 256


def test_bad_arguments_are_refused():
    end = Endpoint(port_addresses(0, 2))
    with pytest.raises(ValueError, match="not connected"):
        end.post_write(end.create_qp(), 1, b"", 0, 0)
    with pytest.raises(ValueError, match="writable"):
        end.register_memory(memoryview(b"fixed"))
    with pytest.raises(ValueError, match="unique"):
        RemotePaths((PlanePaths(0, bytes(6), bytes(6), bytes(16), bytes(16), (Path(1, bytes(16)),) * 2),))
    with pytest.raises(ValueError, match="mpr"):
        MrcConfig(mpr=100)
    peer = Endpoint(port_addresses(1, 3))
    theirs = peer.local_attributes(peer.create_qp())
    with pytest.raises(ValueError, match="port 2"):
        end.connect(end.create_qp(), theirs, remote_paths(0, 1, 3, 2))


# Fuzz


def seasoned():
    """Return an endpoint pair in mid transfer and one frame of every kind that has been sent."""
    sim = Sim(
        seed=6, keep_frames=True, network=Network(loss=0.05, trim=0.05), config=MrcConfig(timestamps=True)
    )
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(300_001), region.address, region.rkey, imm=1)
    sim.ends[0].set_port_state(3, False, sim.now_ns)
    sim.run(400_000)
    sim.network.dead_planes = {0, 1, 2, 3}
    sim.ends[0].post_write(sim.qpns[0], 2, bytes(300_001), region.address, region.rkey, imm=1)
    sim.run(3_000_000)
    kinds = {(s.source, s.frame[BTH_OFFSET]): (s.source, s.port, s.frame) for s in sim.sightings}
    return sim, sorted(kinds.values())


KINDS = seasoned()[1]


def test_the_fuzz_has_every_kind_of_frame():
    assert {frame[BTH_OFFSET] for _, _, frame in KINDS} >= {
        *(Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST_IMM, Opcode.SACK, Opcode.NACK),
        *(Opcode.PROBE_REQUEST, Opcode.ENDPOINT_REQUEST, Opcode.ENDPOINT_RESPONSE),
    }


def reseal(frame: bytes) -> bytes:
    """Give a broken frame lengths and an ICRC that are right, so that it gets past them."""
    from hosts.rdma.icrc import packet_icrc

    body = bytearray(frame)
    body[106] = 0
    length = len(body) - 94
    body[18:20] = (length + 40).to_bytes(2, "big")
    body[58:60] = body[98:100] = length.to_bytes(2, "big")
    return bytes(body[:-4]) + packet_icrc(bytes(body[54:102]), bytes(body[102:-4]))


@settings(max_examples=150, deadline=None)
@given(
    kind=st.integers(0, len(KINDS) - 1),
    edits=st.lists(st.tuples(st.integers(0, 160), st.integers(0, 255)), max_size=8),
    length=st.integers(0, 400),
    cut=st.booleans(),
    sealed=st.booleans(),
)
@example(kind=0, edits=[], length=0, cut=True, sealed=False)
def test_no_frame_makes_the_core_stumble(kind, edits, length, cut, sealed):
    """Forged frames are taken or dropped, and counted; the state stays consistent and memory is safe."""
    sim, _ = seasoned()
    source, port, frame = KINDS[kind]
    broken = bytearray(frame)
    for at, value in edits:
        if at < len(broken):
            broken[at] = value
    if cut:
        del broken[length:]
    data = bytes(broken)
    if sealed and len(data) >= 118:
        data = reseal(data)
    target = sim.ends[1 - source]
    before = target.drops.total() + sum(target.frames_received.values())
    # Beside the region that the peer may write, a page that nobody may.
    others = target.register_memory(bytearray(4096), Access.NONE)
    target.receive(port, data, sim.now_ns)
    target.receive(port, memoryview(data), sim.now_ns)
    assert target.drops.total() + sum(target.frames_received.values()) >= before + 2
    assert all(len(f) >= 118 for _, f in target.frames_to_send(sim.now_ns))
    due = target.next_timer()
    assert due is None or due >= 0
    target.handle_timer(sim.now_ns)
    assert all(event.t_ns <= sim.now_ns for event in target.events())
    assert not any(others.view)
    qp = target.qps[sim.qpns[1 - source]]
    board, bitmap = qp.requester.board, qp.responder.bitmap
    assert board.una <= board.next_psn
    assert board.inflight_packets == len(board.in_flight())
    assert board.inflight_bytes == sum(p.length for p in board.in_flight())
    assert bitmap.highest >= bitmap.expected - 1
    assert not bitmap.bits & 1, "the lowest PSN that has not arrived is the expected one"
    assert bitmap.bits.bit_length() <= bitmap.mpr


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3), st.binary(max_size=300))
def test_noise_is_dropped(port, data):
    end = Endpoint(port_addresses(0, 4))
    end.receive(port, data, 0)
    assert end.drops.total() == 1


def test_busy_ports_do_not_pile_up_probes():
    sim = Sim(seed=2, config=MrcConfig(exponential_retries=25, probe_interval_ns=1_000_000))
    end = sim.ends[0]
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    end.post_write(sim.qpns[0], 1, bytes(1 << 16), region.address, region.rkey)
    frames = end.frames_to_send(sim.now_ns, None, 100)
    for port, frame in frames[4:]:
        sim.ends[1].receive(port, frame, sim.now_ns + 500_000)
    for port, frame in sim.ends[1].frames_to_send(sim.now_ns + 500_000):
        end.receive(port, frame, sim.now_ns + 500_000)
    for _ in range(200):
        end.handle_timer(end.next_timer())
        assert end.frames_to_send(end.next_timer(), set()) == []
    probes = [
        f
        for _, f in end.frames_to_send(end.next_timer(), None, 1000)
        if f[BTH_OFFSET] == Opcode.PROBE_REQUEST
    ]
    assert 1 <= len(probes) <= 4


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 1 << 24),
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, 2**32 - 1),
)
def test_lying_sacks_break_no_promise(cack, offset, bitmap, seed):
    """A peer may claim anything; the sender must not crash, nor complete what it never sent."""
    sim = Sim(seed=seed)
    end = sim.ends[0]
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    end.post_write(sim.qpns[0], 1, bytes(1 << 20), region.address, region.rkey)
    end.frames_to_send(sim.now_ns, None, 20)
    first = end.local_attributes(sim.qpns[0]).psn
    near = Sack(
        cack_psn=(first + cack % 40 - 10) & 0xFFFFFF,
        entropy=seed,
        sack_offset=offset % 80 - 20,
        bitmap=bitmap,
    )
    far = Sack(
        cack_psn=cack & 0xFFFFFF, entropy=seed, ack_psn_offset=offset, sack_offset=offset, bitmap=bitmap
    )
    requester = end.qps[sim.qpns[0]].requester
    for sack in (near, far):
        received = read_sack(memoryview(bytes(BTH_OFFSET + BTH_LEN) + sack.pack() + bytes(ICRC_LEN)))
        assert received is not None
        requester.on_sack(sim.now_ns, received)
        board = requester.board
        assert board.una <= board.next_psn
        assert board.inflight_bytes == sum(p.length for p in board.in_flight()) >= 0
        assert board.inflight_packets == len(board.in_flight())
    assert not [e for e in end.events() if isinstance(e, SendCompleted)]
