"""The entry point of the compiler: compile BMv2 JSON to a program for the kernel."""

from __future__ import annotations

from collections import Counter

from mrclab.linux.bpf import map_marks
from mrclab.linux.errors import DAMAGE, BadInputError, UnsupportedError, reason
from mrclab.switches.ebpf.codegen.backend.asm import SECTION as MARKS
from mrclab.switches.ebpf.codegen.backend.asm import largest, read_source_map
from mrclab.switches.ebpf.codegen.backend.worker import (
    LIMIT_BYTES,
    TooLargeError,
    beyond,
    compile_ir,
    section,
)
from mrclab.switches.ebpf.codegen.translation import SECTION, translate
from mrclab.switches.ebpf.plan import Compiled, split_place
from mrclab.switches.v1model.bmv2_json import read_program
from mrclab.switches.v1model.program import Program

_DAMAGE = (*DAMAGE, AssertionError)
"""Exceptions that the compiler may raise if the JSON refers to a missing part. p4c writes no such JSON."""
MAPS = 64  # maximum number of maps of a program (MAX_USED_MAPS in the kernel)


def compile_json(data: bytes | str) -> Compiled:
    """Compile BMv2 JSON.

    Raise BadInputError if the input is not BMv2 JSON, UnsupportedError if the target cannot run a construct
    of the program, and CompilerError if LLVM fails.
    """
    program = read_program(data)
    try:
        return _compile(program)
    except UnsupportedError as exc:
        if exc.where:
            raise
        # p4c gives no line number for parser states and some other parts: name only the file.
        raise UnsupportedError(exc.construct, program.file) from exc
    except _DAMAGE as exc:
        raise BadInputError(f"the program contradicts itself: {reason(exc)}") from exc


def _compile(program: Program) -> Compiled:
    translation = translate(program)
    try:
        made = compile_ir(translation.ir)
    except TooLargeError as exc:
        what, where = split_place(largest(translation.ir, translation.places))
        construct = f"a program of so many instructions, most of them for {what},"
        raise UnsupportedError(construct, where) from exc
    source_map = read_source_map(section(made, MARKS), translation.places)
    code = section(made, SECTION)
    maps = len({number for _, number in map_marks(code)})
    if maps > MAPS:
        raise UnsupportedError(f"a program whose tables, counters, meters and registers take {maps} maps")
    if deep := beyond(code):
        # Name the place with the most instructions that access too much stack: it is probably the cause.
        ((place, _),) = Counter(source_map.place_at(i) for i in deep).most_common(1)
        what, where = split_place(place or "the program")
        raise UnsupportedError(f"{what}, which takes more than {LIMIT_BYTES} bytes of stack,", where)
    return Compiled(program, translation.plan, code, source_map)
