"""RoCEv2 with NCCL's failover: ports fail and come back, and every byte arrives once."""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.rdma.events import QpError, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.roce import Endpoint, RoceConfig
from mrclab.hosts.roce.failover import ALIVE, FailoverEndpoint
from mrclab.hosts.roce.lanes import FailoverConfig
from tests.support.mrc_sim import Network, Sim, opcode, port_addresses, remote_paths, stream

MS = 1_000_000
FAST: dict[str, Any] = {"timeout_exponent": 8}
"""An ACK timeout of 1 ms. A path is given up after 8.4 ms."""


def failing(seed: int = 1, network: Network | None = None, planes: int = 4, **options: Any) -> Sim:
    return Sim(
        seed,
        planes=planes,
        config=FailoverConfig(**{**FAST, **options}),
        endpoint_class=FailoverEndpoint,
        network=network,
        keep_frames=True,
    )


def ports_used(sim: Sim, since_ns: int) -> set[int]:
    return {s.port for s in sim.sightings if s.source == 0 and s.t_ns >= since_ns and opcode(s.frame) < 0x0C}


def whole(sim: Sim, lengths: list[int], data: bytes, region: Any) -> None:
    assert not sim.of(0, QpError) + sim.of(1, QpError)
    done = [(event.wr_id, event.status) for event in sim.of(0, SendCompleted)]  # type: ignore[attr-defined]
    assert done == [(n, Status.SUCCESS) for n in range(len(lengths))]
    assert [event.imm for event in sim.of(1, ReceiveCompleted)] == list(range(len(lengths)))  # type: ignore[attr-defined]
    assert hashlib.sha256(region.view).digest() == hashlib.sha256(data).digest()
    assert sim.ends[1].bytes_placed(sim.qpns[1]) == len(data), "each byte once"


def test_a_message_is_striped_over_all_ports() -> None:
    sim = failing()
    lengths = [100_000, 7]
    data, region = stream(sim, lengths)
    sim.run()
    whole(sim, lengths, data, region)
    assert ports_used(sim, 0) == {0, 1, 2, 3}
    assert sim.ends[0].failovers == 0


def test_a_dead_plane_costs_the_timeouts_and_the_delay_of_the_probe() -> None:
    sim = failing(recovery=False)
    sim.network.dead_planes.add(1)
    lengths = [100_000] * 3
    data, region = stream(sim, lengths)
    began = sim.now_ns
    sim.run(until=lambda: sim.completed[0] == 3)
    whole(sim, lengths, data, region)
    # Eight timeouts of 1.05 ms, a pause of 10 ms, and less than 1 ms for the data.
    assert 18.3 * MS < sim.now_ns - began < 19.5 * MS
    assert sim.ends[0].failovers == 1
    later = sim.now_ns
    stream(sim, [100_000])
    sim.run()
    assert 1 not in ports_used(sim, later)


def test_only_messages_that_did_not_arrive_are_sent_again() -> None:
    sim = failing(recovery=False)
    lengths = [16_384] * 4
    data, region = stream(sim, lengths)
    # All data arrives on plane 2, but no answer comes back.
    sim.unpredictable = lambda source, port, _frame: source == 1 and port == 2
    sim.run(until=lambda: sim.completed[0] == 4)
    whole(sim, lengths, data, region)
    moved = [
        s
        for s in sim.sightings
        if s.source == 0 and s.port == 3 and opcode(s.frame) in (0x0A, 0x0B) and s.t_ns > 15 * MS
    ]
    assert not moved


def test_a_port_that_goes_down_fails_over_at_once() -> None:
    sim = failing(recovery=False)
    sim.network.dead_planes.add(0)
    data, region = stream(sim, [100_000])
    began = sim.now_ns
    sim.at(sim.now_ns + MS, lambda: sim.ends[0].set_port_state(0, False, sim.now_ns))
    sim.run(until=lambda: sim.completed[0] == 1)
    whole(sim, [100_000], data, region)
    # Reordered packets may cost a few timeouts of go-back-N.
    assert 11 * MS < sim.now_ns - began < 15 * MS


def test_a_port_that_is_back_is_used_again() -> None:
    sim = failing()
    sim.network.dead_planes.add(1)
    stream(sim, [100_000])
    sim.run(until=lambda: sim.completed[0] == 1)
    failed = sim.now_ns
    sim.network.dead_planes.clear()
    sim.run(300 * MS)
    assert sim.ends[0].recoveries == 1
    alive = [s.t_ns for s in sim.sightings if s.source == 0 and opcode(s.frame) == ALIVE]
    assert len(alive) == 5
    assert 180 * MS < alive[0] - failed < 200 * MS
    later = sim.now_ns
    stream(sim, [100_000])
    sim.run(until=lambda: sim.completed[0] == 2)
    assert ports_used(sim, later) == {0, 1, 2, 3}
    # The port may fail again.
    sim.network.dead_planes.add(1)
    stream(sim, [100_000])
    sim.run(until=lambda: sim.completed[0] == 3)
    assert not sim.of(0, QpError)
    assert sim.ends[0].failovers == 2


def test_a_port_that_stays_away_is_given_up() -> None:
    sim = failing()
    sim.network.dead_planes.add(1)
    stream(sim, [100_000])
    sim.run(60_000 * MS)
    batches = {s.t_ns for s in sim.sightings if s.source == 0 and opcode(s.frame) == ALIVE}
    # Five attempts of 4 s, with a batch every 500 ms.
    assert len(batches) == 5 * 8
    assert sim.ends[0].next_timer() is None
    assert sim.completed[0] == 1


@pytest.mark.parametrize("attempts", [0, 1])
def test_more_failures_than_allowed_end_the_connection(attempts: int) -> None:
    sim = failing(failover_attempts=attempts)
    sim.network.dead_planes |= {0, 1, 2, 3}
    stream(sim, [100_000, 5])
    sim.run(2000 * MS)
    (error,) = sim.of(0, QpError)
    assert error.status is Status.RETRY_EXCEEDED  # type: ignore[attr-defined]
    assert len(sim.of(0, SendCompleted)) == 2


def test_a_port_that_is_back_before_the_probe_is_answered_is_used_again() -> None:
    """The probe closes the failed queue pair at the peer, so alive messages must not open it before that."""
    sim = failing(planes=2, timeout_exponent=14)
    stream(sim, [20_000] * 7)
    sim.run(until=lambda: sim.completed[0] == 7)
    sim.network.dead_planes |= {0, 1}
    sim.ends[0].set_port_state(0, False, sim.now_ns)
    sim.at(sim.now_ns + 100 * MS, lambda: sim.ends[0].set_port_state(0, True, sim.now_ns))
    sim.at(sim.now_ns + 100 * MS, lambda: sim.network.dead_planes.discard(0))
    sim.at(sim.now_ns + 400 * MS, sim.network.dead_planes.clear)
    sim.run(1500 * MS)
    assert (sim.ends[0].failovers, sim.ends[0].recoveries) == (1, 1)
    data, region = stream(sim, [20_000] * 10)
    sim.run(until=lambda: sim.completed[0] == 17)
    assert bytes(region.view) == data
    assert len(sim.of(1, ReceiveCompleted)) == 17
    assert ports_used(sim, sim.now_ns - MS) == {0, 1}


def test_a_port_may_fail_when_it_is_used_for_the_second_time() -> None:
    """The peer also counts the messages of the first time."""
    sim = failing(planes=3, failover_attempts=2)
    for _ in range(2):
        sim.network.dead_planes.add(0)
        stream(sim, [9_000] * 5)
        sim.run(100 * MS)
        sim.network.dead_planes.clear()
        sim.run(600 * MS)
    assert sim.ends[0].recoveries == 2
    sim.network.dead_planes.add(0)
    stream(sim, [9_000])
    sim.run(100 * MS)
    sim.network.dead_planes.add(1)
    data, region = stream(sim, [9_000] * 12)
    sim.run(100 * MS)
    assert not sim.of(0, QpError)
    assert sim.completed[0] == len(sim.of(1, ReceiveCompleted)) == 23
    assert bytes(region.view) == data


def test_a_lane_does_not_move_to_a_queue_pair_that_has_failed() -> None:
    sim = failing(planes=2, failover_attempts=2, recovery=False)
    sim.network.dead_planes.add(0)
    stream(sim, [9_000])
    sim.run(100 * MS)
    sim.network.dead_planes = {1}
    stream(sim, [9_000] * 2)
    sim.run(100 * MS)
    (error,) = sim.of(0, QpError)
    assert error.detail == "no port is left"  # type: ignore[attr-defined]
    assert len(sim.of(0, SendCompleted)) == 3


def test_ends_that_do_not_fit_are_refused() -> None:
    ours = FailoverEndpoint(port_addresses(0, 2), FailoverConfig(), random.Random(1))
    plain = Endpoint(port_addresses(1, 2), RoceConfig(), random.Random(2))
    other = FailoverEndpoint(port_addresses(1, 4), FailoverConfig(), random.Random(3))
    qpn = ours.create_qp()
    for end, text in ((plain, "not those of a RoCEv2 endpoint with failover"), (other, "as many ports")):
        attributes = end.local_attributes(end.create_qp())
        with pytest.raises(ValueError, match=text):
            ours.connect(qpn, attributes, remote_paths(0, 1, 2, 2))


@pytest.mark.parametrize(
    "options", [{"failover_attempts": -1}, {"alive_batch": 0}, {"qps": 0}, {"recovery_attempts": 0}]
)
def test_bad_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        FailoverConfig(**options)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.lists(st.integers(0, 40_000), min_size=1, max_size=6))
def test_every_byte_arrives_once_whatever_one_plane_does(seed: int, planes: int, lengths: list[int]) -> None:
    sim = failing(seed, Network(loss=0.002), planes=planes)
    data, region = stream(sim, lengths)
    plane = seed % planes
    down, up = sorted((sim.rng.randrange(20 * MS), sim.rng.randrange(900 * MS)))
    sim.at(sim.now_ns + down, lambda: sim.network.dead_planes.add(plane))
    sim.at(sim.now_ns + up, sim.network.dead_planes.clear)
    sim.run(until=lambda: sim.completed[0] == len(lengths))
    sim.run(1000 * MS)
    whole(sim, lengths, data, region)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0x0C, 0x10, 0x24, 0x11]), st.binary(max_size=40)), max_size=8))
def test_strange_frames_change_nothing(frames: list[tuple[int, bytes]]) -> None:
    sim = failing()
    ours, peer = sim.ends
    body = itertools.count()
    for code, payload in frames:
        via = peer.qps[sim.qpns[1] + next(body) % 16]
        peer._send(via, code, 0, payload)
    for port, frame in peer.frames_to_send(sim.now_ns):
        ours.receive(port, frame, sim.now_ns)
    assert all(lane.failed_at == -1 for lane in ours._lanes[sim.qpns[0]])
