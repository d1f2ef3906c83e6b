"""Programs that the kernel's verifier refuses: the error names the part of the P4 program."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mrclab.linux import bpf
from mrclab.linux.bpf import RefusedError
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.actions import ActionWriter
from mrclab.switches.ebpf.codegen.backend.asm import PTR, const, read_source_map
from mrclab.switches.ebpf.codegen.compile import compile_json
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.ebpf.codegen.parser import ParserWriter
from mrclab.switches.ebpf.plan import SourceMap
from mrclab.switches.ebpf.runtime.datapath import Datapath, SharedMaps
from mrclab.switches.v1model.expressions import Primitive
from tests.support.handmade import assign, do, extract, field, if_, named, number, op, program, state
from tests.support.switch_kit import DATA

pytestmark = pytest.mark.parallel


def wild_store(writer: Any) -> None:
    """Make a store to an invalid address, as an error in the compiler might."""
    b = writer.asm.b
    b.store(const(64, 1), b.inttoptr(const(64, 4096), PTR))


def load(name: str) -> None:
    shared = SharedMaps()
    try:
        Datapath("refused", compile_json((DATA / f"{name}.json").read_bytes()), {}, shared)
    finally:
        shared.close()


def line_of(text: str) -> int:
    lines = (DATA / "asserts.p4").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.root
def test_the_action_and_its_line_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    statement = ActionWriter.statement

    def broken(self: ActionWriter, p: Primitive, params: Any = ()) -> None:
        if p.op == "assume":
            wild_store(self)
        statement(self, p, params)

    monkeypatch.setattr(ActionWriter, "statement", broken)
    with pytest.raises(RefusedError) as caught:
        load("asserts")
    where = f"in action I.check (asserts.p4:{line_of('assume(')})"
    assert str(caught.value).startswith(f"the kernel refused the program {where}: Permission denied: ")
    assert "\n" not in str(caught.value)


@pytest.mark.root
def test_the_parser_state_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ParserWriter._state

    def broken(self: ParserWriter, *args: Any) -> None:
        wild_store(self)
        state(self, *args)

    monkeypatch.setattr(ParserWriter, "_state", broken)
    with pytest.raises(RefusedError, match="in parser state start"):
        load("asserts")


@pytest.mark.root
def test_the_condition_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Evaluator.truth

    def broken(self: Evaluator, expr: Any) -> Any:
        wild_store(self.m)
        return truth(self, expr)

    monkeypatch.setattr(Evaluator, "truth", broken)
    line = next(
        number
        for number, text in enumerate((DATA / "queues.p4").read_text().splitlines(), 1)
        if "hdr.report.port == 0" in text
    )
    with pytest.raises(RefusedError, match=re.escape(f"in condition node_2 (queues.p4:{line})")):
        load("queues")


HEADER = {"h": (("a", 512), ("b", 512), ("n", 16), ("m", 16))}
START = state("start", [extract("regular", "h")])


def handmade(statements: Sequence[Any], **more: Any) -> str:
    return program(HEADER, {"h": "h"}, [START], statements, ["h"], **more)


@pytest.mark.slow
@pytest.mark.root
def test_a_loop_with_an_end_that_only_the_frame_knows_is_refused_by_name() -> None:
    n, m = field("h", "n"), field("h", "m")
    text = handmade(
        [
            do("_jump_if_zero", op("b2d", None, op("<", n, m)), number(3)),
            assign(n, op("&", op("+", n, number(1)), number(0xFFFF))),
            do("_jump", number(0)),
        ]
    )
    shared = SharedMaps()
    with pytest.raises(UnsupportedError, match=r"^handmade: a loop in action act .* is not supported"):
        Datapath("endless", compile_json(text), {}, shared)
    shared.close()


@pytest.mark.root
def test_a_loop_of_constant_length_is_loaded() -> None:
    n = field("h", "n")
    step = assign(n, op("&", op("+", n, number(1)), number(0xFFFF)))
    ended = do("_jump_if_zero", op("b2d", None, op("<", n, number(10))), number(4))
    shared = SharedMaps()
    try:
        text = handmade([assign(n, number(0)), ended, step, do("_jump", number(1))])
        Datapath("ends", compile_json(text), {}, shared).close_descriptors()
    finally:
        shared.close()


@pytest.mark.slow
def test_an_action_that_takes_too_much_stack_is_refused_by_name() -> None:
    a, b = field("h", "a"), field("h", "b")
    whole = number((1 << 512) - 1)
    product = op("&", op("*", a, b), whole)
    for _ in range(2):
        product = op("&", op("*", product, op("^", product, a)), whole)
    with pytest.raises(UnsupportedError, match="action act, which takes more than 512 bytes of stack"):
        compile_json(handmade([assign(a, product)]))


@pytest.mark.parametrize("name", ["paths", "firewall"])
def test_a_hash_without_a_line_is_refused_at_the_statement_that_uses_it(name: str) -> None:
    text = json.loads((DATA / f"{name}.json").read_text())
    calculation = next(c for c in text["calculations"] if "source_info" not in c)
    calculation["algo"] = "crc99"
    with pytest.raises(UnsupportedError, match=rf"^{name}\.p4:\d+: hash algorithm crc99"):
        compile_json(json.dumps(text))


@pytest.mark.slow
@pytest.mark.parametrize("bits", [256, 512])
def test_one_product_of_256_bits_is_compiled_and_one_of_512_refused(bits: int) -> None:
    """A product of 512 bits would need more stack than the kernel allows."""
    a, b, part = field("h", "a"), field("h", "b"), number((1 << bits) - 1)
    text = handmade([assign(a, op("&", op("*", op("&", a, part), op("&", b, part)), part))])
    if bits == 512:
        with pytest.raises(UnsupportedError, match="bytes of stack"):
            compile_json(text)
    else:
        assert compile_json(text).code


@pytest.mark.parametrize("bits", [256, 512])
def test_a_saturating_sum_of_512_bits_has_too_wide_an_intermediate_result(bits: int) -> None:
    a, part = field("h", "a"), number((1 << bits) - 1)
    text = handmade([assign(a, op("usat_cast", op("+", op("&", a, part), part), number(bits)))])
    if bits == 512:
        with pytest.raises(UnsupportedError, match="an intermediate result of more than 512 bits"):
            compile_json(text)
    else:
        assert compile_json(text).code


@pytest.mark.slow
def test_a_program_that_jumps_reach_not_over_is_refused_by_name() -> None:
    a, b, n = field("h", "a"), field("h", "b"), field("h", "n")
    product = op("&", op("*", a, b), number((1 << 512) - 1))
    many = if_(op("!=", n, number(0)), *(assign(x, product) for _ in range(5) for x in (a, b)))
    with pytest.raises(UnsupportedError, match=r"so many instructions, most of them for action act"):
        compile_json(handmade([many]))


def test_more_maps_than_a_program_can_name_are_refused_by_name() -> None:
    arrays = [{"name": f"r{i}", "id": i, "size": 4, "bitwidth": 32} for i in range(65)]
    n = field("h", "n")
    reads = [
        do("register_read", n, {"type": "register_array", "value": a["name"]}, number(0)) for a in arrays
    ]
    with pytest.raises(UnsupportedError, match=r"handmade: a program whose tables, .* take \d+ maps is not"):
        compile_json(handmade(reads, register_arrays=arrays))


@pytest.mark.root
@pytest.mark.parametrize("said", ["BPF program is too large", "The sequence of 8193 jumps is too complex."])
def test_tables_to_search_that_are_too_much_are_named(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: bytes, name: str) -> int:
        raise RefusedError("Bad address", said, 1)

    monkeypatch.setattr(bpf, "load_program", refuse)
    with pytest.raises(UnsupportedError, match=r"ternary.p4:20: .*I\.masks \(ternary.p4:20\), I\.ranges"):
        load("ternary")


def test_much_that_is_zero_at_first_is_compiled() -> None:
    wide = {f"h{i}": "h" for i in range(32)}
    moves = [assign(field(name, "a"), field(name, "b")) for name in wide]
    assert compile_json(program(HEADER, wide, [state("start", [])], moves, list(wide))).code


@pytest.mark.root
def test_many_headers_of_frames_that_are_copied_fit_on_the_stack() -> None:
    names = [f"h{i}" for i in range(64)]
    states = [
        state(f"s{i}", [extract("regular", name)], (), [(None, f"s{i + 1}" if i < 63 else None)])
        for i, name in enumerate(names)
    ]
    group = assign(field("standard_metadata", "mcast_grp"), field("h0", "a"))
    text = program({"h": (("a", 16), ("b", 24))}, dict.fromkeys(names, "h"), states, [
        group, *(assign(field(name, "a"), number(7)) for name in names),
    ], names)  # fmt: skip
    shared = SharedMaps()
    try:
        Datapath("many", compile_json(text), {}, shared).close_descriptors()
    finally:
        shared.close()


def test_a_key_that_is_no_field_is_refused_by_name() -> None:
    raw = json.loads((DATA / "match.json").read_text())
    table = next(t for p in raw["pipelines"] for t in p["tables"] if t["key"])
    table["key"][0]["target"] = op("access_field", named("header", "h"), 0)
    table["source_info"] = {"filename": "match.p4", "line": 46}
    with pytest.raises(UnsupportedError, match=r"^match.p4:46: key .* of table .*, which is no field,"):
        compile_json(json.dumps(raw))


def test_a_union_that_is_written_as_a_header_is_refused_by_name() -> None:
    raw = json.loads(handmade([]))
    raw["header_union_types"] = [{"name": "either", "id": 0, "headers": [["one", "h"]]}]
    raw["headers"].append({"name": "u", "id": 9, "header_type": "either", "metadata": True})
    with pytest.raises(UnsupportedError, match="handmade: header union u, which p4c has written"):
        compile_json(json.dumps(raw))


def test_what_has_no_line_is_refused_with_its_file() -> None:
    text = program(HEADER, {"h": "h"}, [state("start", [], (), [(None, "start")])], [], ["h"])
    with pytest.raises(UnsupportedError, match="handmade: a loop of the parser at state start"):
        compile_json(text)


@pytest.mark.slow
def test_debug_information_changes_no_instruction(tmp_path: Path) -> None:
    from mrclab.switches.ebpf.codegen.backend.worker import compile_ir, section
    from mrclab.switches.ebpf.codegen.translation import SECTION, translate
    from mrclab.switches.v1model.bmv2_json import read_program

    text = translate(read_program((DATA / "stacks.json").read_bytes())).ir
    plain = re.sub(r",? !dbg ![0-9]+", "", text)
    assert plain != text
    assert section(compile_ir(text), SECTION) == section(compile_ir(plain), SECTION)


def test_the_last_place_before_an_instruction_counts() -> None:
    places = SourceMap(((0, "a"), (4, "b"), (9, "c")))
    assert [places.place_at(i) for i in (0, 3, 4, 8, 9, 100)] == ["a", "a", "b", "b", "c", "c"]
    assert SourceMap().place_at(3) is None


@pytest.mark.parametrize(
    "damaged", [b"", b"\x9f\xeb\x01\0", bytes(40), b"\x9f\xeb\1\0\x20\0\0\0" + b"\xff" * 60]
)
def test_damaged_debug_information_only_loses_the_place(damaged: bytes) -> None:
    assert read_source_map(damaged, ("a",)) == SourceMap()
