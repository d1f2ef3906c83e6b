"""The compiled program, compared with the interpreter on random frames and entries (BPF_PROG_TEST_RUN)."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.linux import bpf
from mrclab.switches.p4_model import Between, Exact, Masked, Prefix, Rule
from tests.support.switch_bench import EXAMPLES, Bench, bench_of, words
from tests.support.switch_kit import DATA, JSON, ipv6_frame, sid

pytestmark = [pytest.mark.root, pytest.mark.parallel]


@pytest.fixture(scope="module")
def arith() -> Iterator[Bench]:
    yield from bench_of(DATA / "arith.json")


@pytest.fixture(scope="module")
def stacks() -> Iterator[Bench]:
    bench = None
    for bench in bench_of(DATA / "stacks.json"):
        name = "I.act"
        actions = ("I.untag", "I.pop", "I.pop_two", "I.copy", "I.stop")
        for i, action in enumerate(actions):
            bench.add(name, Rule((Exact(i + 1),), action))
        bench.add(name, Rule((Exact(6),), "I.tag", (0x123,)))
        bench.add(name, Rule((Exact(7),), "I.push", (0xABCDE,)))
        yield bench


@pytest.fixture(scope="module")
def match() -> Iterator[Bench]:
    yield from bench_of(DATA / "match.json")


@pytest.fixture(scope="module")
def mrc() -> Iterator[Bench]:
    for bench in bench_of(JSON):
        bench.add(
            "MrcIngress.micro_segment.my_sid", Rule((Prefix(sid(1), 48),), "MrcIngress.micro_segment.un")
        )
        forward = "MrcIngress.micro_segment.forward"
        for usid, port in ((2, 2), (3, 3), (4, 77)):
            args = (port, 0x0A0000000000 + port, 0x0B0000000000 + port)
            bench.add("MrcIngress.micro_segment.next_hop", Rule((Prefix(sid(usid), 48),), forward, args))
        yield bench


@pytest.fixture(scope="module")
def registers() -> Iterator[Bench]:
    yield from bench_of(DATA / "registers.json")


ARITH = (8, 8, 48, 48, 9, 20, 3, 16, 16, 128, 128)


@pytest.mark.slow
@EXAMPLES
@given(values=st.tuples(*(words(w) for w in ARITH)), op=st.integers(0, 17), by=st.integers(0, 140))
def test_every_operation_is_bmv2s(arith: Bench, values: tuple[int, ...], op: int, by: int) -> None:
    number = 0
    for value, width in zip((op, by, *values[2:]), ARITH, strict=True):
        number = number << width | value
    frame = number.to_bytes(sum(ARITH) // 8, "big") + b"tail"
    assert arith.compare(frame)


@pytest.mark.slow
@EXAMPLES
@given(
    what=st.integers(0, 8),
    note=st.booleans(),
    tag=st.one_of(
        st.none(), st.tuples(st.integers(0, 0xFFF), st.sampled_from([0x8847, 0x0800, 0x08FF, 0x1234]))
    ),
    kind=st.sampled_from([0x8847, 0x8847, 0x8847, 0x88AA, 0x1234]),
    labels=st.lists(st.sampled_from([0, 13, 77, 0xFFFFF]), max_size=6),
    ends=st.booleans(),
    payload=st.integers(0, 1400),
)
def test_headers_come_and_go(
    stacks: Bench,
    what: int,
    note: bool,
    tag: tuple[int, int] | None,
    kind: int,
    labels: list[int],
    ends: bool,
    payload: int,
) -> None:
    frame = b"\x02" * 5 + bytes([what]) + b"\x04" * 5 + bytes([4 | note])
    if tag is not None:
        frame += b"\x81\x00" + (0xE000 | tag[0]).to_bytes(2, "big")
        kind = tag[1]
    frame += kind.to_bytes(2, "big")
    for i, label in enumerate(labels):
        last = ends and i == len(labels) - 1
        frame += (label << 12 | last << 8 | 64 - i).to_bytes(4, "big")
    frame += bytes(i * 11 & 0xFF for i in range(payload))
    if len(frame) >= 18:  # the kernel accepts no shorter frames here
        stacks.compare(frame)


KEY = (8, 16, 32, 9, 7, 64, 32)
SMALL_8, SMALL_16 = st.integers(0, 7), st.one_of(st.integers(0, 0x1FF), st.integers(0, 0xFFFF))
SMALL_32 = st.one_of(
    st.integers(0, 15), st.integers(0, 15).map(lambda v: v << 28), st.integers(0, (1 << 32) - 1)
)
MARK = st.tuples(st.just("I.mark"), st.tuples(st.integers(0, 3), st.integers(0, 255)))
NOTE = st.tuples(st.just("I.note"), st.just(()))
WIDE = st.tuples(st.just("I.wide"), st.tuples(words(64), words(7)))
LEAVE = st.tuples(st.just("I.leave"), st.just(()))


def ternary(strategy: st.SearchStrategy[int], width: int) -> st.SearchStrategy[Masked]:
    masks = st.sampled_from([0, 1, 3, 0xFF, (1 << width) - 1, 0xF << (width - 4)])
    return st.tuples(strategy, masks).map(lambda p: Masked(p[0] & p[1], p[1]))


def prefix(p: tuple[int, int]) -> Prefix:
    return Prefix(p[0] >> (32 - p[1]) << (32 - p[1]), p[1])


SPAN = st.tuples(SMALL_16, SMALL_16).map(lambda p: Between(min(p), max(p)))


@pytest.mark.slow
@EXAMPLES
@given(data=st.data())
def test_tables_match_as_in_bmv2(match: Bench, data: st.DataObject) -> None:
    tables = {
        "I.pair": (st.tuples(SMALL_8.map(Exact), st.integers(0, 5).map(Exact)), MARK | NOTE | LEAVE | WIDE),
        "I.prefix": (
            st.tuples(st.integers(0, 2).map(Exact), st.tuples(SMALL_32, st.integers(0, 32)).map(prefix)),
            MARK | NOTE,
        ),
        "I.scan": (
            st.tuples(ternary(SMALL_16, 16), ternary(SMALL_32, 32), SMALL_8.map(Exact)),
            MARK | NOTE | WIDE,
        ),
        "I.span": (
            st.tuples(SPAN, st.one_of(st.just(Masked(0, 0)), SMALL_8.map(lambda v: Masked(v, 0xFF)))),
            MARK | NOTE,
        ),
    }
    for name, (keys, actions) in tables.items():
        match.remove_all(name)
        # All priorities differ, because the order of equal priorities is undefined.
        entries = data.draw(st.lists(st.tuples(keys, actions), max_size=8))
        order = data.draw(st.permutations(range(1, len(entries) + 1)))
        prioritised = name in ("I.scan", "I.span")
        for (key, (action, args)), priority in zip(entries, order, strict=True):
            match.add(name, Rule(key, action, args, priority if prioritised else 0))
    fields = st.tuples(
        SMALL_8, SMALL_16, SMALL_32, st.integers(0, 511), st.integers(0, 2), words(64), words(32)
    )
    for values in data.draw(st.lists(fields, min_size=1, max_size=6)):
        number = 0
        for value, width in zip(values, KEY, strict=True):
            number = number << width | value
        match.compare(number.to_bytes(sum(KEY) // 8, "big") + b"payload")
    # Counters must be equal, too: an array larger than one map value, and the counters of entries.
    layout = match.path.compiled.plan.counters["I.seen"]
    cells = match.path.cells(layout.map, layout.size)
    want = {at: (c.packets, c.bytes) for (name, at), c in match.model.counters.items() if name == "I.seen"}
    assert {at: c for at, c in enumerate(cells) if c != (0, 0)} == want


@EXAMPLES
@given(
    usids=st.tuples(st.sampled_from([1, 1, 1, 2]), st.sampled_from([0, 1, 2, 3, 4, 9, 0xFFFF])).map(list),
    size=st.integers(55, 1500),
    hops=st.integers(0, 255),
    kind=st.sampled_from([b"\x86\xdd", b"\x08\x00", b"\x88\xb5"]),
)
def test_the_switch_program(mrc: Bench, usids: list[int], size: int, hops: int, kind: bytes) -> None:
    frame = bytearray(ipv6_frame(sid(*usids), size, hops))
    frame[12:14] = kind
    if kind == b"\x08\x00":
        frame = frame[: max(60, size // 2)]
    mrc.compare(bytes(frame))


REGISTER = (8, 32, 64, 100)


@pytest.mark.slow
@EXAMPLES
@given(frames=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 70), words(64), words(100)), min_size=1))
def test_registers_keep_what_frames_wrote(registers: Bench, frames: list[tuple[int, int, int, int]]) -> None:
    for values in frames:
        number = 0
        for value, width in zip(values, REGISTER, strict=True):
            number = number << width | value
        # The frame is long enough for the kernel, even if it looks like IP.
        registers.compare((number << 4).to_bytes((sum(REGISTER) + 4) // 8, "big") + bytes(60))


def test_two_cpus_lose_no_register_update(registers: Bench) -> None:
    """Both CPUs add to one cell at the same time. Without the lock, about half of the sum would be lost."""
    path, index, n = registers.path, registers.index, 20_000
    frame = bytes([1]) + (63).to_bytes(4, "big") + (1).to_bytes(8, "big") + bytes(20)
    layout = path.compiled.plan.registers["I.sums"]

    def total() -> int:
        raw = path.maps[layout.map].lookup(bytes(4))
        assert raw is not None
        return int.from_bytes(raw[63 * 8 : 64 * 8], "little")

    before = total()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("one CPU only")

    def add(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})  # only this thread
        for _ in range(20):
            bpf.run_once(path.fd, frame, index, n // 20)

    def both() -> None:
        threads = [threading.Thread(target=add, args=(cpu,)) for cpu in cpus]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    registers.ns.run(both)
    assert total() - before == 2 * n


@pytest.mark.slow
def test_long_run_of_the_switch_program(mrc: Bench) -> None:
    rng = random.Random(7)
    for _ in range(3000):
        usids = [rng.choice([0, 1, 1, 1, 2, 3, 4, 9]) for _ in range(rng.randrange(7))]
        mrc.compare(ipv6_frame(sid(*usids), rng.randrange(55, 3000), rng.randrange(256)))
