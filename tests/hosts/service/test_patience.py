"""The time for which a NIC service waits for a peer that is silent for a while, or for slow switches."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.hosts.service.test_sessions import Area
from tests.support.nic_client import STEP_NS, Program, Wire
from tests.support.slow_switches import SlowWire

SIZE = 65_536
MESSAGES, DEPTH = 24, 8
RETRY_EXCEEDED = 12
MS = 1_000_000
SECOND = 1_000_000_000 // STEP_NS


@pytest.fixture
def areas() -> Iterator[tuple[Area, Area]]:
    here, there = Area(DEPTH * SIZE), Area(DEPTH * SIZE)
    yield here, there
    here.unmap()
    there.unmap()


def _connected(wire: Wire) -> tuple[Program, Program]:
    a, b = Program(wire.a), Program(wire.b)
    for program in (a, b):
        program.make_qp()
    a.connect(b)
    b.connect(a)
    return a, b


def _transfer(wire: Wire, a: Program, b: Program, areas: tuple[Area, Area], most_s: int) -> float:
    """Write all messages and check them. Return how long that took, in s."""
    here, there = areas
    data = random.Random(5).randbytes(DEPTH * SIZE)
    here.fill(data)
    lkey, rkey = a.register(here.address, here.length), b.register(there.address, there.length)
    began_ns, done, posted = wire.now_ns, 0, 0
    while done < MESSAGES:
        while posted < min(MESSAGES, done + DEPTH):
            at = posted % DEPTH * SIZE
            a.post(posted, here.address + at, SIZE, lkey, there.address + at, rkey)
            posted += 1
        wire.run(10)
        for wr_id, status, _ in a.poll():
            assert (wr_id, status) == (done, 0)
            done += 1
        assert wire.now_ns - began_ns < most_s * 1_000_000_000
    assert there.bytes(DEPTH * SIZE) == data
    return (wire.now_ns - began_ns) / 1e9


def test_a_second_without_any_path_ends_no_queue_pair(areas: tuple[Area, Area]) -> None:
    wire = Wire()
    a, b = _connected(wire)
    here, there = areas
    lkey, rkey = a.register(here.address, SIZE), b.register(there.address, SIZE)
    a.post(1, here.address, SIZE, lkey, there.address, rkey)
    for _ in range(SECOND):
        wire.now_ns += STEP_NS
        wire.a.work(wire.now_ns)
        wire.b.work(wire.now_ns)
    assert a.poll() == []
    wire.run(SECOND)
    assert a.poll() == [(1, 0, 0)]
    wire.close()


@pytest.mark.parametrize("target", ["ebpf", "bmv2"])
def test_a_dead_peer_is_reported_after_some_seconds(target: str, areas: tuple[Area, Area]) -> None:
    wire = Wire(target)
    a, _ = _connected(wire)
    here, _ = areas
    lkey = a.register(here.address, SIZE)
    a.post(1, here.address, SIZE, lkey, 0, 1)
    began_ns = wire.now_ns
    while not (found := a.poll()):
        wire.now_ns += 10 * STEP_NS
        wire.a.work(wire.now_ns)
        assert wire.now_ns - began_ns < 8_000 * MS
    assert found == [(1, RETRY_EXCEEDED, 0)]
    assert wire.now_ns - began_ns > 2_000 * MS
    wire.close()


@pytest.mark.parametrize("cost_ns", [MS // 2, MS, 2 * MS])
def test_no_path_is_retired_because_switches_are_slow(cost_ns: int, areas: tuple[Area, Area]) -> None:
    """The service uses the options for the target bmv2.

    With the options for the target ebpf, ten paths would be retired, and all data would be sent twice.
    """
    wire = SlowWire("bmv2", cost_ns, turn_ns=4 * MS)
    a, b = _connected(wire)
    took_s = _transfer(wire, a, b, areas, most_s=10)
    assert (wire.events["PacketLost"], wire.events["EvRetired"]) == (0, 0)
    frames = MESSAGES * SIZE / 4096
    assert took_s < 2 * frames * cost_ns / 1e9
    wire.close()


def test_a_path_that_is_cut_is_retired_behind_slow_switches_too(areas: tuple[Area, Area]) -> None:
    wire = SlowWire("bmv2", MS, turn_ns=4 * MS)
    a, b = _connected(wire)
    _transfer(wire, a, b, areas, most_s=10)
    wire.dead = wire.switches[0]
    _transfer(wire, a, b, areas, most_s=10)
    assert wire.events["EvRetired"] >= 1
    assert wire.events["QpError"] == 0
    wire.close()
