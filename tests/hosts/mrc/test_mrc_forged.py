"""An endpoint drops and counts frames from strangers, forged frames and false SACKs."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.codec import read_sack
from mrclab.hosts.mrc.wire import EvMark, Opcode, Sack
from mrclab.hosts.rdma.events import SendCompleted
from mrclab.hosts.rdma.frames import BTH_LEN, BTH_OFFSET, ICRC_LEN
from mrclab.hosts.rdma.memory import Access
from tests.support.mrc_pair import T_SENT, Pair, reseal
from tests.support.mrc_sim import Network, Sim, is_data, mark_ce, port_addresses, remote_paths, trim


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


@pytest.mark.parametrize(
    "code",
    [0x81, 0xC0, 0xC4, 0xC5, 0xCC, 0xCD, 0xD0, 0xD2, 0xD3, 0xD4, 0xDF],
    ids=["CNP", "SEND", "SEND only", "SEND imm", "READ", *(["READ answer"] * 2), *(["atomic"] * 3), "none"],
)
def test_opcodes_that_mrc_does_not_have_are_dropped(code):
    pair = Pair()
    pair.post(100, imm=1)
    ((port, frame),) = pair.send()
    odd = bytearray(frame)
    odd[BTH_OFFSET] = code
    assert pair.take([(port, reseal(bytes(odd)))]) == []
    assert (pair.b.drops.unknown_opcode, pair.b.drops.total()) == (1, 1)
    assert pair.b.poll_cq() == []
    assert pair.b.qp_counters(pair.qpn_b).placed == 0


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


def test_a_flood_of_packets_beyond_the_window_is_refused_within_bounds():
    pair = Pair()
    pair.post(100)
    ((port, frame),) = pair.send()
    beyond = bytearray(frame)
    beyond[BTH_OFFSET + 9 : BTH_OFFSET + 12] = (pair.psn + 5000 & 0xFFFFFF).to_bytes(3, "big")
    answers = pair.take([(port, reseal(bytes(beyond)))] * 1000)
    assert [answer[BTH_OFFSET] for answer in answers] == [Opcode.NACK] * 256
    assert pair.b.frames_to_send(T_SENT) == []


@pytest.mark.parametrize(("change", "count"), [(mark_ce, 256), (bytes, 256 + 1)], ids=["marked", "unmarked"])
def test_a_flood_of_duplicates_is_answered_within_bounds(change, count):
    """The receiver answers 256 of 1000 duplicates. If they are unmarked, it also answers the newest one."""
    pair = Pair()
    pair.post(100)
    ((port, frame),) = pair.send()
    answers = pair.take([(port, change(frame))] * 1000)
    assert [answer[BTH_OFFSET] for answer in answers] == [Opcode.SACK] * count
    assert pair.b.frames_to_send(T_SENT) == []


def probed():
    """Return a pair, and an EV_PROBE with the port at which it arrives."""
    pair = Pair()
    pair.a.probe_ev(pair.qpn_a, pair.a.ev_counters(pair.qpn_a)[0].ev, T_SENT)
    ((port, request),) = pair.send()
    return pair, port, request


def test_a_flood_of_ev_probes_is_answered_within_bounds():
    pair, port, request = probed()
    for _ in range(1000):
        pair.b.receive(port, request, T_SENT)
    assert pair.b.frames_to_send(T_SENT, {1 - port}) == [], "answers wait for their port"
    batches = []
    while batch := pair.b.frames_to_send(T_SENT, {port}, 32):
        batches.append([frame[BTH_OFFSET] for _, frame in batch])
    assert batches == [[Opcode.ENDPOINT_RESPONSE] * 32] * 8


def test_a_flood_of_ev_probes_leaves_every_second_frame_to_data():
    pair, port, request = probed()
    back = pair.a.register_memory(bytearray(1 << 16))
    pair.b.post_write(pair.qpn_b, 1, bytes(1 << 16), back.address, back.rkey)
    sent = []
    for _ in range(10):
        for _ in range(4):
            pair.b.receive(port, request, T_SENT)
        sent += [is_data(frame) for _, frame in pair.b.frames_to_send(T_SENT, None, 1)]
    assert sent == [False, True] * 5


def seasoned():
    """Return an endpoint pair during a transfer, and one frame of every kind that it has sent."""
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


@pytest.mark.slow
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
    """Forged frames are accepted or dropped, and counted. The state stays consistent, and memory is safe."""
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
    # Next to the region that the peer may write, there is a page that nobody may write.
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


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 1 << 24),
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, 2**32 - 1),
)
def test_lying_sacks_break_no_promise(cack, offset, bitmap, seed):
    """A peer may send false SACKs. The sender must not crash or complete a message that it never sent."""
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


def test_marks_of_any_number_of_evs_take_bounded_memory():
    """A peer may name any EV, so the number of counters of marked EVs must be limited."""
    pair = Pair(always_skip_after=3)
    responder = pair.b.qps[pair.qpn_b].responder
    for ev in range(10_000):
        responder._mark(ev)
    assert len(responder._marked) <= 4096
    assert [int(responder._mark(9_999)) for _ in range(2)] == [int(EvMark.SKIP_ONCE), int(EvMark.ALWAYS_SKIP)]
