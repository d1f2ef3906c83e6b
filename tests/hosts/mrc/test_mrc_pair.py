"""Two endpoints over a network with all kinds of faults. After every run, the same checks must pass."""

import hashlib
import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.events import (
    EvReplaced,
    EvRestored,
    EvRetired,
    EvSkipped,
    PlaneDown,
    ProbeAnswered,
    ProbeSent,
    RetireReason,
)
from mrclab.hosts.rdma.events import (
    EvState,
    LossReason,
    PacketLost,
    QpError,
    ReceiveCompleted,
    Retransmitted,
    SendCompleted,
    Status,
)
from mrclab.hosts.rdma.frames import BTH_OFFSET
from mrclab.hosts.rdma.paths import Path, RemotePaths
from tests.support.endpoint_state import active_per_plane
from tests.support.fault_schedules import NearWrap
from tests.support.mrc_sim import (
    Network,
    Sim,
    ev_value,
    finish,
    frame_ev,
    frame_psn,
    is_data,
    mark_ce,
    port_addresses,
    remote_paths,
    stream,
)


def check(sim, lengths, data, region, *, source=0):
    """Check what must be true after any run without a QP error."""
    sender, receiver = source, 1 - source
    assert not sim.of(0, QpError) + sim.of(1, QpError)
    done = sim.of(sender, SendCompleted)
    assert [(e.wr_id, e.status, e.length_bytes) for e in done] == [
        (n, Status.SUCCESS, length) for n, length in enumerate(lengths)
    ]
    got = sim.of(receiver, ReceiveCompleted)
    assert [(e.imm, e.length_bytes, e.rqmsn) for e in got] == [
        (n, length, n & 0xFFFF) for n, length in enumerate(lengths)
    ]
    assert hashlib.sha256(region.view).digest() == hashlib.sha256(data).digest()
    counters = sim.ends[receiver].qp_counters(sim.qpns[receiver])
    assert counters.bytes_placed == len(data), "every byte was placed once, none twice"
    assert sim.ends[receiver].bytes_placed(sim.qpns[receiver]) == len(data)
    for old, new in ((e.old_ev, e.new_ev) for e in sim.of(sender, Retransmitted)):
        assert old != new
    for event in sim.of(sender, EvReplaced):
        assert event.ev >> 16 == event.new_ev >> 16
    mine = sim.ends[sender].qp_counters(sim.qpns[sender])
    assert mine.inflight_bytes == 0
    assert mine.bytes_acked <= len(data)
    active = active_per_plane(sim.ends[sender], sim.qpns[sender])
    states = defaultdict(list)
    for ev in sim.ends[sender].ev_counters(sim.qpns[sender]):
        states[ev.plane].append(ev.state)
    serving = [n for plane, n in active.items() if any(s <= EvState.SKIP for s in states[plane])]
    assert max(serving) - min(serving) <= 1


SMALL = st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.15])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), loss=SMALL, jitter_ns=st.sampled_from([0, 40_000]))
def test_both_directions_at_once(seed, loss, jitter_ns):
    sim = Sim(seed=seed, network=Network(loss=loss, control_loss=loss / 2, jitter_ns=jitter_ns))
    lengths = [30_000] * 12
    there = stream(sim, lengths, source=0)
    back = stream(sim, lengths, source=1)
    sim.run(60_000_000_000, until=lambda: all(len(sim.of(n, SendCompleted)) == 12 for n in (0, 1)))
    sim.run(50_000_000)
    check(sim, lengths, *there, source=0)
    check(sim, lengths, *back, source=1)


def test_a_run_replays_from_its_seed():
    def run():
        sim = Sim(seed=77, network=Network(loss=0.05, ce=0.1, trim=0.05, duplicate=0.05))
        stream(sim, [50_000] * 5)
        finish(sim, 5)
        return sim.events, sim.frames

    assert run() == run()


def test_clean_network_loses_retires_and_repeats_nothing():
    sim = Sim(seed=4, network=Network(jitter_ns=30_000))
    lengths = [100_000] * 20
    data, region = stream(sim, lengths)
    finish(sim, 20)
    check(sim, lengths, data, region)
    # If the jitter is larger than the delay, the sender sends a probe now and then, and uses the answers.
    assert {type(e) for e in sim.events[0]} <= {SendCompleted, ProbeSent, ProbeAnswered}
    assert len(sim.of(0, ProbeSent)) < 20 * 25 // 10
    counters = sim.ends[0].qp_counters(sim.qpns[0])
    assert counters.retransmitted == counters.lost == 0
    assert counters.sent == 20 * 25


def test_ecn_and_trims_never_retire_and_silent_loss_always_does():
    sim = Sim(seed=8, network=Network(ce=0.3, trim=0.1, trim_last_hop=0.05))
    lengths = [100_000] * 20
    data, region = stream(sim, lengths)
    finish(sim, 20)
    check(sim, lengths, data, region)
    assert sim.of(0, EvSkipped)
    assert not sim.of(0, EvRetired)
    assert {e.reason for e in sim.of(0, PacketLost)} == {LossReason.TRIMMED, LossReason.TRIMMED_LASTHOP}

    sim = Sim(seed=8, network=Network(loss=0.01))
    data, region = stream(sim, lengths)
    finish(sim, 20)
    check(sim, lengths, data, region)
    lost = sim.of(0, PacketLost)
    assert lost
    assert {e.ev for e in lost} == {e.ev for e in sim.of(0, EvRetired)}


def test_last_hop_trims_do_not_touch_the_ev():
    sim = Sim(seed=8, network=Network(trim_last_hop=0.2))
    stream(sim, [100_000] * 5)
    finish(sim, 5)
    assert sim.of(0, PacketLost)
    assert not sim.of(0, EvSkipped)


def test_a_trimmed_packet_is_repeated_within_one_rtt():
    sim = Sim(seed=8, network=Network(trim=0.05, jitter_ns=0))
    stream(sim, [100_000] * 5)
    finish(sim, 5)
    lost = sim.of(0, PacketLost)
    assert lost
    assert {e.t_ns - e.sent_ns for e in lost} == {40_000}
    again = {e.psn: e.t_ns for e in sim.of(0, Retransmitted)}
    assert all(again[e.psn] >= e.t_ns for e in lost)
    assert min(again[e.psn] - e.t_ns for e in lost) == 0


def test_dead_path_leaves_no_packet_behind_and_comes_back_after_probes():
    dead = ev_value(1, 3)
    sim = Sim(seed=21, config=MrcConfig(probe_interval_ns=1_000_000), keep_frames=True)
    lengths = [1 << 20] * 6
    data, region = stream(sim, lengths)
    sim.at(sim.now_ns + 300_000, lambda: sim.network.dead.add(dead))
    sim.at(sim.now_ns + 4_500_000, lambda: sim.network.dead.discard(dead))
    finish(sim, 6)
    check(sim, lengths, data, region)
    retired = [e for e in sim.of(0, EvRetired) if e.ev == dead]
    restored = [e for e in sim.of(0, EvRestored) if e.ev == dead]
    assert len(retired) == len(restored) == 1
    assert [e.ev for e in sim.of(0, EvRetired)] == [dead], "healthy paths stay"
    between = [
        s for s in sim.sightings
        if s.source == 0 and retired[0].t_ns < s.t_ns < restored[0].t_ns and frame_ev(s.frame) == dead
    ]  # fmt: skip
    assert between
    assert not any(is_data(s.frame) for s in between), "only probes go there"
    assert len([e for e in sim.of(0, ProbeAnswered) if e.ev == dead]) == 2


def test_a_path_comes_back_though_a_round_trip_is_longer_than_the_wait_between_probes():
    bad = ev_value(1, 3)
    wires = Network(delay_ns=40_000_000, jitter_ns=100_000)
    config = MrcConfig(initial_rtt_ns=85_000_000, ack_timeout_exponent=18, tail_probe_max_ns=400_000_000)
    sim = Sim(seed=21, config=config, network=wires)
    lengths = [1 << 20] * 10
    data, region = stream(sim, lengths)
    sim.at(sim.now_ns + 100_000_000, lambda: sim.network.dead.add(bad))
    sim.at(sim.now_ns + 200_000_000, lambda: sim.network.dead.discard(bad))
    finish(sim, 10)
    check(sim, lengths, data, region)
    (retired,) = [e for e in sim.of(0, EvRetired) if e.ev == bad]
    (restored,) = [e for e in sim.of(0, EvRestored) if e.ev == bad]
    assert restored.t_ns - retired.t_ns < 5 * 2 * wires.delay_ns


def test_dead_plane_costs_its_share_only():
    sim = Sim(seed=5, keep_frames=True)
    lengths = [1 << 20] * 3
    data, region = stream(sim, lengths)
    sim.at(sim.now_ns + 200_000, lambda: sim.network.dead_planes.add(2))
    finish(sim, 3)
    check(sim, lengths, data, region)
    assert {e.plane for e in sim.of(0, EvRetired)} == {2}
    late = [s.port for s in sim.sightings if s.source == 0 and is_data(s.frame)][-300:]
    shares = Counter(late)
    assert set(shares) == {0, 1, 3}
    assert max(shares.values()) - min(shares.values()) <= 3


def test_losing_most_sacks_is_no_loss_of_data():
    sim = Sim(seed=6, network=Network(control_loss=0.5))
    lengths = [1 << 18] * 8
    data, region = stream(sim, lengths)
    finish(sim, 8)
    check(sim, lengths, data, region)
    assert not sim.of(0, EvRetired)


def test_every_packet_takes_the_next_ev_and_planes_share_equally():
    sim = Sim(seed=6, keep_frames=True)
    stream(sim, [4096 * 640])
    finish(sim, 1)
    data = [s for s in sim.sightings if s.source == 0 and is_data(s.frame)]
    assert Counter(s.port for s in data) == dict.fromkeys(range(4), 160)
    assert set(Counter(frame_ev(s.frame) for s in data).values()) == {20}
    assert [frame_psn(s.frame) for s in data] == [
        (frame_psn(data[0].frame) + n) & 0xFFFFFF for n in range(640)
    ]


def test_psn_wraps_in_mid_stream():
    sim = Sim(seed=1, network=Network(loss=0.03), rng_class=NearWrap)
    assert sim.ends[0].local_attributes(sim.qpns[0]).psn == (1 << 24) - 100
    lengths = [4096 * 50] * 6
    data, region = stream(sim, lengths)
    finish(sim, 6)
    check(sim, lengths, data, region)
    assert {e.psn < 1 << 23 for e in sim.of(0, Retransmitted)} == {True, False}


def test_nothing_is_sent_again_where_psns_wrap():
    sim = Sim(seed=1, rng_class=NearWrap)
    lengths = [4096 * 50] * 6
    data, region = stream(sim, lengths)
    finish(sim, 6)
    check(sim, lengths, data, region)
    assert not sim.of(0, Retransmitted)
    assert sim.ends[1].qp_counters(sim.qpns[1]).duplicates == 0


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 12_288])
@pytest.mark.parametrize("imm", [None, 0, 0xFFFFFFFF])
def test_opcodes_by_length(length, imm):
    sim = Sim(seed=1, keep_frames=True)
    region = sim.ends[1].register_memory(bytearray(max(1, length)))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(length), region.address, region.rkey, imm=imm)
    finish(sim, 1)
    codes = [s.frame[BTH_OFFSET] for s in sim.sightings if is_data(s.frame)]
    count = max(1, -(-length // 4096))
    if count == 1:
        assert codes == [0xCA if imm is None else 0xCB]
    else:
        assert codes == [0xC6] + [0xC7] * (count - 2) + [0xC8 if imm is None else 0xC9]
    assert [e.imm for e in sim.of(1, ReceiveCompleted)] == ([] if imm is None else [imm])


def test_local_port_down_moves_the_traffic_at_once_and_is_announced():
    sim = Sim(seed=3, keep_frames=True)
    lengths = [1 << 20] * 2
    there = stream(sim, lengths, source=0)
    back = stream(sim, lengths, source=1)
    down = sim.now_ns + 300_000

    def cut():
        sim.network.dead_planes.add(1)
        sim.ends[0].set_port_state(1, False, sim.now_ns)

    sim.at(down, cut)
    sim.run(20_000_000_000, until=lambda: all(len(sim.of(n, SendCompleted)) == 2 for n in (0, 1)))
    check(sim, lengths, *there, source=0)
    check(sim, lengths, *back, source=1)
    assert [(e.plane, e.remote) for e in sim.of(0, PlaneDown)] == [(1, False)]
    (seen,) = sim.of(1, PlaneDown)
    assert (seen.plane, seen.remote) == (1, True)
    assert seen.t_ns - down < 30_000
    assert not [s for s in sim.sightings if s.source == 0 and s.port == 1 and s.t_ns > down]
    assert not [s for s in sim.sightings if s.source == 1 and s.port == 1 and s.t_ns > seen.t_ns]
    assert not sim.of(0, EvRetired), "the EVs of a plane that is down are not to blame"

    sim.network.dead_planes.clear()
    sim.ends[0].set_port_state(1, True, sim.now_ns)
    before = sim.now_ns
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    sim.ends[0].post_write(sim.qpns[0], 9, bytes(1 << 20), region.address, region.rkey)
    finish(sim, 3)
    assert {s.port for s in sim.sightings if s.source == 0 and s.t_ns > before and is_data(s.frame)} == {
        0,
        1,
        2,
        3,
    }


def test_denied_evs_carry_no_data():
    sim = Sim(seed=3, keep_frames=True)
    denied = [ev_value(p, 0) for p in range(4)]
    sim.ends[0].deny(denied, sim.now_ns)
    stream(sim, [1 << 20])
    finish(sim, 1)
    used = {frame_ev(s.frame) for s in sim.sightings if s.source == 0 and is_data(s.frame)}
    assert used == {ev_value(p, k) for p in range(4) for k in range(1, 8)}


def test_every_path_dead_for_a_while_still_ends_well():
    sim = Sim(seed=3, config=MrcConfig(exponential_retries=25))
    lengths = [1 << 18] * 4
    data, region = stream(sim, lengths)
    start = sim.now_ns
    sim.at(start + 100_000, lambda: sim.network.dead_planes.update(range(4)))
    sim.at(start + 80_000_000, lambda: sim.network.dead_planes.clear())
    finish(sim, 4)
    check(sim, lengths, data, region)
    done = sim.of(0, SendCompleted)[-1].t_ns
    assert done - start < 200_000_000


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("pause_ns", [2_000_000, 20_000_000, 100_000_000])
def test_a_process_that_stalls_loses_nothing(who, pause_ns):
    """A busy machine stops an end for longer than any timer. No path may be retired because of this."""
    sim = Sim(seed=12)
    lengths = [1 << 18] * 8

    def pause():
        sim.paused_until[who] = sim.now_ns + pause_ns

    for n in range(4):
        sim.at(sim.now_ns + 150_000 + n * 2 * pause_ns, pause)
    data, region = stream(sim, lengths)
    finish(sim, 8)
    check(sim, lengths, data, region)
    assert not sim.of(0, EvRetired)
    assert not sim.of(0, Retransmitted)


@pytest.mark.parametrize("seed", range(5))
def test_queues_of_unequal_paths_are_no_loss(seed):
    """Ports have a limited rate, and half of the paths are slower, so packets overtake each other."""
    network = Network(port_rate_bps=200_000_000, jitter_ns=20_000)
    for plane in range(4):
        for path in range(0, 8, 2):
            network.path_rate_bps[ev_value(plane, path)] = 60_000_000
    sim = Sim(seed=seed, network=network)
    lengths = [1 << 18] * 16
    data, region = stream(sim, lengths)
    finish(sim, 16)
    check(sim, lengths, data, region)
    assert not sim.of(0, EvRetired)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("port_bps", [0, 8_000_000])
def test_on_a_link_where_a_packet_takes_milliseconds_its_rate_must_be_given(seed, port_bps):
    """Ports have 25 Mbit/s, and half of the paths have 8 Mbit/s. So a packet takes 1.4 ms or 4.2 ms.

    Without the option `port_bps`, the sender retires paths that are only slow.
    """
    network = Network(port_rate_bps=25_000_000, jitter_ns=20_000)
    for plane in range(4):
        for path in range(0, 8, 2):
            network.path_rate_bps[ev_value(plane, path)] = 8_000_000
    config = MrcConfig(ack_timeout_exponent=15, port_bps=port_bps)
    sim = Sim(seed=seed, network=network, config=config)
    lengths = [1 << 18] * 8
    data, region = stream(sim, lengths)
    finish(sim, 8)
    check(sim, lengths, data, region)
    assert bool(sim.of(0, EvRetired)) == (port_bps == 0)


def test_a_dead_path_among_queues_is_still_found_fast():
    sim = Sim(seed=3, network=Network(port_rate_bps=200_000_000, jitter_ns=20_000))
    lengths = [1 << 18] * 16
    data, region = stream(sim, lengths)
    killed = sim.now_ns + 20_000_000
    sim.at(killed, lambda: sim.network.dead.add(ev_value(2, 2)))
    finish(sim, 16)
    check(sim, lengths, data, region)
    (retired,) = sim.of(0, EvRetired)
    assert retired.ev == ev_value(2, 2)
    lost = min(e.sent_ns for e in sim.of(0, PacketLost))
    srtt_ns = sim.ends[0].qp_counters(sim.qpns[0]).srtt_ns
    assert retired.t_ns - lost < 3 * srtt_ns


def test_a_receiver_may_ask_for_an_ev_that_is_always_congested_to_be_dropped():
    bad = ev_value(1, 2)
    config = MrcConfig(always_skip_after=3, probe_interval_ns=1_000_000_000)
    sim = Sim(seed=5, config=config)
    put = sim._put
    sim._put = lambda target, port, frame: put(
        target, port, mark_ce(frame) if is_data(frame) and frame_ev(frame) == bad else frame
    )
    lengths = [1 << 20]
    data, region = stream(sim, lengths)
    finish(sim, 1)
    check(sim, lengths, data, region)
    assert [(e.ev, e.reason) for e in sim.of(0, EvRetired)] == [(bad, RetireReason.ALWAYS_SKIP)]
    assert not sim.of(0, PacketLost)


def test_evs_of_16_bits_travel_in_the_udp_source_port_alone():
    config = MrcConfig(ev_in_flow_label=False)
    ends = [Endpoint(port_addresses(n, 2), config, random.Random(n)) for n in (0, 1)]
    qpns = [end.create_qp() for end in ends]

    def paths(me):
        wide = remote_paths(me, 1 - me, 2, 4)
        return RemotePaths(
            tuple(
                replace(p, paths=tuple(Path(p.port << 8 | n, q.outer_dst) for n, q in enumerate(p.paths)))
                for p in wide.planes
            )
        )

    for me in (0, 1):
        peer = ends[1 - me].local_attributes(qpns[1 - me])
        with pytest.raises(ValueError, match="16 bits"):
            ends[me].connect(qpns[me], peer, remote_paths(me, 1 - me, 2, 4))
        ends[me].connect(qpns[me], peer, paths(me))
    region = ends[1].register_memory(bytearray(8192))
    ends[0].post_write(qpns[0], 1, bytes(8192), region.address, region.rkey)
    for port, frame in ends[0].frames_to_send(0):
        assert frame[15] & 15 == frame[16] == frame[17] == frame[56] == frame[57] == 0
        assert frame[94] == port
        ends[1].receive(port, frame, 0)
    for port, frame in ends[1].frames_to_send(0):
        ends[0].receive(port, frame, 0)
    assert [e.status for e in ends[0].poll_cq()] == [Status.SUCCESS]
    assert sum(ev.acked for ev in ends[0].ev_counters(qpns[0])) == 2


def test_oblivious_spraying_goes_on_using_a_dead_path_and_delivers_all_the_same():
    network = Network(dead={ev_value(0, 0), ev_value(2, 3)}, ce=0.2)
    sim = Sim(7, config=MrcConfig(ev_health=False), network=network)
    lengths = [40_000] * 30
    data, region = stream(sim, lengths)
    finish(sim, len(lengths))
    check(sim, lengths, data, region)
    assert not sim.of(0, EvRetired)
    assert not sim.of(0, EvSkipped)
    assert all(active_per_plane(sim.ends[0], sim.qpns[0])[plane] == 8 for plane in range(4))
    late = [e for e in sim.of(0, PacketLost) if e.ev in network.dead]
    assert len(late) > 10, "it never learns"
