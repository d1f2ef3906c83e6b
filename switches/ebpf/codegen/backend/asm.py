"""Write LLVM IR for BPF, and record the place in the P4 program from which each instruction comes.

This module only uses `llvmlite.ir`, which writes text. The LLVM library itself is loaded only in the worker
process, so that the server does not keep it in memory.

Each place in the P4 program has a number. The debug information gives this number as the line number of the
place's instructions. LLVM writes the line number of each BPF instruction into the section `.BTF.ext`
(Documentation/bpf/btf.rst of the kernel). If the kernel's verifier rejects an instruction, the error message
names the place of this instruction.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from llvmlite import ir

from mrclab.linux.bpf_types import MAP_MARK, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, MapSpec
from mrclab.switches.ebpf.plan import SourceMap
from mrclab.switches.v1model.expressions import NOWHERE, Source

SECTION = ".BTF.ext"
_MAGIC = 0xEB9F
_INSTRUCTION = 8
_LOCATION = re.compile(r"!(\d+) = !DILocation\([^)]*\bline: (\d+)")
_MARKED = re.compile(r"!dbg !(\d+)")


class DebugInfo:
    """The debug information of one function.

    `names` lists places in the P4 program. Line n of the debug information means the n-th place.
    """

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
        """Give this place in the P4 program to all instructions that are added within the `with` block."""
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
    """Read the places of instructions from the section `.BTF.ext`. Return an empty map if it is invalid."""
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
                if 0 < line >> 10 <= len(names):  # line 0: LLVM merged instructions of several lines
                    out.append((offset // _INSTRUCTION, names[(line >> 10) - 1]))
    except struct.error:
        return SourceMap()
    return SourceMap(tuple(sorted(out, key=lambda pair: pair[0])))


def largest(ir_text: str, names: Sequence[str]) -> str:
    """Return the place in the P4 program that has the most instructions in the LLVM IR."""
    lines = {number: int(line) for number, line in _LOCATION.findall(ir_text)}
    marked = Counter(lines[number] for number in _MARKED.findall(ir_text) if number in lines)
    return names[max(marked, key=marked.__getitem__) - 1] if marked else "the program"


I8, I32, I64 = (ir.IntType(w) for w in (8, 32, 64))
PTR = ir.PointerType()
Value = Any  # a value of llvmlite, which has no type annotations

_AT_ONCE = 512  # bytes that are zeroed at once: for more than 1,024, LLVM calls memset(), which BPF lacks


class Helper(IntEnum):
    """Helper functions of the kernel, with their numbers (bpf-helpers(7))."""

    MAP_LOOKUP_ELEM = 1
    KTIME_GET_NS = 5
    GET_PRANDOM_U32 = 7
    SKB_STORE_BYTES = 9
    TAIL_CALL = 12
    CLONE_REDIRECT = 13
    VLAN_POP = 19
    REDIRECT = 23
    SKB_LOAD_BYTES = 26
    CSUM_DIFF = 28
    SKB_CHANGE_TAIL = 38
    SKB_CHANGE_HEAD = 43
    SKB_ADJUST_ROOM = 50
    SPIN_LOCK = 93
    SPIN_UNLOCK = 94
    RINGBUF_OUTPUT = 130
    KTIME_GET_COARSE_NS = 160


@dataclass
class MapPool:
    """The maps of a program, collected while code is written. A map's index is its position in `specs`."""

    specs: list[MapSpec] = field(default_factory=list)

    def add(self, spec: MapSpec) -> int:
        """Add a map and return its index."""
        self.specs.append(spec)
        return len(self.specs) - 1

    def once(self, spec: MapSpec) -> int:
        """Return the index of an equal map, or add this map and return its index."""
        return self.specs.index(spec) if spec in self.specs else self.add(spec)


def const(width: int, value: int) -> Value:
    """Return a constant of type iN, where N is `width`. `value` is truncated to N bits."""
    return ir.Constant(ir.IntType(width), value % (1 << width))


class Asm:
    """Write instructions into one function: memory accesses in both byte orders, helper calls, maps."""

    def __init__(self, module: Any, function: Any) -> None:
        self.module = module
        self.function = function
        self.b: Any = ir.IRBuilder(function.append_basic_block("entry"))
        self.debug_info = DebugInfo(module, function)
        self._pseudo = ir.Function(module, ir.FunctionType(I64, [I64, I64]), "llvm.bpf.pseudo")

    def place(self, what: str, source: Source = NOWHERE) -> AbstractContextManager[None]:
        """Return a context for code of this place in the P4 program. The verifier's errors name the place."""
        return self.debug_info.at(self.b, what, source)

    def block(self, name: str) -> Any:
        """Return a new basic block. Later code still goes to the current block."""
        return self.function.append_basic_block(name)

    def enter(self, block: Any) -> None:
        """Make a block the current block. Later code is added to its end."""
        self.b.position_at_end(block)

    def goto(self, block: Any) -> None:
        """End the current block with a jump, unless it has already ended."""
        if not self.b.block.is_terminated:
            self.b.branch(block)

    def fit(self, value: Value, width: int) -> Value:
        """Zero-extend or truncate a value to `width` bits."""
        have = value.type.width
        if have == width:
            return value
        return (
            self.b.zext(value, ir.IntType(width)) if have < width else self.b.trunc(value, ir.IntType(width))
        )

    def sext(self, value: Value, width: int) -> Value:
        """Sign-extend or truncate a value to `width` bits."""
        have = value.type.width
        if have == width:
            return value
        return (
            self.b.sext(value, ir.IntType(width)) if have < width else self.b.trunc(value, ir.IntType(width))
        )

    def forget(self, value: Value) -> Value:
        """Return an i64 unchanged, but hide its value from LLVM, so that LLVM keeps later range checks."""
        return self.b.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value], False)

    def here(self, value: Value) -> Value:
        """Return a pointer or i64 unchanged, but force LLVM to compute it at this place.

        Otherwise LLVM may compute the addresses of all fields before a loop, or load all operands of a long
        sum before the first addition. LLVM would keep the results on the stack, which has only 512 bytes.
        """
        return self.b.asm(ir.FunctionType(value.type, [value.type]), "", "=r,0", [value], True)

    def at(self, base: Value, offset: int | Value) -> Value:
        """Return the address `base` plus `offset` bytes."""
        index = const(64, offset) if isinstance(offset, int) else self.fit(offset, 64)
        return self.b.gep(base, [index], inbounds=False, source_etype=I8)

    def load(self, pointer: Value, width: int, align: int = 1) -> Value:
        """Load an integer of `width` bits in host byte order."""
        return self.b.load(pointer, align=align, typ=ir.IntType(width))

    def store(self, value: Value, pointer: Value, align: int = 1) -> None:
        """Store an integer in host byte order."""
        self.b.store(value, pointer, align=align)

    def load_be(self, base: Value, offset: int, size: int) -> Value:
        """Load `size` bytes as one unsigned number, most significant byte first."""
        width = size * 8
        result = None
        for at, piece in _pieces(size):
            part = self.load(self.at(base, offset + at), piece * 8)
            part = self.b.bswap(part) if piece > 1 else part
            part = self.fit(part, width)
            shift = (size - at - piece) * 8
            if shift:
                part = self.b.shl(part, const(width, shift))
            result = part if result is None else self.b.or_(result, part)
        return result

    def store_be(self, value: Value, base: Value, offset: int, size: int) -> None:
        """Store a number in `size` bytes, most significant byte first."""
        value = self.fit(value, size * 8)
        for at, piece in _pieces(size):
            shift = (size - at - piece) * 8
            part = self.b.lshr(value, const(size * 8, shift)) if shift else value
            part = self.fit(part, piece * 8)
            self.store(self.b.bswap(part) if piece > 1 else part, self.at(base, offset + at))

    def zero(self, base: Value, offset: int, size: int) -> None:
        """Fill `size` bytes with zeros."""
        for at, piece in _pieces(size):
            if at and at % _AT_ONCE == 0:
                base = self.here(base)
            self.store(const(piece * 8, 0), self.at(base, offset + at), align=1)

    def copy(self, to: Value, to_offset: int, origin: Value, from_offset: int, size: int) -> None:
        """Copy `size` bytes. Origin and destination must not overlap."""
        for at, piece in _pieces(size):
            self.store(self.load(self.at(origin, from_offset + at), piece * 8), self.at(to, to_offset + at))

    def map_ptr(self, index: int) -> Value:
        """Return the address of the program's map `index`, as an argument of helper functions."""
        handle = self.b.call(self._pseudo, [const(64, PSEUDO_MAP_FD), const(64, MAP_MARK + index)])
        return self.b.inttoptr(handle, PTR)

    def map_value(self, index: int) -> Value:
        """Return the address of the only value of array map `index`. The code needs no look-up."""
        handle = self.b.call(self._pseudo, [const(64, PSEUDO_MAP_VALUE), const(64, MAP_MARK + index)])
        return self.b.inttoptr(handle, PTR)

    def helper(self, which: Helper, *args: Value) -> Value:
        """Call a helper function. Integer arguments become i64. Return an i64, or a pointer for look-ups."""
        result = PTR if which is Helper.MAP_LOOKUP_ELEM else I64
        values = [a if isinstance(a.type, ir.PointerType) else self.fit(a, 64) for a in args]
        signature = ir.FunctionType(result, [v.type for v in values])
        return self.b.call(_Callee(int(which), signature), values)

    def is_null(self, pointer: Value) -> Value:
        """Return an i1: 1 if a pointer is null."""
        return self.b.icmp_unsigned("==", pointer, ir.Constant(PTR, None))


class _Callee:
    """A helper function of the kernel, as an object that llvmlite can call."""

    def __init__(self, number: int, signature: Any) -> None:
        self.function_type = signature
        self.ftype = signature
        self.type = PTR
        self._number = number

    def get_reference(self) -> str:
        return f"inttoptr (i64 {self._number} to ptr)"


def _pieces(size: int) -> list[tuple[int, int]]:
    """Split `size` bytes into pieces of 8, 4, 2 and 1 bytes. Return (offset, size) of each piece."""
    out, at = [], 0
    while at < size:
        piece = 8
        while piece > size - at:
            piece //= 2
        out.append((at, piece))
        at += piece
    return out
