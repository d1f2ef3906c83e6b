"""A program ready to be loaded any number of times."""

from __future__ import annotations

from dataclasses import dataclass

from switches.bmv2_json import Program, read_program
from switches.ebpf.elf import section
from switches.ebpf.marks import SECTION as MARKS
from switches.ebpf.marks import places_of
from switches.ebpf.plan import Plan
from switches.ebpf.program import SECTION, translate
from switches.ebpf.worker import compile_ir


@dataclass(frozen=True, eq=False)  # compared by identity: one compilation, one value
class Compiled:
    """A program, its BPF instructions with marks where map descriptors go, and its run-time plan."""

    program: Program
    plan: Plan
    code: bytes
    places: tuple[tuple[int, str], ...] = ()  # the part of the program that begins at each instruction


def compile_json(data: bytes | str) -> Compiled:
    """Compile BMv2 JSON.

    Raises BadInputError for input that is not such JSON, UnsupportedError for what the target cannot run,
    and CompilerError when LLVM fails.
    """
    program = read_program(data)
    translation = translate(program)
    made = compile_ir(translation.ir)
    places = places_of(section(made, MARKS), translation.marks)
    return Compiled(program, translation.plan, section(made, SECTION), places)
