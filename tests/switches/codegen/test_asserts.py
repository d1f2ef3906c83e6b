"""Frames that pass `assert` and `assume`. BMv2 ends if an assert fails, so these tests do not run BMv2."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from mrclab.switches.ebpf.runtime.replication import Replica, Replication
from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_bench import Bench, bench_of
from tests.support.switch_kit import DATA, receive

pytestmark = pytest.mark.parallel

PROGRAM = DATA / "asserts.json"


def frame(group: int, a: int, b: int) -> bytes:
    return bytes([group, a, b, 0]) + bytes(60)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield from bench_of(PROGRAM)


def test_who_comes_through() -> None:
    model = Interpreter(read_program(PROGRAM.read_bytes()))
    model.groups[1] = [(2, 1), (3, 2)]
    assert model.run(1, frame(0, 6, 1)) == [(2, bytes([0, 6, 2, 0]) + bytes(60))]
    assert model.run(1, frame(0, 7, 1)) == []
    assert model.run(1, frame(0, 6, 200)) == []
    assert model.run(1, frame(0, 9, 1)) == []
    # In egress every copy is checked separately.
    assert model.run(1, frame(1, 9, 1)) == [(3, bytes([1, 9, 2, 2]) + bytes(60))]


@pytest.mark.root
def test_frames_that_fail_an_assertion_are_lost(bench: Bench) -> None:
    for a, b in product((6, 7, 9), (0, 199, 200)):
        bench.compare(frame(0, a, b))


@pytest.mark.root
def test_copies_that_fail_an_assertion_are_lost(bench: Bench) -> None:
    copies = [(2, 1), (3, 2), (3, 3)]
    group = Replication(tuple(Replica(*c) for c in copies), b"")
    bench.do(lambda tx: bench.running.multicast.insert(1, group, tx))
    bench.model.groups[1] = copies
    sockets = {i: bench.ns.packet_socket(f"h{i}") for i in (2, 3)}
    for a in (6, 7, 9):
        # Only the copies are sent.
        sent = frame(1, a, 1)
        expected = bench.model.run(1, sent)
        bench.model.groups, kept = {}, bench.model.groups
        assert bench.compare(sent) == []
        bench.model.groups = kept
        for port, s in sockets.items():
            want = [f for p, f in expected if p == port]
            assert sorted(receive(s, len(want), 2)) == sorted(want)
    for s in sockets.values():
        assert receive(s, 1, 0.2) == []
        s.close()
