"""Value sets, fields of variable length, unions and computed indices, against the interpreter.

The programs are written by hand in the format of BMv2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4i, p4r
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linux.errors import UnsupportedError
from switches.ebpf.codegen.analysis.header_offsets import endless, follow_parser
from switches.ebpf.codegen.compile import compile_json
from switches.ebpf.codegen.translation import translate
from switches.ebpf.runtime.datapath import Datapath, SharedMaps
from switches.ebpf.runtime.value_sets import Ends, ValueSetState, encode_members
from switches.v1model.bmv2_json import read_program
from tests.support.handmade import assign, do, extract, field, if_, named, number, op, program, state
from tests.support.p4_model import Between, Exact, Interpreter, Key, Masked, Prefix, Rule
from tests.support.switch_kit import DATA, Namespace, error_codes, receive, three_ports
from tests.switches.codegen.test_differential import Bench, bench_of, words

Code = grpc.StatusCode
root = pytest.mark.root
SOME = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
OUT = assign(field("standard_metadata", "egress_spec"), number(2))
PROBLEM = assign(field("key", "problem"), field("standard_metadata", "parser_error"))
# The kernel takes no short frames: every one begins with this much.
KEY = (("what", 8), ("n", 8), ("problem", 8), ("m", 8), ("pad", 160))


def begin(what: int, n: int = 0, m: int = 0) -> bytes:
    return bytes([what, n, 0, m]) + bytes(20)


def when(what: int, *then: object) -> list[object]:
    return if_(op("==", field("key", "what"), number(what)), *then)


def header(name: str) -> dict[str, object]:
    return named("header", name)


# -- fields of variable length ---------------------------------------------------------------------------

TLV = (("type", 8), ("value", "*"), ("end", 8))
LENGTH = op("&", op("-", field("key", "n"), number(0)), number(0xFFFFFFFF))
VARBITS = program(
    {"k": KEY, "tlv": TLV, "l": (("x", 16), ("sum", 16))},
    {"key": "k", "spare": "tlv", "t0": "tlv", "t1": "tlv", "t2": "tlv", "last": "l"},
    [
        state("start", [extract("regular", "key")], [field("key", "what")], [(3, "skip"), (None, "tlv")]),
        state(
            "tlv",
            [do("extract_VL", {"type": "stack", "value": "tlvs"}, LENGTH)],
            [{"type": "stack_field", "value": ["tlvs", "end"]}],
            [(1, "tlv"), (2, "last"), (None, None)],
        ),
        state("skip", [do("advance", op("+", field("key", "n"), number(0)))], (), [(None, "last")]),
        state("last", [extract("regular", "last")]),
    ],
    [
        OUT,
        PROBLEM,
        when(4, do("assign_header", header("spare"), header("t0"))),
        when(5, do("pop", named("header_stack", "tlvs"), number(1))),
        when(
            6,
            do("push", named("header_stack", "tlvs"), number(1)),
            do("assign_header", header("t0"), header("t1")),
        ),
        when(7, do("assign_VL", field("t0", "value"), field("t1", "value"))),
        when(8, do("remove_header", header("t0"))),
        when(
            9,
            do("add_header", header("spare")),
            do("assign_VL", field("spare", "value"), field("t1", "value")),
        ),
        when(
            10,
            if_(op("==", field("t0", "value"), field("t1", "value")), assign(field("key", "m"), number(1))),
        ),
        when(11, if_(op("!=", header("t0"), header("t1")), assign(field("key", "m"), number(2)))),
        when(12, do("add_header", header("last"))),
    ],
    ["key", "spare", "t0", "t1", "t2", "last"],
    varbits={"tlv": 11},
    stacks={"tlvs": ("t0", "t1", "t2")},
    calculations=[
        {
            "name": "sum",
            "id": 0,
            "algo": "csum16",
            "input": [field("t0", "value"), field("t0", "type"), field("key", "m"), field("t1", "value")],
        }
    ],
    checksums=[
        {
            "name": "sum",
            "id": 0,
            "type": "generic",
            "target": ["last", "sum"],
            "calculation": "sum",
            "verify": False,
            "update": True,
        }
    ],
)


def model_of(text: str) -> Interpreter:
    return Interpreter(read_program(text))


def test_a_field_of_variable_length_is_as_long_as_extract_said() -> None:
    tlv = b"\x07" + b"abc" + b"\x02"
    ((_, out),) = model_of(VARBITS).run(1, begin(4, 24) + tlv + b"\x12\x34\xff\xff" + b"rest")
    assert out[24:34] == tlv + tlv
    assert out[34:36] == b"\x12\x34"
    assert out[38:] == b"rest"
    # csum16 of the value and the type: 6162, 6307; then m, 0.
    assert out[36:38] == (0xFFFF - (0x6162 + 0x6307)).to_bytes(2, "big")


@pytest.mark.parametrize(
    ("n", "body", "problem"),
    [(12, bytes(40), 6), (80, bytes(40), 4), (72, bytes(10), 1), (8, b"\0\0\1" * 4, 3), (72, bytes(11), 0)],
)
def test_lengths_that_cannot_be_stop_the_parser(n: int, body: bytes, problem: int) -> None:
    ((_, out),) = model_of(VARBITS).run(1, begin(0, n) + body)
    assert out[2] == problem
    assert out[24:] == body


@pytest.fixture(scope="module")
def varbits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from bench(tmp_path_factory, VARBITS)


def bench(factory: pytest.TempPathFactory, text: str) -> Iterator[Bench]:
    path = factory.mktemp("program") / "program.json"
    path.write_text(text)
    yield from bench_of(path)


@root
@SOME
@given(
    what=st.integers(0, 12),
    n=st.sampled_from([0, 8, 16, 24, 40, 64, 72, 72, 80, 7, 248]),
    m=st.integers(0, 255),
    alike=st.booleans(),
    tlvs=st.lists(
        st.tuples(st.binary(min_size=33, max_size=33), st.sampled_from([0, 1, 1, 2, 2])), max_size=5
    ),
    rest=st.binary(max_size=30),
)
def test_fields_of_variable_length(
    varbits: Bench, what: int, n: int, m: int, alike: bool, tlvs: list[tuple[bytes, int]], rest: bytes
) -> None:
    tlvs = [tlvs[0]] * len(tlvs) if alike and tlvs else tlvs
    body = b"".join(data[: 1 + n // 8] + bytes([end]) for data, end in tlvs)
    varbits.compare(begin(what, n, m) + body + rest)


def test_what_of_variable_length_is_refused() -> None:
    def refused(text: str) -> str:
        with pytest.raises(UnsupportedError) as caught:
            translate(read_program(text))
        return str(caught.value)

    def tried(
        fields: tuple[tuple[str, int | str], ...], *statements: object, algorithm: str = "csum16"
    ) -> str:
        return program(
            {"k": KEY, "v": fields},
            {"key": "k", "v": "v", "w": "v"},
            [
                state("start", [extract("regular", "key"), do("extract_VL", {"type": "regular", "value": "v"},
                                                             field("key", "n"))])
            ],
            [OUT, *statements],
            ["key", "v"],
            varbits={"v": 9},
            calculations=[{"name": "c", "id": 0, "algo": algorithm, "input": [field("v", "x")]}],
            checksums=[{"name": "c", "id": 0, "type": "generic", "target": ["key", "m"], "calculation": "c",
                        "verify": False, "update": True}],
        )  # fmt: skip

    odd = (("a", 4), ("x", "*"), ("b", 4))
    assert "does not begin with a byte" in refused(tried(odd))
    even = (("a", 8), ("x", "*"))
    assert "a hash other than csum16 over variable-length field v.x" in refused(
        tried(even, algorithm="crc16")
    )
    assert "v.x as a number" in refused(tried(even, assign(field("key", "m"), field("v", "x"))))


# -- wide numbers ---------------------------------------------------------------------------------------

A, B, C = field("wide", "a"), field("wide", "b"), field("wide", "c")
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
    """A frame with 7 for `a` fails an assertion under the lock of registers, and is lost; the lock is not."""
    frame = bytes([what]) + a.to_bytes(20, "big") + b.to_bytes(32, "big") + bytes([cell]) + bytes(40)
    assert bool(wide_keys.compare(frame)) == (a != 7)


# -- unions ----------------------------------------------------------------------------------------------

ALL_UNIONS = ("body", "other", "us[0]", "us[1]", "us[2]")
UNIONS = program(
    {"k": KEY, "s": (("s", 16),), "b": (("l", 32), ("more", 8))},
    {
        "key": "k",
        "seen": "s",
        **{f"{u}.{h}": h for u in ALL_UNIONS for h in "sb"},
    },
    [
        state(
            "start",
            [extract("regular", "key")],
            [field("key", "n")],
            [(1, "small"), (2, "big"), (3, "both"), (4, "two"), (5, "stack"), (None, None)],
        ),
        state("small", [extract("regular", "body.s")]),
        state("big", [extract("regular", "body.b")]),
        state("both", [extract("regular", "body.s"), extract("regular", "body.b")]),
        state("two", [extract("regular", "body.s"), extract("regular", "other.s")]),
        state(
            "stack",
            [],
            [{"type": "lookahead", "value": [0, 8]}],
            [(1, "stack_small"), (2, "stack_big"), (None, None)],
        ),
        state(
            "stack_small",
            [extract("union_stack", ["us", "s"])],
            [{"type": "union_stack_field", "value": ["us", "s", "s"]}],
            [(0x0100, None), (None, "stack")],
        ),
        state(
            "stack_big",
            [extract("union_stack", ["us", "b"])],
            [{"type": "union_stack_field", "value": ["us", "b", "more"]}],
            [(0, None), (None, "stack")],
        ),
    ],
    [
        OUT,
        PROBLEM,
        when(1, do("add_header", header("body.b")), assign(field("body.b", "l"), number(0x01020304))),
        when(2, do("add_header", header("body.s")), assign(field("body.s", "s"), number(0xBEEF))),
        when(3, do("remove_header", header("body.s"))),
        when(4, do("assign_union", named("header_union", "other"), named("header_union", "body"))),
        when(5, do("assign_header", header("other.s"), header("body.s"))),
        when(6, if_(op("==", named("header_union", "body"), named("header_union", "other")),
                    assign(field("key", "m"), number(66)))),
        when(7, if_(op("!=", header("body.s"), header("other.s")), assign(field("key", "m"), number(77)))),
        when(8, do("pop", named("header_union_stack", "us"), number(1))),
        when(9, do("push", named("header_union_stack", "us"), number(1)),
                do("assign_header", header("us[0].s"), header("us[1].s"))),
        when(10, do("assign_union", named("header_union", "us[1]"), named("header_union", "us[0]"))),
        if_(op("valid_union", None, named("header_union", "body")),
            do("add_header", header("seen")), assign(field("seen", "s"), field("body.s", "s"))),
    ],
    ["key", "seen", *(f"{u}.{h}" for u in ALL_UNIONS for h in "sb")],
    union_types={"u": (("s", "s"), ("b", "b"))},
    unions={u: ("u", (f"{u}.s", f"{u}.b")) for u in ALL_UNIONS},
    union_stacks={"us": ("u", ("us[0]", "us[1]", "us[2]"))},
)  # fmt: skip


def test_one_header_of_a_union_is_valid_at_a_time() -> None:
    model = model_of(UNIONS)

    def rest(what: int, n: int, body: bytes) -> bytes:
        ((_, out),) = model.run(1, begin(what, n) + body)
        return out[24:]

    small, big = b"\xaa\xbb", b"\x01\x02\x03\x04\x05"
    assert rest(0, 1, small + b"tail") == small + small + b"tail"
    assert rest(1, 1, small + b"tail")[2:] == b"\x01\x02\x03\x04\x00tail"
    assert rest(2, 2, big + b"tail")[2:] == b"\xbe\xeftail"
    assert rest(0, 3, small + big + b"tail")[2:] == big + b"tail"
    assert rest(4, 1, small + b"tail")[2:] == small + small + b"tail"
    assert rest(8, 5, b"\x02\0\0\0\x01" + b"\x01\x00" + b"tail") == b"\x01\x00tail"


@pytest.fixture(scope="module")
def unions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from bench(tmp_path_factory, UNIONS)


@root
@SOME
@given(
    what=st.integers(0, 10),
    n=st.integers(0, 5),
    parts=st.lists(
        st.sampled_from(
            [b"\x01\x00", b"\x01\x07", b"\x02\x00\x00\x00\x00", b"\x02\x00\x00\x01\x09", b"\x09"]
        ),
        max_size=5,
    ),
    rest=st.binary(max_size=12),
)
def test_unions_come_and_go(unions: Bench, what: int, n: int, parts: list[bytes], rest: bytes) -> None:
    unions.compare(begin(what, n) + b"".join(parts) + rest)


# -- many positions --------------------------------------------------------------------------------------

SIZES = (1, 2, 4, 7, 11, 16)
DEPTH = 7
KINDS = [f"o{size}" for size in SIZES]
OPTIONS = program(
    {
        "k": KEY,
        "end": (("x", 16),),
        **{f"o{s}": (("kind", 8), ("rest", 8 * (s - 1)))[: 1 + (s > 1)] for s in SIZES},
    },
    {"key": "k", "last": "end", **{f"os[{i}].{k}": k for i in range(DEPTH) for k in KINDS}},
    [
        state("start", [extract("regular", "key")], (), [(None, "next")]),
        state(
            "next",
            [],
            [{"type": "lookahead", "value": [0, 8]}],
            [*((s, f"take{s}") for s in SIZES), (99, "last"), (None, None)],
        ),
        *(state(f"take{s}", [extract("union_stack", ["os", f"o{s}"])], (), [(None, "next")]) for s in SIZES),
        state("last", [extract("regular", "last")]),
    ],
    [
        OUT,
        PROBLEM,
        when(1, do("pop", named("header_union_stack", "os"), number(2))),
        when(2, assign(field("os[1].o2", "rest"), number(0xEE)), assign(field("last", "x"), number(0x6300))),
    ],
    ["key", *(f"os[{i}].{k}" for i in range(DEPTH) for k in KINDS), "last"],
    union_types={"u": [(k, k) for k in KINDS]},
    unions={f"os[{i}]": ("u", [f"os[{i}].{k}" for k in KINDS]) for i in range(DEPTH)},
    union_stacks={"os": ("u", [f"os[{i}]" for i in range(DEPTH)])},
)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from bench(tmp_path_factory, OPTIONS)


def test_a_parser_may_have_more_positions_than_states_are_written_for() -> None:
    source = read_program(OPTIONS)
    assert follow_parser(source, 256, folded=False) is None
    steps = follow_parser(source, 256, folded=True)
    assert steps is not None
    assert endless(steps) is None


def test_a_loop_of_the_parser_without_an_end_is_refused() -> None:
    text = program(
        {"k": KEY},
        {"key": "k"},
        [
            state("start", [extract("regular", "key")], (), [(None, "again")]),
            state("again", [do("advance", number(8))], [{"type": "lookahead", "value": [0, 8]}],
                  [(0, None), (None, "again")]),
        ],
        [OUT],
        ["key"],
    )  # fmt: skip
    with pytest.raises(
        UnsupportedError, match="a loop of the parser at state again that no header stack ends"
    ):
        translate(read_program(text))


@root
@SOME
@given(
    what=st.integers(0, 2),
    sizes=st.lists(st.sampled_from(SIZES), max_size=8),
    end=st.sampled_from([99, 99, 0]),
    rest=st.integers(0, 40),
)
def test_options_of_any_size(options: Bench, what: int, sizes: list[int], end: int, rest: int) -> None:
    body = b"".join(bytes([s]) + bytes(range(1, s)) for s in sizes) + bytes([end])
    options.compare(begin(what) + body + bytes(rest))


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


# -- value sets ------------------------------------------------------------------------------------------

VALUE_SETS = program(
    {"k": (*KEY[:4], ("type", 16), ("c", 9), ("d", 7), ("pad", 128)), "note": (("way", 8),)},
    {"key": "k", "note": "note"},
    [
        state(
            "start", [extract("regular", "key")], [field("key", "type")],
            [("types", "special"), (0x0800, None), (None, "look")],
        ),
        state("special", [extract("regular", "note")]),
        state("look", [], [field("key", "n"), field("key", "c"), field("key", "d")],
              [("triples", "special"), (None, None)]),
    ],
    [OUT, PROBLEM, if_(op("valid", None, header("note")), assign(field("key", "m"), number(9)))],
    ["key", "note"],
    parse_vsets=[
        {"name": "types", "id": 0, "compressed_bitwidth": 16, "max_size": 4},
        {"name": "triples", "id": 1, "compressed_bitwidth": 24, "max_size": 8},
    ],
)  # fmt: skip


@pytest.fixture(scope="module")
def value_sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from bench(tmp_path_factory, VALUE_SETS)


def ends(key: Key, widths: tuple[int, ...]) -> tuple[Ends, ...]:
    out = []
    for m, width in zip(key, widths, strict=True):
        match m:
            case Between(low, high):
                out.append(Ends((1 << width) - 1, low, high))
            case Masked(value, mask):
                out.append(Ends(mask, value & mask, value & mask))
            case Exact(value):
                out.append(Ends((1 << width) - 1, value, value))
    return tuple(out)


SMALL = st.integers(0, 6)
FIELD = st.one_of(
    SMALL.map(Exact),
    st.tuples(SMALL, st.sampled_from([0, 1, 6, 7])).map(lambda p: Masked(p[0], p[1])),
    st.tuples(SMALL, SMALL).map(lambda p: Between(min(p), max(p))),
)


@root
@SOME
@given(
    types=st.lists(st.integers(0x0800, 0x0803), max_size=4, unique=True),
    triples=st.lists(st.tuples(FIELD, FIELD, FIELD), max_size=8, unique=True),
    frames=st.lists(st.tuples(st.integers(0x0800, 0x0804), SMALL, SMALL, SMALL), min_size=1, max_size=8),
)
def test_value_sets_choose_the_next_state(
    value_sets: Bench,
    types: list[int],
    triples: list[tuple[Exact | Masked | Between, ...]],
    frames: list[tuple[int, int, int, int]],
) -> None:
    held = {"types": [(Exact(t),) for t in types], "triples": triples}
    for name, widths in (("types", (16,)), ("triples", (8, 9, 7))):
        value_sets.model.value_sets[name] = held[name]
        members = tuple(ends(m, widths) for m in held[name])
        value_sets.do(lambda tx, n=name, m=members: value_sets.running.value_sets[n].set(m, tx))  # type: ignore[misc]
    for kind, n, c, d in frames:
        fixed = bytes([0, n, 0, 0]) + kind.to_bytes(2, "big") + (c << 7 | d).to_bytes(2, "big")
        value_sets.compare(fixed + bytes(16) + b"\x55rest")


def test_an_empty_value_set_is_no_value_and_a_large_one_is_refused() -> None:
    plan = translate(read_program(VALUE_SETS)).plan
    assert encode_members(plan.value_sets["types"], ()) is None
    assert ValueSetState(plan.value_sets["types"]).members == ()
    large = VALUE_SETS.replace('"max_size": 8', '"max_size": 257')
    with pytest.raises(UnsupportedError, match="parser value set triples of more than 256 members"):
        translate(read_program(large))


INFO = text_format.Parse(
    """
    pkg_info { arch: "v1model" }
    value_sets {
      preamble { id: 0x03000001 name: "types" }
      match { id: 1 bitwidth: 16 match_type: EXACT }
      size: 4
    }
    value_sets {
      preamble { id: 0x03000002 name: "triples" }
      match { id: 1 name: "n" bitwidth: 8 match_type: TERNARY }
      match { id: 2 name: "c" bitwidth: 9 match_type: RANGE }
      match { id: 3 name: "d" bitwidth: 7 match_type: LPM }
      size: 8
    }
    """,
    p4i.P4Info(),
)


def members(number: int, *matches: str) -> p4r.Entity:
    """A value set, its members in the text form of their matches."""
    out = p4r.Entity()
    out.value_set_entry.value_set_id = number
    for text in matches:
        text_format.Parse(text, out.value_set_entry.members.add())
    return out


def modified(entity: p4r.Entity, kind: p4r.Update.Type.ValueType = p4r.Update.MODIFY) -> p4r.Update:
    return p4r.Update(type=kind, entity=entity)


def exact(value: str) -> str:
    return f'match {{ field_id: 1 exact {{ value: "{value}" }} }}'


@root
def test_value_sets_by_p4runtime(namespace: Namespace, tmp_path: Path) -> None:
    types, triples = 0x03000001, 0x03000002
    ternary = 'match { field_id: 1 ternary { value: "\\x02" mask: "\\x06" } }'
    span = 'match { field_id: 2 range { low: "\\x00" high: "\\x03" } }'
    prefix = 'match { field_id: 3 lpm { value: "\\x40" prefix_len: 1 } }'
    with three_ports("ebpf", namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline(VALUE_SETS.encode(), INFO)
        out, back = namespace.packet_socket("h1"), namespace.packet_socket("h2")

        def taken(kind: int, n: int = 0, c: int = 0, d: int = 0) -> bool:
            fixed = bytes([0, n, 0, 0]) + kind.to_bytes(2, "big") + (c << 7 | d).to_bytes(2, "big")
            out.send(fixed + bytes(56))
            (answer,) = receive(back, 1)
            return answer[3] == 9

        assert client.read(members(0)) == [members(types), members(triples)]
        assert not taken(0x0801)
        two = members(types, exact("\\x08\\x01"), exact("\\x08\\x02"))
        mixed = members(triples, f"{ternary} {span}", prefix)
        client.write(modified(two), modified(mixed))
        assert client.read(members(types)) == [two]
        assert client.read(members(0)) == [two, mixed]
        assert taken(0x0801)
        assert not taken(0x0800)
        assert taken(0x0900, n=3, c=2)
        assert not taken(0x0900, n=3, c=4)
        assert taken(0x0900, n=9, c=400, d=0x41)
        wrong = [
            (modified(two, p4r.Update.INSERT), Code.INVALID_ARGUMENT),
            (modified(two, p4r.Update.DELETE), Code.INVALID_ARGUMENT),
            (modified(members(3)), Code.NOT_FOUND),
            (modified(members(types, exact("\\x01"), exact("\\x01"))), Code.ALREADY_EXISTS),
            (modified(members(types, *(exact(f"\\x0{i}") for i in range(5)))), Code.RESOURCE_EXHAUSTED),
            (modified(members(types, exact("\\x01\\x00\\x00"))), Code.OUT_OF_RANGE),
            (modified(members(types, "")), Code.INVALID_ARGUMENT),
            (modified(members(triples, exact("\\x01"))), Code.INVALID_ARGUMENT),
            (
                modified(members(triples, 'match { field_id: 1 ternary { value: "\\x03" mask: "\\x06" } }')),
                Code.INVALID_ARGUMENT,
            ),
        ]
        with pytest.raises(grpc.RpcError) as caught:
            client.write(*(update for update, _ in wrong))
        assert error_codes(caught.value) == [code for _, code in wrong]
        assert client.read(members(0)) == [two, mixed]
        client.write(modified(members(types)))
        assert client.read(members(types)) == [members(types)]
        assert not taken(0x0801)
        for s in (out, back):
            s.close()


@root
def test_what_is_left_by_a_division_is_an_index() -> None:
    """The kernel's verifier does not know how large it can be."""
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
