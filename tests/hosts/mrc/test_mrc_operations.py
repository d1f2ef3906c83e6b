"""Features beyond data and SACKs: transport ACKs, windows that change, refusals, endpoint operations."""

import itertools
import mmap

import pytest

from mrclab.hosts.mrc import Endpoint, MrcConfig, SpecReading
from mrclab.hosts.mrc.events import EvProbed, EvRetired, PlaneDown, PlaneUp, PortStatusUnanswered
from mrclab.hosts.mrc.wire import Aeth, EndpointOp, EndpointRequest, Nack, NackReason, Opcode, Sack
from mrclab.hosts.rdma.events import LossReason, PacketLost, QpError, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.frames import BTH_OFFSET
from tests.support.endpoint_state import set_receiver_penalty, set_refusal
from tests.support.mrc_pair import Pair, with_flags
from tests.support.mrc_sim import Network, Sim, ev_value, frame_ev, frame_psn, is_data


def region(sim, size=1 << 20):
    return sim.ends[1].register_memory(bytearray(size))


def post(sim, wr_id, size, where, imm=None):
    sim.ends[0].post_write(sim.qpns[0], wr_id, bytes(size), where.address, where.rkey, imm=imm)


def frames(sim, source, opcode):
    return [s.frame for s in sim.sightings if s.source == source and s.frame[BTH_OFFSET] == opcode]


def unequal(*options):
    """Return a simulation whose two ends have different options."""
    configs = iter([MrcConfig(**own) for own in options])
    return Sim(
        seed=2,
        network=Network(jitter_ns=0),
        keep_frames=True,
        endpoint_class=lambda ports, _, rng: Endpoint(ports, next(configs), rng),
    )


def done(sim, count=1):
    return lambda: sim.completed[0] >= count


# Transport ACKs


def acked_sim(**network):
    return Sim(seed=4, config=MrcConfig(transport_ack=True), network=Network(**network), keep_frames=True)


def test_a_write_completes_by_its_transport_ack_not_by_its_sack():
    sim = acked_sim()
    post(sim, 1, 3 * 4096, region(sim))
    sent = sim.ends[0].frames_to_send(0)
    for port, frame in sent:
        sim.ends[1].receive(port, frame, 0)
    answers = sim.ends[1].frames_to_send(0)
    (ack,) = [a for a in answers if a[1][BTH_OFFSET] == Opcode.ACKNOWLEDGE]
    assert Aeth.unpack(ack[1], BTH_OFFSET + 12) == Aeth(msn=1, syndrome=0x1F)
    assert frame_psn(ack[1]) == frame_psn(sent[-1][1])
    for port, frame in answers:
        if frame is not ack[1]:
            sim.ends[0].receive(port, frame, 50_000)
    assert sim.ends[0].qp_counters(sim.qpns[0]).inflight_bytes == 0
    assert sim.ends[0].poll_cq() == []
    sim.ends[0].receive(*ack, 60_000)
    assert [(e.wr_id, e.status, e.t_ns) for e in sim.ends[0].poll_cq()] == [(1, Status.SUCCESS, 60_000)]


def test_a_transport_ack_comes_where_bth_a_asks_for_it_and_with_old_duplicates():
    pair = Pair(transport_ack=True, timestamps=False, sack_threshold_bytes=1 << 20)
    for n in range(4):
        pair.post(100, wr_id=n)
    first, second, third, _ = pair.send()

    def answers(frame):
        return [answer[BTH_OFFSET] for answer in pair.take([frame])]

    both = [Opcode.ACKNOWLEDGE, Opcode.SACK]
    unasked = (first[0], with_flags(first[1], 0x00))
    assert answers(unasked) == []
    assert answers(third) == [Opcode.SACK], "the message before it is missing"
    assert answers(third) == [Opcode.SACK], "a duplicate inside the window"
    assert answers(second) == both
    assert answers(unasked) == both, "a duplicate below the window: the transport ACK may be lost"


def test_a_lost_transport_ack_is_asked_for():
    sim = acked_sim()
    lost = []

    def drop(source, port, frame):
        if frame[BTH_OFFSET] == Opcode.ACKNOWLEDGE and len(lost) < 2:
            lost.append(frame)
            return True
        return False

    sim.unpredictable = drop
    post(sim, 1, 10_000, region(sim))
    sim.run(until=done(sim))
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.SUCCESS]
    assert len(lost) == 2
    assert not sim.of(0, EvRetired)


def test_silence_after_a_sack_fails_the_write_that_lacks_its_transport_ack():
    config = MrcConfig(transport_ack=True, linear_retries=1, exponential_retries=1)
    sim = Sim(seed=4, config=config, network=Network(jitter_ns=0))
    sacks = []

    def drop(source, port, frame):
        if source == 1 and frame[BTH_OFFSET] == Opcode.SACK:
            sacks.append(frame)
            return len(sacks) > 1
        return source == 1

    sim.unpredictable = drop
    where = region(sim)
    post(sim, 1, 100, where)
    post(sim, 2, 100, where)
    sim.run(2_000_000_000, until=done(sim, 2))
    assert Sack.unpack(sacks[0], BTH_OFFSET + 12).cack_psn == sim.ends[0].qps[sim.qpns[0]].psn + 1
    statuses = [(e.wr_id, e.status) for e in sim.of(0, SendCompleted)]
    assert statuses == [(1, Status.RETRY_EXCEEDED), (2, Status.FLUSHED)]


def test_transport_acks_survive_a_bad_network():
    sim = acked_sim(loss=0.05, control_loss=0.1, duplicate=0.05)
    where = region(sim)
    for n in range(40):
        post(sim, n, 9_000, where, imm=n)
    sim.run(60_000_000_000, until=done(sim, 40))
    assert [(e.wr_id, e.status) for e in sim.of(0, SendCompleted)] == [(n, Status.SUCCESS) for n in range(40)]
    assert [e.imm for e in sim.of(1, ReceiveCompleted)] == list(range(40))


def test_transport_acks_nobody_agreed_on_are_ignored():
    sim = acked_sim()
    post(sim, 1, 100, region(sim))
    sent = sim.ends[0].frames_to_send(0)
    requester = sim.ends[0].qps[sim.qpns[0]].requester
    requester.on_transport_ack(0, frame_psn(sent[0][1]) + 1, 0x1F)
    assert (requester.bogus_received, sim.ends[0].poll_cq()) == (1, [])


# Windows that change


def test_the_receive_window_may_change_under_way():
    sim = Sim(
        seed=2, config=MrcConfig(dynamic_mpr=True, cwnd_bytes=1 << 30, mpr=1024), network=Network(jitter_ns=0)
    )
    where = region(sim)
    for n in range(3000):
        post(sim, n, 1, where)
    sim.ends[1].set_mpr(sim.qpns[1], 256)
    first = sim.ends[0].frames_to_send(0, None, 5000)
    assert len(first) == 1024, "not announced yet"
    for port, frame in first:
        sim.ends[1].receive(port, frame, 0)
    for port, frame in sim.ends[1].frames_to_send(0, None, 5000):
        sim.ends[0].receive(port, frame, 0)
    assert len(sim.ends[0].frames_to_send(0, None, 5000)) == 256
    with pytest.raises(ValueError, match="multiple"):
        sim.ends[1].set_mpr(sim.qpns[1], 2048)


@pytest.mark.parametrize("ours", [(False, False), (True, False), (False, True)])
def test_dynamic_mpr_needs_both_ends(ours):
    sim = unequal(*({"dynamic_mpr": wish} for wish in ours))
    for me in (0, 1):
        with pytest.raises(ValueError, match="agreed"):
            sim.ends[me].set_mpr(sim.qpns[me], 128)
    post(sim, 1, 1, region(sim))
    sim.run(until=done(sim))
    assert {Sack.unpack(f, BTH_OFFSET + 12).mpr for f in frames(sim, 1, Opcode.SACK)} == {0}


@pytest.mark.parametrize("limit", [32, 5])
def test_write_imms_in_flight_are_limited(limit):
    sim = Sim(seed=2, config=MrcConfig(max_wimm=limit))
    where = region(sim)
    for n in range(40):
        post(sim, n, 5000, where, imm=n)
    sent = sim.ends[0].frames_to_send(0, None, 1000)
    assert len(sent) == 2 * limit
    assert sim.ends[0].frames_to_send(0, None, 1000) == []
    for port, frame in sent[:2]:
        sim.ends[1].receive(port, frame, 0)
    for port, frame in sim.ends[1].frames_to_send(0):
        sim.ends[0].receive(port, frame, 0)
    assert len(sim.ends[0].frames_to_send(0, None, 1000)) == 2
    sim.ends[0].post_write(sim.qpns[0], 99, b"x", where.address, where.rkey)
    assert sim.ends[0].frames_to_send(0, None, 1000) == [], "plain writes keep their place behind"


@pytest.mark.parametrize("nack", [True, False])
def test_psns_beyond_the_window_are_refused_or_dropped(nack):
    sim = Sim(seed=2, config=MrcConfig(mpr=1024, cwnd_bytes=1 << 30, reading=SpecReading(oor_nack=nack)))
    sim.ends[1].qps[sim.qpns[1]].responder.bitmap.mpr = 128
    where = region(sim)
    for n in range(130):
        post(sim, n, 1, where)
    *_, last = sim.ends[0].frames_to_send(0, None, 1000)
    sim.ends[1].receive(*last, 0)
    answers = [Nack.unpack(f, BTH_OFFSET + 12) for _, f in sim.ends[1].frames_to_send(0)]
    assert [(a.reason, a.nack_psn) for a in answers] == (
        [(NackReason.PSN_OOR_WINDOW, frame_psn(last[1]))] if nack else []
    )
    assert sim.ends[1].qp_counters(sim.qpns[1]).out_of_window == 1


# Refused packets


@pytest.mark.parametrize("reason", [NackReason.NO_BITMAP, NackReason.NO_PKT_BUFFER, NackReason.NO_RESOURCE])
def test_a_receiver_short_of_something_is_tried_again_and_no_path_is_to_blame(reason):
    sim = Sim(seed=2)
    set_refusal(sim.ends[1], sim.qpns[1], reason)
    sim.at(sim.now_ns + 150_000, lambda: set_refusal(sim.ends[1], sim.qpns[1], None))
    post(sim, 1, 20_000, region(sim))
    sim.run(until=done(sim))
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.SUCCESS]
    assert {e.reason for e in sim.of(0, PacketLost)} == {LossReason.NACK}
    assert not sim.of(0, EvRetired)


def test_refused_for_good_means_retry_counter_exceeded():
    sim = Sim(seed=2, config=MrcConfig(linear_retries=2, exponential_retries=3))
    set_refusal(sim.ends[1], sim.qpns[1], NackReason.NO_RESOURCE)
    post(sim, 1, 100, region(sim))
    post(sim, 2, 100, region(sim))
    sim.run(50_000_000, until=done(sim, 2))
    assert [(e.wr_id, e.status) for e in sim.of(0, SendCompleted)] == [
        (1, Status.RETRY_EXCEEDED),
        (2, Status.FLUSHED),
    ]
    assert sim.ends[0].qp_counters(sim.qpns[0]).retransmitted == 2 * 5


def test_a_receiver_may_narrow_and_restore_the_window():
    sim = Sim(seed=2, config=MrcConfig(congestion="nscc", transport_ack=False), keep_frames=True)
    control = sim.ends[0].qps[sim.qpns[0]].requester.congestion
    before = control.cwnd_bytes
    where = region(sim)
    set_receiver_penalty(sim.ends[1], sim.qpns[1], 127)
    post(sim, 1, 40_960, where)
    sim.run(until=done(sim))
    narrow = control.cwnd_bytes
    assert narrow < before
    set_receiver_penalty(sim.ends[1], sim.qpns[1], 0, restore=True)
    post(sim, 2, 4096, where)
    sim.run(until=done(sim, 2))
    assert control.cwnd_bytes == before > narrow
    with pytest.raises(ValueError, match="7 bits"):
        set_receiver_penalty(sim.ends[1], sim.qpns[1], 128)


def test_cc_state_counts_what_came_out_of_order_and_echoes_the_timestamp():
    sim = Sim(seed=2, config=MrcConfig(timestamps=True, sack_threshold_bytes=1))
    post(sim, 1, 5 * 4096, region(sim))
    sent = sim.ends[0].frames_to_send(128 * 77)
    for port, frame in sent[2:]:
        sim.ends[1].receive(port, frame, 0)
    (answer,) = sim.ends[1].frames_to_send(0)
    sack = Sack.unpack(answer[1], BTH_OFFSET + 12)
    # 3 * (4096 + 88) B are a little more than 49 units.
    assert (sack.ooo_count, sack.rcvd_units, sack.tx_timestamp) == (3, 50, 77)
    assert (sack.rcv_cwnd_pen, sack.restore_cwnd) == (0, False)


# Endpoint operations


def test_an_ev_probe_tells_the_rtt_or_times_out_after_2_ms():
    sim = Sim(seed=3, network=Network(delay_ns=30_000, jitter_ns=0), keep_frames=True)
    sim.network.dead.add(ev_value(1, 1))
    good = sim.ends[0].probe_ev(sim.qpns[0], ev_value(0, 3), sim.now_ns)
    bad = sim.ends[0].probe_ev(sim.qpns[0], ev_value(1, 1), sim.now_ns)
    start = sim.now_ns
    sim.run(10_000_000)
    answered, late = sim.of(0, EvProbed)
    assert (answered.request_id, answered.ev, answered.rtt_ns) == (good, ev_value(0, 3), 60_000)
    assert (late.request_id, late.ev, late.rtt_ns) == (bad, ev_value(1, 1), None)
    assert late.t_ns == start + 2_000_000
    asked = frames(sim, 0, Opcode.ENDPOINT_REQUEST)
    assert [f[107:110] for f in asked] == [b"\0\0\2"] * 2, "to QP 2, and never repeated"
    assert {EndpointRequest.unpack(f, BTH_OFFSET + 12).op for f in asked} == {EndpointOp.EV_PROBE}


def test_each_request_ends_after_its_own_time():
    sim = Sim(seed=3, network=Network(delay_ns=30_000, jitter_ns=0))
    dead = [ev_value(1, path) for path in range(3)]
    sim.network.dead.update(dead)
    start = sim.now_ns
    for ev, timeout_ns in zip(dead, (7_000_000, None, 1_000_000), strict=True):
        sim.ends[0].probe_ev(sim.qpns[0], ev, start, timeout_ns)
    sim.run(10_000_000)
    ended = [(event.ev, event.t_ns - start) for event in sim.of(0, EvProbed)]
    assert ended == [(dead[2], 1_000_000), (dead[1], 2_000_000), (dead[0], 7_000_000)]


def test_a_port_status_that_the_peer_missed_is_announced_again():
    sim = Sim(seed=3, keep_frames=True)
    sim.ends[0].set_port_state(2, False, sim.now_ns)
    sim.run(5_000_000)
    missed = []

    def drop(source, port, frame):
        if source == 0 and frame[BTH_OFFSET] == Opcode.ENDPOINT_REQUEST and len(missed) < 8:
            missed.append(frame)
            return True
        return False

    sim.unpredictable = drop
    back = sim.now_ns
    sim.ends[0].set_port_state(2, True, back)
    sim.run(50_000_000)
    (seen,) = sim.of(1, PlaneUp)
    assert seen.plane == 2
    assert 4_000_000 < seen.t_ns - back < 4_100_000, "with the third announcement"
    ids = [f[112:114] for f in frames(sim, 0, Opcode.ENDPOINT_REQUEST)]
    assert len(set(ids)) == len(ids), "each a request of its own"
    assert not sim.of(0, PortStatusUnanswered)


def test_a_port_status_is_announced_though_every_ev_is_assumed_bad():
    """If all EVs lose packets, a port is probably down. So the peer needs the port status, on any EV."""
    sim = Sim(seed=3, keep_frames=True)
    evs = sim.ends[0].qps[sim.qpns[0]].evs
    for plane in evs.planes:
        for ev in plane.evs:
            evs.on_always_skip(sim.now_ns, ev)
        assert not plane.active
    sim.ends[0].set_port_state(2, False, sim.now_ns)
    sim.run(1_000_000)
    (seen,) = sim.of(1, PlaneDown)
    assert seen.plane == 2


def test_announcements_of_a_port_status_end_after_so_many_attempts():
    sim = Sim(seed=3, keep_frames=True, config=MrcConfig(port_status_attempts=3))
    sim.network.dead_planes.update(range(4))
    start = sim.now_ns
    sim.ends[0].set_port_state(0, False, start)
    sim.run(100_000_000)
    (given_up,) = sim.of(0, PortStatusUnanswered)
    assert given_up.t_ns - start == 3 * 2_000_000
    assert given_up.port_status_mask == 0b1110
    assert len(frames(sim, 0, Opcode.ENDPOINT_REQUEST)) == 3 * 3
    assert sim.ends[0].next_timer() is None


def test_all_ports_down_waits_or_is_an_error():
    for mode, expected in (("wait", []), ("error", [Status.RETRY_EXCEEDED])):
        sim = Sim(seed=3, config=MrcConfig(all_ports_down=mode))
        post(sim, 1, 1 << 18, region(sim))
        sim.run(60_000)
        for port in range(4):
            sim.ends[0].set_port_state(port, False, sim.now_ns)
        sim.run(3_000_000_000)
        assert [e.status for e in sim.of(0, QpError)] == expected
        if mode == "wait":
            sim.ends[0].set_port_state(1, True, sim.now_ns)
            sim.run(until=done(sim))
            assert [e.status for e in sim.of(0, SendCompleted)] == [Status.SUCCESS]


# The reverse EV set


def test_a_receiver_without_data_keeps_an_ev_for_answers_fresh():
    sim = Sim(seed=3, config=MrcConfig(reverse_evs="set"), keep_frames=True, network=Network(jitter_ns=0))
    post(sim, 1, 8 << 20, sim.ends[1].register_memory(bytearray(8 << 20)))
    sim.run(until=done(sim))
    asked = [s for s in sim.sightings if s.source == 1 and s.frame[BTH_OFFSET] == Opcode.ENDPOINT_REQUEST]
    gaps = [b.t_ns - a.t_ns for a, b in itertools.pairwise(asked)]
    assert gaps
    assert min(gaps) >= 1_000_000
    assert len({frame_ev(s.frame) for s in asked}) > 1, "random ones"
    planes = sim.ends[1].qps[sim.qpns[1]].evs.planes
    proven = {plane.port: plane.reverse for plane in planes if plane.reverse is not None}
    assert set(proven) == {s.port for s in asked}
    # Every packet on a plane is answered on the proven EV until another EV is proven.
    first = asked[0]
    until = asked[1].t_ns
    used = {
        frame_ev(s.frame)
        for s in sim.sightings
        if s.source == 1
        and s.port == first.port
        and s.frame[BTH_OFFSET] == Opcode.SACK
        and first.t_ns + 40_000 < s.t_ns < until
    }
    assert used == {frame_ev(first.frame)}


def test_with_data_of_its_own_its_sacks_refresh_the_set():
    sim = Sim(seed=3, config=MrcConfig(reverse_evs="set"), keep_frames=True)
    where = region(sim)
    post(sim, 1, 1 << 20, where)
    back = sim.ends[0].register_memory(bytearray(1 << 20))
    sim.ends[1].post_write(sim.qpns[1], 1, bytes(1 << 20), back.address, back.rkey)
    sim.run(until=lambda: bool(sim.of(0, SendCompleted) and sim.of(1, SendCompleted)))
    assert not [f for n in (0, 1) for f in frames(sim, n, Opcode.ENDPOINT_REQUEST)]
    assert all(plane.reverse is not None for plane in sim.ends[1].qps[sim.qpns[1]].evs.planes)


def test_a_dead_reverse_path_is_left_within_a_few_probes():
    config = MrcConfig(reverse_evs="set", reverse_probe_min_ns=100_000, probe_interval_ns=1 << 40)
    sim = Sim(seed=3, config=config, keep_frames=True)
    where = sim.ends[1].register_memory(bytearray(16 << 20))
    post(sim, 1, 16 << 20, where)
    sim.run(1_500_000)
    planes = sim.ends[1].qps[sim.qpns[1]].evs.planes
    dead = {plane.reverse.value for plane in planes if plane.reverse is not None}
    assert dead
    sim.network.dead.update(dead)
    # An EV counts as proven for at most 0.8 ms. The probes of other EVs do not change this.
    killed, left = sim.now_ns, sim.now_ns + 900_000
    sim.run(until=done(sim))
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.SUCCESS]
    assert {e.ev for e in sim.of(0, EvRetired)} <= dead
    sacks = [s for s in sim.sightings if s.source == 1 and s.frame[BTH_OFFSET] == Opcode.SACK]
    assert [s for s in sacks if killed < s.t_ns < left and frame_ev(s.frame) in dead]
    late = [frame_ev(s.frame) for s in sacks if s.t_ns > left]
    assert len(late) > 100
    assert not dead & set(late)


# A very long message


@pytest.mark.slow
def test_a_message_of_one_gib():
    size = 1 << 30
    sim = Sim(seed=1, config=MrcConfig(cwnd_bytes=512 * 4096, mtu_bytes=8192), network=Network(jitter_ns=0))
    source, target = mmap.mmap(-1, size), mmap.mmap(-1, size)
    for at in range(0, size, 1 << 24):
        source[at : at + 8] = at.to_bytes(8, "big")
    source[-8:] = b"the end."
    where = sim.ends[1].register_memory(memoryview(target))
    sim.ends[0].post_write(sim.qpns[0], 1, memoryview(source), where.address, where.rkey, imm=7)
    sim.run(until=done(sim))
    assert [(e.imm, e.length_bytes) for e in sim.of(1, ReceiveCompleted)] == [(7, size)]
    assert target[:] == source[:]


def test_attributes_carry_the_options():
    sim = Sim(config=MrcConfig(transport_ack=True, dynamic_mpr=True, max_wimm=7, trim=False))
    mine = sim.ends[0].local_attributes(sim.qpns[0])
    assert (mine.transport_ack, mine.dynamic_mpr, mine.max_wimm, mine.trim_nack) == (True, True, 7, False)
    assert (mine.mtu_bytes, mine.mpr, mine.udp_port) == (4096, 1024, 4791)
    other = Sim(
        config=MrcConfig(mtu_bytes=1000, mpr=256, reading=SpecReading(udp_port=4971), transport_ack=False)
    )
    theirs = other.ends[0].local_attributes(other.qpns[0])
    assert (theirs.mtu_bytes, theirs.mpr, theirs.udp_port) == (1000, 256, 4971)
    assert (theirs.transport_ack, theirs.dynamic_mpr, theirs.max_wimm, theirs.trim_nack) == (
        *(False, False),
        *(32, True),
    )
    assert not mine.service_time
    plain = Sim(config=MrcConfig(reading=SpecReading(service_time=True)))
    attributes = plain.ends[0].local_attributes(plain.qpns[0])
    assert attributes.service_time
    assert attributes.transport_ack, "the specification demands transport ACKs"


WIDE = {"mtu_bytes": 4096, "mpr": 1024, "max_wimm": 32, "transport_ack": True, "cwnd_bytes": 1 << 30}
NARROW = {"mtu_bytes": 1000, "mpr": 128, "max_wimm": 3, "transport_ack": False, "cwnd_bytes": 1 << 30}


@pytest.mark.parametrize(("sender", "receiver"), [(WIDE, NARROW), (NARROW, WIDE)])
def test_what_both_ends_can_do_counts(sender, receiver):
    def sent(sizes, imm=None):
        sim = unequal(sender, receiver)
        where = region(sim)
        for n, size in enumerate(sizes):
            post(sim, n, size, where, imm)
        return sim, sim.ends[0].frames_to_send(0, None, 5000)

    assert len(sent([4000])[1]) == 4, "packets of 1000 B, the smaller of both"
    assert len(sent([1] * 2000)[1]) == 128, "the smaller of both windows"
    assert len(sent([1] * 40, imm=7)[1]) == receiver["max_wimm"]
    sim, frames = sent([100])
    for port, frame in frames:
        sim.ends[1].receive(port, frame, 0)
    (answer,) = sim.ends[1].frames_to_send(0)
    assert answer[1][BTH_OFFSET] == Opcode.SACK, "no transport ACK unless both want it"
    sim.ends[0].receive(*answer, 0)
    assert [e.status for e in sim.ends[0].poll_cq()] == [Status.SUCCESS]


def test_mirroring_costs_no_probes():
    sim = Sim(seed=3, keep_frames=True)
    post(sim, 1, 100_000, region(sim))
    sim.run(until=done(sim))
    assert {is_data(s.frame) for s in sim.sightings if s.source == 0} == {True}
