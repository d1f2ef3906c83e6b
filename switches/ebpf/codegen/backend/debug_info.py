"""Debug information, which says which part of the P4 program each instruction comes from.

While code is written, each instruction gets the number of a place as its line of debug information. LLVM
keeps the lines through all of its passes and writes into the section `.BTF.ext` which instruction came from
which line (Documentation/bpf/btf.rst of the kernel). When the verifier refuses an instruction, its place goes
into the error message.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from mrclab.switches.ebpf.plan.source_map import SourceMap
from mrclab.switches.v1model.expressions import Source

SECTION = ".BTF.ext"
_MAGIC = 0xEB9F
_INSTRUCTION = 8
_LOCATION = re.compile(r"!(\d+) = !DILocation\([^)]*\bline: (\d+)")
_MARKED = re.compile(r"!dbg !(\d+)")


class DebugInfo:
    """The debug information of one function; `names` are its places, in the order of their first use."""

    def __init__(self, module: Any, function: Any) -> None:
        self.names: list[str] = []
        self._module = module
        self._known: dict[str, Any] = {}
        file = module.add_debug_info("DIFile", {"filename": "p4", "directory": ""})
        unit = {
            "language": ir.DIToken("DW_LANG_C99"),
            "file": file,
            "producer": "simple_switch_ebpf",
            "runtimeVersion": 0,
            "isOptimized": True,
            "emissionKind": ir.DIToken("FullDebug"),
        }
        type_ = module.add_debug_info("DISubroutineType", {"types": module.add_metadata([])})
        compile_unit = module.add_debug_info("DICompileUnit", unit, is_distinct=True)
        scope = {"name": function.name, "file": file, "line": 1, "type": type_, "unit": compile_unit}
        scope["spFlags"] = ir.DIToken("DISPFlagDefinition")
        self._scope = module.add_debug_info("DISubprogram", scope, is_distinct=True)
        function.set_metadata("dbg", self._scope)
        module.add_named_metadata("llvm.dbg.cu", compile_unit)
        i32 = ir.IntType(32)
        flags = [ir.Constant(i32, 2), "Debug Info Version", ir.Constant(i32, 3)]
        module.add_named_metadata("llvm.module.flags", flags)

    @contextmanager
    def at(self, builder: Any, what: str, source: Source) -> Iterator[None]:
        """Give this place to all instructions written inside; places can be nested."""
        name = f"{what} ({source})" if source.line else what
        if name not in self._known:
            self.names.append(name)
            place = {"line": len(self.names), "column": 0, "scope": self._scope}
            self._known[name] = self._module.add_debug_info("DILocation", place)
        before, builder.debug_metadata = builder.debug_metadata, self._known[name]
        try:
            yield
        finally:
            builder.debug_metadata = before


def read_source_map(section: bytes, names: Sequence[str]) -> SourceMap:
    """Read which instruction comes from which place out of `.BTF.ext`; empty if it cannot be read."""
    out: list[tuple[int, str]] = []
    try:
        magic, _, _, header = struct.unpack_from("<HBBI", section)
        start, length = struct.unpack_from("<II", section, 16)
        at, end = header + start, header + start + length
        if magic != _MAGIC or not length:
            return SourceMap()
        (size,) = struct.unpack_from("<I", section, at)
        at += 4
        while at < end:
            _, count = struct.unpack_from("<II", section, at)
            at += 8
            for _ in range(count):
                offset, _, _, line = struct.unpack_from("<IIII", section, at)
                at += size
                if 0 < line >> 10 <= len(names):  # line 0: an instruction that LLVM made of several
                    out.append((offset // _INSTRUCTION, names[(line >> 10) - 1]))
    except struct.error:
        return SourceMap()
    return SourceMap(tuple(sorted(out, key=lambda pair: pair[0])))


def largest(ir_text: str, names: Sequence[str]) -> str:
    """Return the place of the largest number of instructions in LLVM IR with this debug information."""
    lines = {number: int(line) for number, line in _LOCATION.findall(ir_text)}
    marked = Counter(lines[number] for number in _MARKED.findall(ir_text) if number in lines)
    return names[max(marked, key=marked.__getitem__) - 1] if marked else "the program"
