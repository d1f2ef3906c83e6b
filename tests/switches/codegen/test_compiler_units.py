"""Separate tests of the parts of the compiler. They need no kernel."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.linux.bpf import relocate
from mrclab.linux.bpf_types import MAP_MARK
from mrclab.linux.errors import BadInputError, SwitchError, UnsupportedError
from mrclab.switches.ebpf.codegen.analysis import ranges
from mrclab.switches.ebpf.codegen.analysis.ranges import Interval, interval
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import make_layout, slot_size
from mrclab.switches.ebpf.codegen.backend.worker import CompilerError, compile_ir, section
from mrclab.switches.ebpf.codegen.translation import SECTION, translate
from mrclab.switches.ebpf.p4runtime.programs import json_of
from mrclab.switches.ebpf.plan import counter_chunk, counter_map
from mrclab.switches.v1model.bmv2_json import read_program
from mrclab.switches.v1model.expressions import Const, FieldRef, Op, Param
from tests.support.switch_kit import DATA, JSON


def raw(name: str = "arith") -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return result


def test_the_reader_keeps_places_in_the_source() -> None:
    program = read_program(JSON.read_bytes())
    forward = next(a for a in program.actions.values() if a.name.endswith(".forward"))
    source = forward.primitives[0].source
    assert source.filename.endswith("usid.p4")
    assert str(source) == f"{source.filename}:{source.line}"
    assert program.headers["ipv6"].field_by_name["dst_addr"].offset == 192
    counter = next(c for c in program.counters.values() if c.table == "MrcIngress.micro_segment.my_sid")
    assert counter is not None
    assert counter.name == "MrcIngress.micro_segment.my_sid_hits"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"header_types": 3}', "\x00\x01"])
def test_what_is_not_bmv2_json_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_program(text)
    assert "\n" not in str(caught.value)


def add_primitive(op: str, *args: Any) -> dict[str, Any]:
    program = raw()
    source = {"filename": "prog.p4", "line": 42, "column": 8, "source_fragment": "..."}
    program["actions"][0]["primitives"].append({"op": op, "parameters": list(args), "source_info": source})
    return program


BY_400 = {"type": "hexstr", "value": "0x190"}
FIELD = {"type": "field", "value": ["in_", "w"]}


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (add_primitive("resubmit", FIELD), "prog.p4:42: a field list that is not declared"),
        (add_primitive("resize", FIELD), "prog.p4:42: primitive 'resize'"),
        (
            add_primitive(
                "assign",
                FIELD,
                {"type": "expression", "value": {"op": ">>", "left": {
                    "type": "expression", "value": {"op": "<<", "left": FIELD, "right": BY_400}},
                    "right": {"type": "hexstr", "value": "0x1"}}},
            ),
            "prog.p4:42: an intermediate result of more than 512 bits",
        ),
    ],
)  # fmt: skip
def test_what_the_target_cannot_do_is_refused_by_name_and_line(program: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        translate(read_program(json.dumps(program)))
    assert message in str(caught.value)
    assert str(caught.value).endswith("is not supported by this target")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "meter_arrays",
            {"name": "m", "type": "bytes", "size": 2, "rate_count": 1},
            "meter m with 1 rates",
        ),
        ("register_arrays", {"name": "r", "size": 4, "bitwidth": 600}, "register r of 600 bits"),
        (
            "parse_vsets",
            {"name": "v", "compressed_bitwidth": 8, "max_size": 300},
            "parser value set v of more",
        ),
        ("checksums", {"name": "c"}, "checksum c"),
    ],
)
def test_externs_are_refused(key: str, value: dict[str, Any], message: str) -> None:
    program = raw()
    program[key] = [
        {**value, "source_info": {"filename": "x.p4", "line": 3, "column": 1, "source_fragment": ""}}
    ]
    with pytest.raises(UnsupportedError, match=f"x.p4:3: {message}"):
        translate(read_program(json.dumps(program)))


def test_a_translation_is_a_value_that_travels() -> None:
    translation = translate(read_program(JSON.read_bytes()))
    assert pickle.loads(pickle.dumps(translation)) == translation
    assert 'section "classifier"' in translation.ir


@pytest.mark.slow
def test_compiling_gives_bpf_with_a_mark_for_each_map() -> None:
    translation = translate(read_program(JSON.read_bytes()))
    code = section(compile_ir(translation.ir), SECTION)
    assert len(code) % 8 == 0
    fds = list(range(1000, 1000 + len(translation.plan.maps)))
    linked = relocate(code, fds)
    loads = [i for i in range(0, len(code), 8) if code[i] == 0x18 and code[i + 1] >> 4]
    assert {int.from_bytes(code[i + 4 : i + 8], "little") - MAP_MARK for i in loads} == set(range(len(fds)))
    assert {int.from_bytes(linked[i + 4 : i + 8], "little") for i in loads} == set(fds)


def test_an_error_of_llvm_does_not_end_this_process() -> None:
    with pytest.raises(CompilerError, match="LLVM could not compile"):
        compile_ir("this is not LLVM IR")
    multiply = """target triple = "bpfel"
    define i32 @switch(ptr %p) section "classifier" {
      %a = load i128, ptr %p
      %b = udiv i128 %a, 3
      store i128 %b, ptr %p
      ret i32 0
    }"""
    with pytest.raises(CompilerError, match="not supported"):
        compile_ir(multiply)


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(80), bytes(64)])
def test_damaged_objects_are_errors(data: bytes) -> None:
    with pytest.raises(SwitchError):
        section(data, "classifier")


def test_slots_are_aligned_and_apart() -> None:
    layout = make_layout(read_program((DATA / "match.json").read_bytes()), 40)
    places = sorted((s.offset, s.size) for s in layout.slots.values())
    assert all(offset % min(size, 8) == 0 for offset, size in places)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(places))
    assert places[-1][0] + places[-1][1] <= layout.zeroed <= layout.key < layout.buffer < layout.size


@given(width=st.integers(1, 128))
def test_a_slot_is_the_smallest_power_of_two(width: int) -> None:
    size = slot_size(width)
    assert size * 8 >= width
    assert size == 1 or size * 4 < width


@given(cells=st.integers(1, 200_000))
def test_counter_maps_have_room(cells: int) -> None:
    spec = counter_map("c", cells)
    assert spec.max_entries * counter_chunk(cells) >= cells
    assert spec.value_size <= 32768


NAMES = {0: 8, 1: 9, 2: 32}
LEAVES = st.one_of(
    st.integers(0, 300).map(Const),
    st.sampled_from([Param(0), Param(1), Param(2)]),
    st.just(FieldRef("h", "s")),
)


def trees(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "|", "^"]), inner, inner).map(lambda t: Op(*t)),
        st.tuples(st.just("&"), inner, st.integers(0, 500).map(Const)).map(lambda t: Op(*t)),
        st.tuples(st.sampled_from(["<<", ">>"]), inner, st.integers(0, 12).map(Const)).map(lambda t: Op(*t)),
        inner.map(lambda e: Op("~", None, e)),
        st.tuples(st.sampled_from(["two_comp_mod", "usat_cast", "sat_cast"]), inner, st.integers(2, 40)).map(
            lambda t: Op(t[0], t[1], Const(t[2]))
        ),
    )


@given(
    expr=st.recursive(LEAVES, trees, max_leaves=8),
    values=st.tuples(st.integers(0, 255), st.integers(0, 511), st.integers(0, (1 << 32) - 1)),
    field=st.integers(-(1 << 15), (1 << 15) - 1),
)
def test_a_value_never_leaves_its_interval(expr: Any, values: tuple[int, ...], field: int) -> None:
    from mrclab.switches.p4_model.statements import NUMERIC

    def leaf(e: Any) -> Interval:
        return ranges.signed(16) if isinstance(e, FieldRef) else ranges.unsigned(NAMES[e.index])

    def value(e: Any) -> int:
        match e:
            case Const(n):
                return n
            case Param(i):
                return values[i]
            case FieldRef():
                return field
            case Op(op="~", right=right):
                return ~value(right)
            case Op(op=op, left=left, right=right):
                return NUMERIC[op](value(left), value(right))
        raise AssertionError(e)

    span = interval(expr, leaf)
    number = value(expr)
    assert span.low <= number <= span.high
    assert -(1 << span.bits) <= number < 1 << span.bits


def test_device_configs_with_and_without_the_old_wrapper() -> None:
    text = b'{"a": 1}' + b" " * 300
    assert json_of(text) == text
    # field 1 is a varint, field 3 has the JSON
    wrapped = b"\x08\x01\x1a" + bytes([len(text) & 0x7F | 0x80, len(text) >> 7]) + text
    assert json_of(wrapped) == text
    for junk in (b"", b"\xff\xff", b"\x08", b"\x1a\x03abc"):
        with pytest.raises(BadInputError):
            json_of(junk)
