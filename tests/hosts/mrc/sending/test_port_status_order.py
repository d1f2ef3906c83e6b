"""If PORT_STATUS_UPDATEs overtake each other, the update that was sent last is valid."""

import random

import pytest

from tests.support.mrc_sim import Network, Sim


@pytest.mark.parametrize("apart_ns", [200, 50_000, 3_000_000])
@pytest.mark.parametrize("began_ns", [1_000_000, 128 * 0x10000 - 100_000])
def test_a_down_that_arrives_after_its_up_does_not_keep_the_plane_out(apart_ns, began_ns):
    sim = Sim(seed=1, planes=3, paths=2, network=Network(jitter_ns=0))
    a, b = sim.ends
    a.set_port_state(1, False, began_ns)
    down = a.frames_to_send(began_ns, None, 100)
    a.set_port_state(1, True, began_ns + apart_ns)
    up = a.frames_to_send(began_ns + apart_ns, None, 100)
    assert down
    assert up
    arrival_ns = began_ns + apart_ns + 20_000
    for port, frame in (*up, *down):
        b.receive(port, frame, arrival_ns)
    assert [p.peer_up for p in b.plane_counters(sim.qpns[1])] == [True, True, True]
    assert b.frames_to_send(arrival_ns, None, 100), "both are answered"


def test_updates_in_order_are_heeded_whatever_the_time_between():
    sim = Sim(seed=1, planes=3, paths=2, network=Network(jitter_ns=0))
    a, b = sim.ends
    now_ns, up = 1_000_000, True
    for wait_ns in (200, 50_000, 3_000_000, 5_000_000, 8_388_608, 12_000_000, 1 << 33):
        now_ns += wait_ns
        up = not up
        a.set_port_state(1, up, now_ns)
        for port, frame in a.frames_to_send(now_ns, None, 100):
            b.receive(port, frame, now_ns + 20_000)
        assert b.plane_counters(sim.qpns[1])[1].peer_up is up, wait_ns
        for port, frame in b.frames_to_send(now_ns + 20_000, None, 100):
            a.receive(port, frame, now_ns + 40_000)
        now_ns += 40_000


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("up", [True, False])
def test_ports_that_change_at_one_time_end_as_they_were_last(seed, up):
    """All updates have the same timestamp. If an earlier update arrives last, it must have no effect."""
    sim = Sim(seed=1, planes=5, paths=2, network=Network(jitter_ns=0))
    a, b = sim.ends
    rng, now_ns = random.Random(seed), 1_000_000
    for state in (False, True) if up else (True, False):
        for port in (1, 2, 3):
            a.set_port_state(port, state, now_ns)
        frames = list(a.frames_to_send(now_ns, None, 100))
        rng.shuffle(frames)
        for port, frame in frames:
            b.receive(port, frame, now_ns + 20_000)
        now_ns += 50_000
    assert [p.peer_up for p in b.plane_counters(sim.qpns[1])] == [True, up, up, up, True]
