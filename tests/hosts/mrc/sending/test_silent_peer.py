"""A peer that no longer answers: the shared window that its packets occupy, and the queue pair's failure."""

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.events import EvRetired
from mrclab.hosts.mrc.wire import Opcode
from mrclab.hosts.rdma.events import QpError, SendCompleted, Status
from mrclab.hosts.transports import DEPLOYED
from tests.support.mrc_sim import Network, Sim, is_data, opcode, stream

SHARING = [{"congestion": "nscc"}, {**DEPLOYED, "max_active_evs": 12}, {"rate_bps": 10**9}]


def streaming(**config):
    """Return two queue pairs to a peer, which destroyed its end of the first queue pair during a transfer."""
    sim = Sim(seed=1, config=MrcConfig(**config), qps=2, network=Network(port_rate_bps=10**9))
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    (gone, theirs), (sound, _) = sim.connections
    for n in range(64):
        sim.ends[0].post_write(gone, n, bytes(1 << 20), region.address, region.rkey)
    sim.run(3_000_000)
    sim.ends[1].destroy_qp(theirs)
    sim.ends[0].post_write(sound, 1000, bytes(1 << 20), region.address, region.rkey)
    return sim, gone, sound


@pytest.mark.parametrize("ladder", ["lab", "endless"])
@pytest.mark.parametrize("options", SHARING)
def test_a_queue_pair_whose_peer_is_gone_leaves_the_window_to_its_neighbours(options, ladder):
    sim, gone, sound = streaming(ack_ladder=ladder, **options)
    sim.run(100_000_000, until=lambda: any(e.qpn == sound for e in sim.of(0, SendCompleted)))
    [done] = [e for e in sim.of(0, SendCompleted) if e.qpn == sound]
    assert done.status is Status.SUCCESS
    assert not [e for e in sim.of(0, EvRetired) if e.qpn == gone and e.t_ns > 4_500_000], (
        "silence blames no EV"
    )


def test_what_timed_out_counts_in_the_window_again_once_the_peer_answers():
    sim = Sim(seed=1, config=MrcConfig(congestion="nscc"), network=Network(jitter_ns=0))
    end = sim.ends[0]
    control = end.qps[sim.qpns[0]].requester.congestion
    stream(sim, [200_000])
    sim._drain()
    full = control.inflight_bytes
    assert full > 0
    sim.network.dead_planes.update(range(4))
    sim._heap.clear()
    sim.run(20_000_000)
    assert control.inflight_bytes == 0
    sent = end.qp_counters(sim.qpns[0]).sent
    sim.run(20_000_000)
    assert end.qp_counters(sim.qpns[0]).sent == sent, "no data follows what timed out"
    sim.network.dead_planes.clear()
    back = []
    take = sim.hand_over
    sim.hand_over = lambda to, port, frame: (take(to, port, frame), back.append(control.inflight_bytes))
    sim.run(5_000_000_000, until=lambda: bool(sim.completed[0]))
    assert min(back) >= 0, "or the losses would have left the window twice"
    assert control.inflight_bytes == 0


def test_a_peer_that_restarts_ends_the_queue_pair_with_retry_counter_exceeded():
    """Verbs define this status for a peer that is gone. By default, the queue pair fails after 30 to 40 s."""
    sim = Sim(seed=2)
    stream(sim, [100_000] * 4)
    sim.ends[1].destroy_qp(sim.qpns[1])
    sim.run(60_000_000_000, until=lambda: bool(sim.of(0, QpError)))
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.RETRY_EXCEEDED] + [Status.FLUSHED] * 3
    assert 30e9 < sim.now_ns < 40e9


def test_a_silence_of_ten_seconds_ends_no_queue_pair():
    sim = Sim(seed=2)
    stream(sim, [100_000] * 4)
    sim.network.dead_planes.update(range(4))
    sim.at(sim.now_ns + 10_000_000_000, sim.network.dead_planes.clear)
    sim.run(20_000_000_000, until=lambda: sim.completed[0] == 4)
    assert {e.status for e in sim.of(0, SendCompleted)} == {Status.SUCCESS}
    assert sim.now_ns < 10_100_000_000, "it goes on as soon as a probe is answered"


def test_a_port_that_goes_down_is_a_reason_for_silence():
    """Packets in flight in the port's plane are sent again in other planes, without a wait for an answer."""
    sim = Sim(seed=3, planes=2, config=MrcConfig(congestion="nscc"), keep_frames=True)
    sim.network.dead_planes.update((0, 1))
    stream(sim, [20_000])
    sim.run(10_000_000)
    sim.network.dead_planes.clear()
    at = sim.now_ns
    sim.ends[0].set_port_state(0, False, at)
    sim._drain()
    again = [s for s in sim.sightings if s.t_ns == at and s.source == 0 and is_data(s.frame)]
    assert again
    assert all(s.port == 1 for s in again)
    assert Opcode.PROBE_REQUEST in {opcode(s.frame) for s in sim.sightings}
