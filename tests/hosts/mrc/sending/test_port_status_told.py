"""All peers learn that a port is down, also peers of new queue pairs and peers that connect later."""

import pytest

from mrclab.hosts.mrc.events import PortStatusUnanswered
from mrclab.hosts.mrc.wire import Opcode
from mrclab.hosts.rdma.events import PacketLost, SendCompleted
from mrclab.hosts.rdma.frames import BTH_OFFSET
from tests.support.mrc_sim import Network, Sim, is_data, remote_paths

PLANES, PATHS = 4, 4
WITHOUT_0 = [False, True, True, True]
ALL = [True] * 4


def make(**options):
    return Sim(seed=3, planes=PLANES, paths=PATHS, network=Network(jitter_ns=0), keep_frames=True, **options)


def strangers():
    """Return two NICs without a connection."""
    sim = make()
    for me in (0, 1):
        sim.ends[me].destroy_qp(sim.qpns[me])
    return sim


def pair(sim):
    """Return the numbers of two new queue pairs, which are not connected yet."""
    return [end.create_qp() for end in sim.ends]


def connect(sim, qpns, me):
    remote = sim.ends[1 - me].local_attributes(qpns[1 - me])
    sim.ends[me].connect(qpns[me], remote, remote_paths(me, 1 - me, PLANES, PATHS))


def peer_ports(sim, qpn):
    """Return the states of end 0's ports that end 1 has stored."""
    return [plane.peer_up for plane in sim.ends[1].plane_counters(qpn)]


def requests(sim):
    return [s for s in sim.sightings if s.source == 0 and s.frame[BTH_OFFSET] == Opcode.ENDPOINT_REQUEST]


def write_back(sim, qpns, size):
    """Let end 1 write to end 0, and wait until the write completes."""
    region = sim.ends[0].register_memory(bytearray(size))
    sim.ends[1].post_write(qpns[1], 1, bytes(size), region.address, region.rkey)
    sim.run(until=lambda: bool(sim.of(1, SendCompleted)))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("apart_ns", [0, 3_000_000])
def test_a_port_that_was_down_before_the_connection_is_announced_over_it(order, apart_ns):
    sim = strangers()
    sim.ends[0].set_port_state(0, False, sim.now_ns)
    qpns = pair(sim)
    first, second = order
    connect(sim, qpns, first)
    sim.run(apart_ns)
    connect(sim, qpns, second)
    sim.run(5_000_000)
    assert peer_ports(sim, qpns[1]) == WITHOUT_0
    write_back(sim, qpns, 1 << 18)
    assert not sim.of(1, PacketLost)
    assert not sim.of(0, PortStatusUnanswered)


@pytest.mark.parametrize("late_ns", [7_500_000, 60_000_000])
def test_a_peer_that_connects_after_all_announcements_is_told_when_it_sends(late_ns):
    """At 7.5 ms, the last announcement of the port's state still waits for an answer, but never arrived."""
    sim = strangers()
    sim.ends[0].set_port_state(0, False, sim.now_ns)
    qpns = pair(sim)
    connect(sim, qpns, 0)
    sim.run(late_ns)
    asked = len(requests(sim))
    assert asked == 4 * 3, "four attempts over three planes"
    connect(sim, qpns, 1)
    sim.run(100_000)
    assert peer_ports(sim, qpns[1]) == ALL
    begun_ns = sim.now_ns
    write_back(sim, qpns, 1 << 20)
    assert peer_ports(sim, qpns[1]) == WITHOUT_0
    assert len(requests(sim)) == asked + 3
    used = {
        s.port for s in sim.sightings if s.source == 1 and is_data(s.frame) and s.t_ns > begun_ns + 100_000
    }
    assert used == {1, 2, 3}


def test_a_new_queue_pair_knows_of_a_peers_port_that_is_down():
    sim = make()
    sim.ends[0].set_port_state(0, False, sim.now_ns)
    sim.run(20_000_000)
    qpns = pair(sim)
    connect(sim, qpns, 1)
    assert peer_ports(sim, qpns[1]) == peer_ports(sim, sim.qpns[1]) == WITHOUT_0
    connect(sim, qpns, 0)
    sim.run(1_000_000)
    sim.ends[0].set_port_state(0, True, sim.now_ns)
    sim.run(1_000_000)
    assert peer_ports(sim, qpns[1]) == peer_ports(sim, sim.qpns[1]) == ALL


@pytest.mark.parametrize("peer_keeps_its_end", [False, True])
def test_a_port_that_came_back_while_nobody_was_connected_is_used(peer_keeps_its_end):
    sim = make()
    sim.ends[0].set_port_state(0, False, sim.now_ns)
    sim.run(20_000_000)
    sim.ends[0].destroy_qp(sim.qpns[0])
    if not peer_keeps_its_end:
        sim.ends[1].destroy_qp(sim.qpns[1])
    sim.ends[0].set_port_state(0, True, sim.now_ns)
    sim.run(20_000_000)
    qpns = pair(sim)
    for me in (0, 1):
        connect(sim, qpns, me)
    if not peer_keeps_its_end:
        assert peer_ports(sim, qpns[1]) == ALL
    sim.run(1_000_000)
    assert peer_ports(sim, qpns[1]) == ALL


def test_many_queue_pairs_to_one_peer_cost_one_announcement():
    sim = make()
    sim.ends[0].set_port_state(0, False, sim.now_ns)
    sim.run(20_000_000)
    before = len(requests(sim))
    for _ in range(20):
        qpns = pair(sim)
        for me in (1, 0):
            connect(sim, qpns, me)
    sim.run(20_000_000)
    assert len(requests(sim)) == before + 3


def test_nics_whose_ports_were_never_down_announce_nothing():
    sim = make()
    qpns = pair(sim)
    for me in (0, 1):
        connect(sim, qpns, me)
    write_back(sim, qpns, 1 << 16)
    assert not requests(sim)


@pytest.mark.parametrize("lost", [4, 0])
def test_an_announcement_outlives_the_queue_pair_that_carried_it(lost):
    """All copies of an announcement are lost, or their answers come after the queue pair's end.

    Then another queue pair must send the announcement.
    """
    sim = make(qps=2)
    a = sim.ends[0]
    a.set_port_state(2, False, sim.now_ns)
    sim.run(5_000_000)
    before = len(requests(sim))
    sim.unpredictable = lambda source, port, frame: source == 0 and len(requests(sim)) <= before + lost
    a.set_port_state(2, True, sim.now_ns)
    sim.run(10_000)
    assert len(requests(sim)) == before + 4
    a.destroy_qp(sim.connections[0][0])
    sim.run(20_000_000)
    for _, qpn in sim.connections:
        assert peer_ports(sim, qpn) == ALL
    assert len(requests(sim)) == before + 4 + lost
    assert not sim.of(0, PortStatusUnanswered)


def test_without_a_queue_pair_to_the_peer_nothing_is_announced_any_more():
    sim = make()
    sim.network.dead_planes.update(range(4))
    sim.ends[0].set_port_state(2, False, sim.now_ns)
    sim.run(10_000)
    asked = len(requests(sim))
    sim.ends[0].destroy_qp(sim.qpns[0])
    sim.run(20_000_000)
    assert len(requests(sim)) == asked == 3
    assert not sim.of(0, PortStatusUnanswered)
    assert sim.ends[0].next_timer() is None
