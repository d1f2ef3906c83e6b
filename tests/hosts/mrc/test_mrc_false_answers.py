"""Frames of a bad peer or an attacker: a queue pair always continues, or ends with an error."""

import random

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.codec import read_sack
from mrclab.hosts.mrc.events import PlaneDown
from mrclab.hosts.mrc.wire import EndpointOp, EndpointRequest, Opcode, Sack
from mrclab.hosts.rdma.events import QpError, SendCompleted, Status
from mrclab.hosts.rdma.frames import BTH_LEN, BTH_OFFSET, ICRC_LEN
from tests.support.mrc_pair import T_SENT, Pair, reseal
from tests.support.mrc_sim import Network, Sim


def transfer(writes=8, size=30_000, imm=False, **options):
    """Return a simulation whose sender has begun to send this many writes."""
    sim = Sim(seed=4, config=MrcConfig(**options), network=Network(jitter_ns=0))
    region = sim.ends[1].register_memory(bytearray(size))
    for n in range(writes):
        value = n if imm else None
        sim.ends[0].post_write(sim.qpns[0], n, bytes(size), region.address, region.rkey, imm=value)
    return sim


def forge(sim, **fields):
    """Give the sender a SACK that its peer never sent."""
    requester = sim.ends[0].qps[sim.qpns[0]].requester
    sack = Sack(entropy=0, **fields)
    received = read_sack(memoryview(bytes(BTH_OFFSET + BTH_LEN) + sack.pack() + bytes(ICRC_LEN)))
    assert received is not None
    requester.on_sack(sim.now_ns, received)
    sim.ends[0].scheduler.wake(sim.now_ns, sim.ends[0].qps[sim.qpns[0]])


def settled(sim, writes):
    """Return the statuses of all writes after the run has ended."""
    sim.run(300_000_000, until=lambda: sim.completed[0] == writes)
    done = sim.of(0, SendCompleted)
    assert [e.wr_id for e in done] == list(range(writes))
    return [e.status for e in done]


def test_a_forged_bitmap_does_not_keep_writes_from_completing():
    sim = transfer(cwnd_bytes=1 << 30, transport_ack=False)
    sim.run(1_000)
    first = sim.ends[0].qps[sim.qpns[0]].requester.board.una
    # After this run all packets have arrived, but no true answer has come back.
    forge(sim, cack_psn=first - 1 & 0xFFFFFF, sack_offset=1, bitmap=(1 << 64) - 1)
    assert settled(sim, 8) == [Status.SUCCESS] * 8
    assert not sim.of(0, QpError)


@pytest.mark.parametrize("transport_ack", [False, True])
@pytest.mark.parametrize("imm", [False, True])
def test_a_forged_cumulative_psn_ends_in_an_error(imm, transport_ack):
    sim = transfer(imm=imm, writes=60, transport_ack=transport_ack)
    sim.unpredictable = lambda source, port, frame: source == 0 and frame[BTH_OFFSET] == Opcode.WRITE_FIRST
    sim.run(1_000)
    first = sim.ends[0].qps[sim.qpns[0]].requester.board.una
    forge(sim, cack_psn=first + 3 & 0xFFFFFF)
    statuses = settled(sim, 60)
    assert statuses.count(Status.REMOTE_OPERATION_ERROR) == 1
    assert sim.ends[0].next_timer() is None


def test_a_forged_bitmap_over_what_is_lost_ends_in_an_error():
    sim = transfer()
    lost = []

    def drop(source, port, frame):
        if source == 0 and frame[BTH_OFFSET] == Opcode.WRITE_FIRST and not lost:
            lost.append(frame)
            return True
        return False

    sim.unpredictable = drop
    sim.run(1_000)
    first = sim.ends[0].qps[sim.qpns[0]].requester.board.una
    forge(sim, cack_psn=first - 1 & 0xFFFFFF, sack_offset=1, bitmap=1)
    statuses = settled(sim, 8)
    assert statuses[0] is Status.REMOTE_OPERATION_ERROR
    assert set(statuses[1:]) == {Status.FLUSHED}


@pytest.mark.parametrize("seed", range(30))
def test_forged_sacks_at_any_time_leave_no_write_behind(seed):
    rng = random.Random(seed)
    sim = transfer(writes=40, imm=rng.random() < 0.5, transport_ack=rng.random() < 0.5)
    sim.network.loss = rng.choice([0.0, 0.05])
    board = sim.ends[0].qps[sim.qpns[0]].requester.board
    for _ in range(rng.randrange(1, 6)):
        sim.run(rng.randrange(1, 400_000))
        if not board.inflight_packets:
            break
        forge(
            sim,
            cack_psn=rng.randrange(board.una - 3, board.next_psn) & 0xFFFFFF,
            sack_offset=rng.randrange(-5, 70),
            bitmap=rng.getrandbits(64) & rng.getrandbits(64),
        )
    statuses = settled(sim, 40)
    failed = [s for s in statuses if s is not Status.SUCCESS]
    assert not failed or failed[0] is Status.REMOTE_OPERATION_ERROR
    assert set(failed[1:]) <= {Status.FLUSHED}


def test_honest_peers_never_look_like_liars():
    """If answers of an honest peer are lost, duplicated or reordered, no check may treat them as false."""
    for seed in range(6):
        network = Network(loss=0.1, control_loss=0.2, duplicate=0.2, jitter_ns=400_000)
        sim = Sim(seed=seed, network=network)
        region = sim.ends[1].register_memory(bytearray(20_000))
        for n in range(60):
            sim.ends[0].post_write(sim.qpns[0], n, bytes(20_000), region.address, region.rkey)
        assert settled(sim, 60) == [Status.SUCCESS] * 60


# Transport NAKs


def nak(pair, psn, syndrome):
    pair.a.qps[pair.qpn_a].requester.on_transport_ack(T_SENT, psn & 0xFFFFFF, syndrome)
    return [(e.wr_id, e.status) for e in pair.a.poll_cq()]


@pytest.mark.parametrize("transport_ack", [False, True])
@pytest.mark.parametrize(
    ("syndrome", "status"),
    [
        (0x60, Status.REMOTE_OPERATION_ERROR),
        (0x61, Status.REMOTE_INVALID_REQUEST_ERROR),
        (0x62, Status.REMOTE_OPERATION_ERROR),
        (0x63, Status.REMOTE_OPERATION_ERROR),
        (0x7F, Status.REMOTE_OPERATION_ERROR),
    ],
)
def test_a_transport_nak_fails_the_write_it_names(syndrome, status, transport_ack):
    pair = Pair(transport_ack=transport_ack)
    for n in range(3):
        pair.post(5000, wr_id=n)
    pair.send()
    assert nak(pair, pair.psn + 3, syndrome) == [(0, Status.SUCCESS), (1, status), (2, Status.FLUSHED)]
    assert pair.a.next_timer() is None
    assert pair.a.qps[pair.qpn_a].responder.error


def test_a_nak_gives_a_shared_window_back():
    pair = Pair(congestion="nscc")
    control = pair.a.qps[pair.qpn_a].requester.congestion
    for n in range(2):
        pair.post(3000, wr_id=n)
    pair.send()
    assert control.inflight_bytes > 0
    nak(pair, pair.psn + 1, 0x61)
    assert control.inflight_bytes == 0


@pytest.mark.parametrize("ahead", [-1, 7])
def test_a_nak_for_what_was_never_sent_is_ignored(ahead):
    pair = Pair()
    pair.post(20_000)
    pair.send()
    assert nak(pair, pair.psn + ahead, 0x61) == []
    assert pair.a.qps[pair.qpn_a].requester.bogus_received == 1


@pytest.mark.parametrize("syndrome", [0x20, 0x3F, 0x40])
def test_syndromes_that_mrc_does_not_have_say_nothing(syndrome):
    pair = Pair(transport_ack=True)
    pair.post(100)
    pair.send()
    assert nak(pair, pair.psn, syndrome) == []
    assert pair.a.qps[pair.qpn_a].requester.bogus_received == 1
    assert nak(pair, pair.psn, 0x05) == [(1, Status.SUCCESS)], "credits do not matter"


# Port status


def test_a_port_status_that_denies_its_own_arrival_is_refused():
    sim = Sim(seed=3, keep_frames=True, network=Network(jitter_ns=0))
    sim.ends[0].set_port_state(2, False, sim.now_ns)
    sim.run(1_000_000)
    assert [e.plane for e in sim.of(1, PlaneDown)] == [2]
    # Use the last update. If two updates have the same timestamp, the update with the lower id is older.
    *_, update = (s for s in sim.sightings if s.frame[BTH_OFFSET] == Opcode.ENDPOINT_REQUEST)
    head = bytearray(update.frame)
    stamp = EndpointRequest.unpack(update.frame, BTH_OFFSET + BTH_LEN).tx_timestamp
    for mask, refused in ((0, True), (0b1111 & ~(1 << update.port), True), (1 << update.port, False)):
        body = EndpointRequest(EndpointOp.PORT_STATUS_UPDATE, mask, stamp).pack()
        head[BTH_OFFSET + BTH_LEN : BTH_OFFSET + BTH_LEN + len(body)] = body
        before = sim.ends[1].drops.contradictory
        sim.ends[1].receive(update.port, reseal(bytes(head)), sim.now_ns)
        answers = sim.ends[1].frames_to_send(sim.now_ns)
        down = [event.plane for event in sim.ends[1].events() if isinstance(event, PlaneDown)]
        assert (sim.ends[1].drops.contradictory - before, answers == [], down == []) == (refused,) * 3
