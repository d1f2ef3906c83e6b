"""Programs with fields of variable length, and with unions, compared with the model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.analysis.header_offsets import endless, follow_parser
from mrclab.switches.ebpf.codegen.translation import translate
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.handmade import assign, do, extract, field, if_, named, number, op, program, state
from tests.support.switch_bench import Bench
from tests.switches.codegen.language import (
    KEY,
    OUT,
    PROBLEM,
    SOME,
    begin,
    bench,
    header,
    model_of,
    root,
    when,
)

pytestmark = pytest.mark.parallel

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


def test_a_field_of_variable_length_is_as_long_as_extract_said() -> None:
    tlv = b"\x07" + b"abc" + b"\x02"
    ((_, out),) = model_of(VARBITS).run(1, begin(4, 24) + tlv + b"\x12\x34\xff\xff" + b"rest")
    assert out[24:34] == tlv + tlv
    assert out[34:36] == b"\x12\x34"
    assert out[38:] == b"rest"
    # csum16 covers the value (6162), the type (6307), and m, which is 0.
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
