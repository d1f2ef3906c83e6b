"""A window that all queue pairs to one destination share, and the endpoint's report about it."""

import itertools

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.config import NsccConfig
from mrclab.hosts.mrc.congestion import NsccControl
from mrclab.hosts.mrc.events import WindowChanged
from mrclab.hosts.rdma.events import SendCompleted, Status
from mrclab.hosts.rdma.paths import RemotePaths
from tests.support.mrc_sim import Network, Sim, is_data, remote_paths


def nscc_sim(queue_pairs=1, **network):
    knobs = NsccConfig(base_rtt_ns=50_000, link_bps=6_000_000_000)
    sim = Sim(seed=4, config=MrcConfig(congestion="nscc", nscc=knobs), network=Network(**network))
    qpns = [list(sim.qpns)]
    for _ in range(queue_pairs - 1):
        pair = [end.create_qp() for end in sim.ends]
        for me in (0, 1):
            remote = sim.ends[1 - me].local_attributes(pair[1 - me])
            sim.ends[me].connect(pair[me], remote, remote_paths(me, 1 - me, sim.planes, sim.paths))
        qpns.append(pair)
    return sim, qpns


def test_queue_pairs_to_one_destination_share_a_window():
    sim, qpns = nscc_sim(queue_pairs=5, delay_ns=25_000, jitter_ns=0)
    a = sim.ends[0]
    controllers = {id(a.qps[mine].requester.congestion) for mine, _ in qpns}
    assert len(controllers) == 1
    control = a.qps[qpns[0][0]].requester.congestion
    assert isinstance(control, NsccControl)
    region = sim.ends[1].register_memory(bytearray(1 << 20))
    for mine, _ in qpns:
        a.post_write(mine, mine, bytes(1 << 18), region.address, region.rkey)
    burst = a.frames_to_send(sim.now_ns, None, 1000)
    # Each packet counts 84 bytes more than its payload. A packet may start as long as the window is not full.
    assert len(burst) == -(-control.cwnd_bytes // (4096 + 84))
    for port, frame in burst:
        sim._transmit(0, port, frame)
    sim.run(until=lambda: len(sim.of(0, SendCompleted)) == 5)
    assert len(sim.of(0, SendCompleted)) == 5
    assert control.inflight_bytes == 0
    assert not a.qps[qpns[0][0]].sharing.waiting


def test_a_slow_network_narrows_the_window_and_says_so():
    sim, _ = nscc_sim(delay_ns=20_000, jitter_ns=0, port_rate_bps=50_000_000, ce=0.5)
    region = sim.ends[1].register_memory(bytearray(4 << 20))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(4 << 20), region.address, region.rkey)
    first = sim.ends[0].qps[sim.qpns[0]].requester.congestion.cwnd_bytes
    sim.run(until=lambda: bool(sim.of(0, SendCompleted)))
    changes = sim.of(0, WindowChanged)
    assert min(e.cwnd_bytes for e in changes) < first
    assert all(b.t_ns - a.t_ns >= 1_000_000 for a, b in itertools.pairwise(changes))


def test_a_destroyed_qp_gives_its_share_back():
    sim, qpns = nscc_sim(queue_pairs=2)
    a = sim.ends[0]
    for mine, _ in qpns:
        a.post_write(mine, 1, bytes(1 << 20), 0, 0)
    assert a.frames_to_send(sim.now_ns, None, 1000)
    control = a.qps[qpns[1][0]].requester.congestion
    assert a.frames_to_send(sim.now_ns) == []
    a.destroy_qp(qpns[0][0])
    held = control.inflight_bytes
    a.destroy_qp(qpns[1][0])
    assert held > 0
    assert control.inflight_bytes == 0


def shared_sim(messages, **knobs):
    """Return a run in which queue pairs to one destination share a window. All messages are posted first."""
    sim = Sim(seed=4, config=MrcConfig(sack_threshold_bytes=1, **knobs), qps=len(messages))
    region = sim.ends[1].register_memory(bytearray(1 << 17))
    for (mine, _), lengths in zip(sim.connections, messages, strict=True):
        for n, length in enumerate(lengths):
            sim.ends[0].post_write(mine, n, bytes(length), region.address, region.rkey)
    sim.run(1_000_000_000, until=lambda: len(sim.of(0, SendCompleted)) == sum(map(len, messages)))
    return sim


@pytest.mark.parametrize("last", [0, 4096])
def test_room_that_one_queue_pair_leaves_goes_to_the_next_that_waits(last):
    """An acknowledgement let a queue pair send all of its data, but the queue pair still counted as waiting.

    When its turn came, it did not give the turn to the next queue pair. Random schedules found this error.
    """
    sim = shared_sim([[4096, 8192], [last]], rate_bps=10**9, cwnd_bytes=4096)
    assert sorted(e.qpn for e in sim.of(0, SendCompleted)) == sorted(sim.connections[n][0] for n in (0, 0, 1))
    assert not sim.ends[0].qps[sim.qpns[0]].sharing.waiting


def test_who_waits_for_a_window_is_woken_when_tokens_are_what_lacks_by_then():
    """If there are no tokens when the window opens, a queue pair must be woken as soon as tokens arrive."""
    sim = shared_sim([[8192], [4096]], cwnd_bytes=4096, rate_burst_bytes=4097, rate_bps=8_000_000)
    assert sorted(e.qpn for e in sim.of(0, SendCompleted)) == sorted(mine for mine, _ in sim.connections)
    # The bucket had tokens for 4097 bytes, but 8192 were sent. Each of the other bytes takes 1 us.
    assert sim.of(0, SendCompleted)[1].t_ns > 4_000_000


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_a_queue_pair_without_a_plane_does_not_keep_the_room_of_a_shared_window(order):
    sim = Sim(seed=4, planes=2, config=MrcConfig(rate_bps=10**9, cwnd_bytes=4096), qps=2)
    only = [[end.create_qp() for end in sim.ends]]
    for me, end in enumerate(sim.ends):
        remote = sim.ends[1 - me].local_attributes(only[0][1 - me])
        paths = remote_paths(me, 1 - me, 2, 2)
        end.connect(only[0][me], remote, RemotePaths(paths.planes[:1]))
    a = sim.ends[0]
    region = sim.ends[1].register_memory(bytearray(1 << 17))
    a.set_port_state(0, False, sim.now_ns)
    for n in order:
        a.post_write((sim.connections + only)[n][0], 1, bytes(4096), region.address, region.rkey)
    sim.run(1_000_000_000, until=lambda: len(sim.of(0, SendCompleted)) == 2)
    assert {e.qpn for e in sim.of(0, SendCompleted)} == {mine for mine, _ in sim.connections}


@pytest.mark.parametrize(
    ("congestion", "cap_bps", "cwnd_bytes", "rate_bps", "jitter_ns"),
    [
        ("fixed", 10**10, 4096, 0, 0),
        ("fixed", 10**10, 8192, 0, 0),
        ("fixed", 10**10, 1 << 18, 10**9, 5000),
        ("nscc", 0, 1, 10**9, 5000),
        ("nscc", 10**10, 1, 10**9, 5000),
    ],
)
@pytest.mark.parametrize("imm", [None, 1])
def test_long_writes_keep_no_shorter_one_from_a_shared_window(
    congestion, cap_bps, cwnd_bytes, rate_bps, jitter_ns, imm
):
    """Queue pairs that wait take turns. An answer must not let its queue pair send before its turn."""
    config = MrcConfig(congestion=congestion, cwnd_bytes=cwnd_bytes, rate_bps=cap_bps, max_wimm=1)
    sim = Sim(seed=4, config=config, network=Network(port_rate_bps=rate_bps, jitter_ns=jitter_ns), qps=5)
    region = sim.ends[1].register_memory(bytearray(1 << 19))
    long, *short = (mine for mine, _ in sim.connections)

    def post(mine, sizes):
        for n, size in enumerate(sizes):
            sim.ends[0].post_write(mine, n, bytes(size), region.address, region.rkey, imm=imm)

    post(long, [4096] * 512)
    sim.at(sim.now_ns + 100_000, lambda: [post(mine, [1 << 16]) for mine in short])
    start = sim.now_ns
    sim.run(until=lambda: len(sim.of(0, SendCompleted)) == 516)
    took = {e.qpn: e.t_ns - start for e in sim.of(0, SendCompleted)}
    # When the short writes are done, each of the five queue pairs has sent 64 KiB, together 320 KiB.
    # The long write has also sent some bytes before.
    assert len(took) == 5
    assert max(took[mine] for mine in short) < took[long] / 2


@pytest.mark.parametrize(("congestion", "cap_bps"), [("fixed", 10**9), ("nscc", 0), ("nscc", 10**9)])
def test_a_closed_shared_window_holds_back_no_probe(congestion, cap_bps):
    """The packets that fill the window may be lost. Then only a probe can open the window again."""
    config = MrcConfig(congestion=congestion, rate_bps=cap_bps, cwnd_bytes=4096, tail_probe_max_ns=1_000_000)
    sim = Sim(seed=4, config=config)
    lost = []
    sim.unpredictable = lambda source, port, frame: (
        is_data(frame) and len(lost) < 9 and not lost.append(frame)
    )
    region = sim.ends[1].register_memory(bytearray(1 << 17))
    sim.ends[0].post_write(sim.qpns[0], 1, bytes(1 << 17), region.address, region.rkey)
    sim.run(50_000_000, until=lambda: bool(sim.of(0, SendCompleted)))
    assert [e.status for e in sim.of(0, SendCompleted)] == [Status.SUCCESS]


def test_the_base_rtt_of_a_destination_may_be_set():
    sim = Sim(seed=1, config=MrcConfig(congestion="nscc"))
    before = sim.ends[0].qp_counters(sim.qpns[0]).cwnd_bytes
    sim.ends[0].set_base_rtt(sim.qpns[0], 4_000_000)
    assert sim.ends[0].qp_counters(sim.qpns[0]).cwnd_bytes == 750_000 > before
    with pytest.raises(ValueError, match="positive"):
        sim.ends[0].set_base_rtt(sim.qpns[0], 0)
