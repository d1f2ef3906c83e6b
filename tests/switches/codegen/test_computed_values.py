"""Wide and signed arithmetic, and computed indices of stacks, compared with the model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.switches.ebpf.codegen.compile import compile_json
from mrclab.switches.ebpf.runtime.datapath import Datapath, SharedMaps
from mrclab.switches.p4_model import Exact, Masked, Prefix, Rule
from tests.support.handmade import assign, do, extract, field, if_, named, number, op, program, state
from tests.support.switch_bench import Bench, bench_of, words
from tests.support.switch_kit import DATA
from tests.switches.codegen.language import (
    KEY,
    OUT,
    PROBLEM,
    SOME,
    A,
    B,
    C,
    begin,
    bench,
    model_of,
    root,
    when,
)

pytestmark = pytest.mark.parallel

WIDE_OPERATIONS = [
    ("+", A, B), ("-", A, B), ("*", A, B), ("&", A, B), ("|", A, B), ("^", A, B),
    ("*", field("key", "x"), field("key", "y")),
    ("<<", A, field("key", "m")), (">>", A, field("key", "m")), (">>", op("+", A, B), number(1)),
]  # fmt: skip
WIDE = program(
    {
        "k": (*KEY[:4], ("x", 100), ("y", 100)),
        "w": (("a", 160), ("b", 160), ("c", 256), ("d", 512), ("e", 512)),
        "n": (("s", 16), ("t", 16)),
    },
    {"key": "k", "wide": "w", "small": "n"},
    [state("start", [extract("regular", "key"), extract("regular", "wide"), extract("regular", "small")])],
    [
        OUT,
        *(when(i, assign(C, op(*o))) for i, o in enumerate(WIDE_OPERATIONS)),
        when(20, assign(field("small", "s"), op("/", field("small", "s"), field("small", "t")))),
        when(21, assign(field("small", "s"), op("%", field("small", "s"), field("small", "t")))),
        when(22, assign(field("wide", "d"), field("wide", "e"))),
        when(23, if_(op("==", field("wide", "d"), field("wide", "e")), assign(C, number(1)))),
        when(24, if_(op("<", A, B), assign(C, op("~", None, A)))),
    ],
    ["key", "wide", "small"],
).replace('["s", 16, false], ["t", 16, false]', '["s", 16, true], ["t", 16, true]')


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from bench(tmp_path_factory, WIDE)


@root
@SOME
@given(
    what=st.integers(0, len(WIDE_OPERATIONS) - 1) | st.integers(20, 24),
    m=st.integers(0, 255),
    xy=st.tuples(words(100), words(100)),
    ab=st.tuples(words(160), words(160)),
    de=st.tuples(words(512), words(512)) | words(512).map(lambda n: (n, n)),
    signed=st.tuples(words(16), words(16)),
)
def test_wide_and_signed_arithmetic(
    wide: Bench,
    what: int,
    m: int,
    xy: tuple[int, int],
    ab: tuple[int, int],
    de: tuple[int, int],
    signed: tuple[int, int],
) -> None:
    numbers = b"".join(n.to_bytes(20, "big") for n in ab) + bytes(32)
    numbers += b"".join(n.to_bytes(64, "big") for n in de) + b"".join(n.to_bytes(2, "big") for n in signed)
    wide.compare(bytes([what, 0, 0, m]) + (xy[0] << 100 | xy[1]).to_bytes(25, "big") + numbers)


@pytest.fixture(scope="module")
def wide_keys() -> Iterator[Bench]:
    for made in bench_of(DATA / "wide.json"):
        made.add("I.one", Rule((Exact(1 << 159 | 3), Exact(1)), "I.mark", (1 << 199 | 5,)))
        made.add("I.two", Rule((Masked(1 << 255, 1 << 255 | 1), Exact(1)), "I.mark", (1 << 198,), priority=2))
        made.add("I.two", Rule((Masked(1, 1), Exact(1)), "I.mark", (6,), priority=1))
        made.add("I.three", Rule((Prefix(1 << 159, 1),), "I.mark", (1 << 130,)))
        made.add("I.three", Rule((Prefix(0, 150),), "I.keep", (9,)))
        yield made


@root
@SOME
@given(
    what=st.integers(0, 1),
    a=st.sampled_from([1 << 159 | 3, 1 << 159 | 4, 3, 7, 1 << 150]),
    b=words(256),
    cell=st.integers(0, 5),
)
def test_wide_keys_parameters_and_registers(wide_keys: Bench, what: int, a: int, b: int, cell: int) -> None:
    """If `a` is 7, an assertion fails while registers are locked. The lock must be released."""
    frame = bytes([what]) + a.to_bytes(20, "big") + b.to_bytes(32, "big") + bytes([cell]) + bytes(40)
    assert bool(wide_keys.compare(frame)) == (a != 7)


# -- indices ---------------------------------------------------------------------------------------------


def element(index: object, place: int) -> dict[str, object]:
    return op("access_field", cell(index), place)


def cell(index: object) -> dict[str, object]:
    return op("dereference_header_stack", named("header_stack", "cells"), index)


AT, TO = field("key", "n"), field("key", "m")
INDICES = program(
    {"k": KEY, "cell": (("v", 8), ("w", 20), ("n", 3), ("more", 1)), "meta_t": (("at", 8),)},
    {"key": "k", "meta": "meta_t", **{f"cells[{i}]": "cell" for i in range(4)}},
    [
        state("start", [extract("regular", "key")], (), [(None, "cells")]),
        state(
            "cells",
            [
                extract("stack", "cells"),
                do("set", field("meta", "at"), op("last_stack_index", None, named("header_stack", "cells"))),
            ],
            [{"type": "stack_field", "value": ["cells", "more"]}],
            [(1, "cells"), (None, None)],
        ),
    ],
    [
        OUT,
        PROBLEM,
        when(1, assign(field("key", "pad"), element(AT, 1))),
        when(2, assign(element(AT, 0), TO)),
        when(3, assign(element(AT, 1), element(TO, 1))),
        when(4, assign(element(op("&", element(AT, 0), number(3)), 0), op("-", TO, AT))),
        when(5, if_(op(">", element(AT, 0), element(TO, 0)), assign(field("key", "pad"), number(1)))),
        when(6, assign(element(field("meta", "at"), 0), number(0xAA))),
        when(7, do("assign_header", cell(AT), cell(TO))),
        when(8, do("remove_header", cell(AT))),
        when(9, do("add_header", cell(AT))),
        when(10, if_(op("valid", None, cell(AT)),
                     assign(field("key", "pad"), op("+", element(AT, 0), element(TO, 1))))),
    ],
    ["key", *(f"cells[{i}]" for i in range(4))],
    stacks={"cells": tuple(f"cells[{i}]" for i in range(4))},
)  # fmt: skip


@pytest.fixture(scope="module")
def indices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    # Fields of 160 bits cannot be written, so the padding is shorter here.
    yield from bench(tmp_path_factory, INDICES.replace('["pad", 160, false]', '["pad", 128, false]'))


def test_an_index_takes_the_element_it_says_and_none_beyond_the_end() -> None:
    model = model_of(INDICES)
    cells = [bytes([i, 0x10 + i, 0, i < 3]) for i in range(4)]

    def run(what: int, i: int, j: int) -> tuple[int, list[bytes]]:
        ((_, out),) = model.run(1, begin(what, i, j) + b"".join(cells))
        return int.from_bytes(out[4:24], "big"), [out[24 + 4 * k : 28 + 4 * k] for k in range(4)]

    assert run(1, 2, 0) == (0x12000, cells)
    assert run(1, 4, 0) == (0, cells)
    assert run(2, 1, 0x77)[1][1] == b"\x77" + cells[1][1:]
    assert run(2, 200, 0x77)[1] == cells
    assert run(6, 0, 0)[1][3] == b"\xaa" + cells[3][1:]


@root
@SOME
@given(
    what=st.integers(0, 10),
    i=st.integers(0, 4) | st.integers(0, 255),
    j=st.integers(0, 4) | st.integers(0, 255),
    cells=st.lists(st.tuples(st.integers(0, 5), st.binary(min_size=2, max_size=2)), max_size=5),
    rest=st.binary(max_size=9),
)
def test_elements_by_computed_indices(
    indices: Bench, what: int, i: int, j: int, cells: list[tuple[int, bytes]], rest: bytes
) -> None:
    body = b"".join(bytes([v]) + w + bytes([k < len(cells) - 1]) for k, (v, w) in enumerate(cells))
    indices.compare(begin(what, i, j)[:20] + body + rest)


@root
def test_what_is_left_by_a_division_is_an_index() -> None:
    """An index x % 13 must be accepted, although the kernel's verifier does not compute its largest value."""
    rest = op("%", field("key", "pad"), number(13))
    text = program(
        {"k": (*KEY[:4], ("pad", 64), ("more", 96)), "meta_t": (("at", 16),)},
        {"key": "k", "meta": "meta_t"},
        [state("start", [extract("regular", "key")])],
        [
            OUT,
            assign(field("meta", "at"), rest),
            do("register_read", field("key", "m"), named("register_array", "r"), field("meta", "at")),
            do("register_write", named("register_array", "r"), field("meta", "at"), field("key", "n")),
            do("count", named("counter_array", "c"), rest),
        ],
        ["key"],
        register_arrays=[{"name": "r", "id": 0, "size": 8192, "bitwidth": 8}],
        counter_arrays=[{"name": "c", "id": 0, "is_direct": False, "size": 64}],
    )
    made = compile_json(text)
    shared = SharedMaps()
    path = Datapath("rest", made, {}, shared)
    path.close_descriptors()
    shared.close()
