"""Programs that the kernel's verifier refuses: the error names the part of the P4 program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from switches.bmv2_json import Primitive
from switches.ebpf.actions import ActionWriter
from switches.ebpf.bpf import RefusedError
from switches.ebpf.compiled import compile_json
from switches.ebpf.datapath import Datapath, SharedMaps
from switches.ebpf.expr import Evaluator
from switches.ebpf.llvm import PTR, const
from switches.ebpf.marks import place_at, places_of
from switches.ebpf.parser_gen import ParserWriter
from tests.switches.switch_kit import DATA


def wild_store(writer: Any) -> None:
    """A store to an address that is none: what a mistake in the compiler could come to."""
    b = writer.asm.b
    b.store(const(64, 1), b.inttoptr(const(64, 4096), PTR))


def load(program: str) -> None:
    shared = SharedMaps()
    try:
        Datapath("refused", compile_json((DATA / f"{program}.json").read_bytes()), {}, shared)
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


def test_debug_information_changes_no_instruction(tmp_path: Path) -> None:
    from switches.bmv2_json import read_program
    from switches.ebpf.elf import section
    from switches.ebpf.program import SECTION, translate
    from switches.ebpf.worker import compile_ir

    text = translate(read_program((DATA / "stacks.json").read_bytes())).ir
    plain = re.sub(r",? !dbg ![0-9]+", "", text)
    assert plain != text
    assert section(compile_ir(text), SECTION) == section(compile_ir(plain), SECTION)


def test_the_last_place_before_an_instruction_counts() -> None:
    places = ((0, "a"), (4, "b"), (9, "c"))
    assert [place_at(places, i) for i in (0, 3, 4, 8, 9, 100)] == ["a", "a", "b", "b", "c", "c"]
    assert place_at((), 3) is None


@pytest.mark.parametrize(
    "damaged", [b"", b"\x9f\xeb\x01\0", bytes(40), b"\x9f\xeb\1\0\x20\0\0\0" + b"\xff" * 60]
)
def test_damaged_debug_information_only_loses_the_place(damaged: bytes) -> None:
    assert places_of(damaged, ("a",)) == ()
