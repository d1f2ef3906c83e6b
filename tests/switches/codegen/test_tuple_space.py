"""Ternary and range tables of any size: tuple space search."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.switches.ebpf.codegen.translation import translate
from mrclab.switches.ebpf.plan import TUPLES
from mrclab.switches.ebpf.runtime.entries import Action, Entry, TableFullError
from mrclab.switches.ebpf.runtime.table_state import TableState, prefixes
from mrclab.switches.ebpf.runtime.transaction import Transaction
from mrclab.switches.p4_model import Between, Exact, Masked, Prefix, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_bench import Bench, bench_of
from tests.support.switch_kit import DATA

pytestmark = pytest.mark.parallel


@given(st.integers(1, 9).flatmap(lambda w: st.tuples(st.just(w), *[st.integers(0, (1 << w) - 1)] * 2)))
def test_a_range_is_its_prefixes(case: tuple[int, int, int]) -> None:
    width, a, b = case
    low, high = min(a, b), max(a, b)
    parts = list(prefixes(low, high, width))
    assert all(value & ~mask == 0 for value, mask in parts)
    hit = [n for n in range(1 << width) if any(n & mask == value for value, mask in parts)]
    assert hit == list(range(low, high + 1))
    assert len(parts) <= max(2 * width - 2, 1)


def state_of(name: str) -> TableState:
    program = read_program((DATA / "ternary.json").read_bytes())
    table = next(t for t in program.tables() if t.name == name)
    return TableState(table, translate(program).plan.tables[name])


def entry(state: TableState, b: tuple[int, int], priority: int) -> Entry:
    layout = state.layout.actions[0]
    return Entry(((0, 0), (1, 0xFF), (0, 0), b), priority, Action(layout, (priority,)))


def test_what_is_undone_was_not() -> None:
    state, tx = state_of("I.masks"), Transaction()
    state.insert(entry(state, (1, 1), 5), tx)
    space = state.space
    assert space is not None
    before = space.encode_tuples()
    later = Transaction()
    state.insert(entry(state, (1, 1), 9), later)  # the same key with a higher priority
    state.insert(entry(state, (2, 3), 4), later)  # another mask
    state.delete((entry(state, (1, 1), 5).match, 5), later)
    maps: dict[tuple[int, bytes], bytes | None] = {}
    for change in later.changes:
        maps[change.map, change.key] = change.value
    later.undo()
    for change in later.changes:
        maps[change.map, change.key] = change.current()
    ((number, key),) = space.numbers(entry(state, (1, 1), 5).match)
    value = maps[state.layout.map or 0, space.encode_key(number, key)]
    assert value is not None
    assert value[8:16] == (5).to_bytes(8, "little")
    assert len([v for v in maps.values() if v is not None]) == 2
    # The highest priority of a mask is never lowered. If it is too high, the search is only slower.
    assert len(space.encode_tuples()) == len(before)


def test_there_is_an_end_to_masks() -> None:
    state, tx = state_of("I.masks"), Transaction()
    for i in range(TUPLES):
        state.insert(entry(state, (0, i + 1), 1), tx)
    with pytest.raises(TableFullError, match=f"{TUPLES + 1} different masks, and {TUPLES} at most"):
        state.insert(entry(state, (0, TUPLES + 1), 1), tx)
    state.insert(entry(state, (1, 1), 1), tx)  # the table already has this mask


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    yield from bench_of(DATA / "ternary.json")


def masked(rng: random.Random, width: int, masks: list[int]) -> Masked:
    mask = rng.choice(masks) & ((1 << width) - 1)
    return Masked(rng.getrandbits(width) & mask & 0x0101_0101_0101_0103, mask)


@pytest.mark.root
@pytest.mark.parametrize("seed", [1, 2])
def test_large_tables_match_as_the_model_does(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    for name in ("I.masks", "I.ranges"):
        bench.remove_all(name)
    priorities = list(range(1, 1200))
    rng.shuffle(priorities)
    for priority in priorities[:600]:
        length = rng.choice([0, 1, 8, 32])
        c = rng.getrandbits(32) & 0x8100_0001
        key = (
            masked(rng, 128, [0, 1, 0xFFFF << 112, (1 << 128) - 1]),
            Exact(rng.randrange(2)),
            Prefix(c >> (32 - length) << (32 - length), length),
            masked(rng, 16, [0, 3, 0xFF, 0xFFFF]),
        )
        bench.add("I.masks", Rule(key, "I.first", (priority,), priority))
    for priority in priorities[600:900]:
        b, d = sorted(rng.choices(range(0, 1 << 16, 256), k=2)), sorted(rng.choices(range(0, 512, 16), k=2))
        e = rng.choice([Masked(0, 0), Masked(rng.randrange(4), 127)])
        key = (Between(*rng.choice([b, (0, 65535)])), Between(*rng.choice([d, (0, 511)])), e)
        bench.add("I.ranges", Rule(key, "I.second", (priority,), priority))
    taken = rng.sample(list(bench.tables["I.masks"].entries), 100)
    for ident in taken:
        bench.do(lambda tx, i=ident: bench.tables["I.masks"].delete(i, tx))  # type: ignore[misc]
    gone = {priority for _, priority in taken}
    bench.model.rules["I.masks"] = [r for r in bench.model.rules["I.masks"] if r.priority not in gone]
    widths = (8, 16, 32, 9, 7, 128, 32, 32)
    for _ in range(300):
        values = (
            rng.randrange(3), rng.choice([rng.getrandbits(16), rng.randrange(4)]),
            rng.getrandbits(32) & 0x8100_0001, rng.randrange(512), rng.randrange(5),
            rng.getrandbits(128) & 0x0101_0101_0101_0103, 0, 0,
        )  # fmt: skip
        number = 0
        for value, width in zip(values, widths, strict=True):
            number = number << width | value
        bench.compare(number.to_bytes(sum(widths) // 8, "big") + b"payload")
