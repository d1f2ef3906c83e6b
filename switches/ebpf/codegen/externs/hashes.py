"""Write the code of hashes and checksums.

A hash's input contains only fields of valid headers. If a header is not valid, the rest of the input shifts
by the header's length. If this length is a whole number of bytes, one branch in the code is enough. Otherwise
the code for the rest is written twice: for a valid header, and for an invalid header.

Checksums are verified after the parser and updated before the deparser, in the order of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mrclab.linux.bpf_types import MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.backend.asm import I64, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.deparser import payload_sum
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.hashes import CRCS, HASHES, Crc
from mrclab.switches.v1model.declarations import Bits, Calculation, Checksum
from mrclab.switches.v1model.expressions import Const, FieldRef, Name, Primitive
from mrclab.switches.v1model.program import Program

_CHUNK = 48  # bits of a field that are processed at a time: with up to 7 older bits, they fit into a register
_SLICES = 8  # bytes that one round of a CRC processes
_SHIFTS = 4  # maximum number of headers that are not whole bytes: each doubles the code that follows

State = tuple[Value, ...]


def crc_tables(kind: Crc) -> bytes:
    """Return 8 tables: table k has, for each byte, the 32-bit CRC of this byte followed by k zero bytes."""
    top, mask = 1 << (kind.width - 1), (1 << kind.width) - 1
    low = int(f"{kind.polynomial:0{kind.width}b}"[::-1], 2)

    def byte(value: int) -> int:
        rest = value if kind.reflected else value << (kind.width - 8)
        for _ in range(8):
            if kind.reflected:
                rest = rest >> 1 ^ (low if rest & 1 else 0)
            else:
                rest = (rest << 1 ^ (kind.polynomial if rest & top else 0)) & mask
        return rest

    first = [byte(v) for v in range(256)]
    tables = [first]
    for _ in range(_SLICES - 1):
        if kind.reflected:
            tables.append([first[v & 0xFF] ^ v >> 8 for v in tables[-1]])
        else:
            tables.append([first[v >> kind.width - 8] ^ v << 8 & mask for v in tables[-1]])
    return b"".join(v.to_bytes(4, "little") for table in tables for v in table)


class _Sink(Protocol):
    def begin(self) -> State: ...

    def take(self, state: State, data: Sequence[Value]) -> State: ...

    def end(self, state: State) -> Value: ...


class _CrcSink:
    def __init__(self, gen: CodegenContext, algorithm: str) -> None:
        self.gen = gen
        self.kind = CRCS[algorithm]

    def begin(self) -> State:
        return (const(64, self.kind.initial),)

    def take(self, state: State, data: Sequence[Value]) -> State:
        for at in range(0, len(data), _SLICES):
            state = (self._round(state[0], data[at : at + _SLICES]),)
        return state

    def _round(self, rest: Value, data: Sequence[Value]) -> Value:
        """Add up to eight bytes to a CRC: look up each byte in its table, and combine the results by XOR."""
        b, width, count = self.gen.asm.b, self.kind.width, len(data)
        tables = self._tables()
        covered = width // 8
        result = None
        if count < covered:
            result = (
                b.lshr(rest, const(64, 8 * count))
                if self.kind.reflected
                else b.and_(b.shl(rest, const(64, 8 * count)), const(64, (1 << width) - 1))
            )
        for i, byte in enumerate(data):
            if i < covered:
                by = 8 * i if self.kind.reflected else width - 8 - 8 * i
                byte = b.and_(b.xor(byte, b.lshr(rest, const(64, by)) if by else rest), const(64, 0xFF))
            base = (count - 1 - i) * 1024
            cell = self.gen.asm.at(tables, b.add(b.shl(byte, const(64, 2)), const(64, base)))
            part = self.gen.asm.fit(self.gen.asm.load(cell, 32, 4), 64)
            result = part if result is None else b.xor(result, part)
        return result

    def _tables(self) -> Value:
        kind = self.kind
        name = f"crc{kind.width}.{'reflected' if kind.reflected else 'plain'}"
        spec = MapSpec(name, MapType.ARRAY, 4, 1024 * _SLICES, 1, shared=True, initial=crc_tables(kind))
        return self.gen.asm.map_value(self.gen.pool.once(spec))

    def end(self, state: State) -> Value:
        return self.gen.asm.b.xor(state[0], const(64, self.kind.final))


class _WordSink:
    """A hash of 16-bit words by addition (Internet checksum) or XOR. State: (sum, shift of the next byte)."""

    def __init__(self, gen: CodegenContext, add: bool) -> None:
        self.gen = gen
        self.add = add

    def begin(self) -> State:
        return const(64, 0), const(64, 8)

    def take(self, state: State, data: Sequence[Value]) -> State:
        b = self.gen.asm.b
        total, shift = state
        for byte in data:
            total = (b.add if self.add else b.xor)(total, b.shl(byte, shift))
            shift = b.xor(shift, const(64, 8))
        return total, shift

    def take_varbit(self, state: State, header: str) -> State:
        """Add a variable-length field. Its unused bytes are zero, so they do not change the hash."""
        asm, b, slot = self.gen.asm, self.gen.asm.b, self.gen.layout.varbits[header]
        memory, (total, shift) = self.gen.machine.scratch, state
        words = const(64, 0)
        for at in range(0, slot.room, 8):
            part = asm.load_be(memory, slot.offset + at, 8)
            for by in (48, 32, 16, 0):
                words = b.add(words, b.and_(b.lshr(part, const(64, by)) if by else part, const(64, 0xFFFF)))
        even = b.icmp_unsigned("==", shift, const(64, 8))
        total = b.add(total, b.select(even, words, b.shl(words, const(64, 8))))
        length = asm.fit(asm.load(asm.at(memory, slot.length), 32, 4), 64)
        return total, b.xor(shift, b.shl(b.and_(length, const(64, 1)), const(64, 3)))

    def end(self, state: State) -> Value:
        b, total = self.gen.asm.b, state[0]
        if not self.add:
            return total
        for _ in range(3):
            total = b.add(b.and_(total, const(64, 0xFFFF)), b.lshr(total, const(64, 16)))
        return b.xor(total, const(64, 0xFFFF))


class _IdentitySink:
    """A hash that returns its first eight input bytes as a number. State: (number, count of the bytes)."""

    def __init__(self, gen: CodegenContext) -> None:
        self.gen = gen

    def begin(self) -> State:
        return const(64, 0), const(64, 0)

    def take(self, state: State, data: Sequence[Value]) -> State:
        b = self.gen.asm.b
        number, count = state
        for byte in data[:8]:
            room = b.icmp_unsigned("<", count, const(64, 8))
            number = b.select(room, b.or_(b.shl(number, const(64, 8)), byte), number)
            count = b.add(count, const(64, 1))
        return number, count

    def end(self, state: State) -> Value:
        return state[0]


@dataclass(frozen=True)
class _Run:
    """Consecutive parts of a hash's input that are used if `header` is valid (None: always)."""

    header: str | None
    parts: tuple[FieldRef | Bits, ...]
    bits: int


def _parts(program: Program, calculation: Calculation) -> list[tuple[str | None, FieldRef | Bits, int]]:
    out: list[tuple[str | None, FieldRef | Bits, int]] = []
    where = str(calculation.source)
    for item in calculation.input:
        match item:
            case Bits():
                out.append((None, item, item.width))
            case FieldRef() if program.varbit(item) is not None:
                guard = None if program.headers[item.header].metadata else item.header
                out.append((guard, item, 0))
            case FieldRef():
                guard = None if program.headers[item.header].metadata else item.header
                out.append((guard, item, program.field(item).width))
            case Name("header", name):
                kind = program.headers[name].type
                if kind.varbit is not None:
                    raise UnsupportedError(f"a hash over variable-length header {name}", where)
                guard = None if program.headers[name].metadata else name
                out += [(guard, FieldRef(name, f.name), f.width) for f in kind.fields]
            case Name(kind_name, _):
                if kind_name != "payload":
                    raise UnsupportedError(f"a hash over the {kind_name}", where)
    return out


def _runs(program: Program, calculation: Calculation) -> list[_Run]:
    runs: list[_Run] = []
    for guard, part, bits in _parts(program, calculation):
        if runs and runs[-1].header == guard:
            last = runs.pop()
            runs.append(_Run(guard, (*last.parts, part), last.bits + bits))
        else:
            runs.append(_Run(guard, (part,), bits))
    return runs


def _used_at(program: Program, calculation: Calculation) -> str:
    """Return the source line of a calculation's first use, for a calculation without a source line."""
    for action in program.actions.values():
        for primitive in action.primitives:
            if Name("calculation", calculation.name) in primitive.args:
                return str(primitive.source)
    return ""


class HashWriter:
    """Write the code that computes hashes."""

    def __init__(self, gen: CodegenContext) -> None:
        self.gen = gen
        self.asm = gen.asm
        self._payload = False

    def hash(self, calculation: Calculation) -> Value:
        """Return the hash as a 64-bit number. Raise UnsupportedError for unsupported algorithms or inputs."""
        name, where = (
            calculation.algorithm,
            str(calculation.source) or _used_at(self.gen.program, calculation),
        )
        if name not in HASHES:
            raise UnsupportedError(f"hash algorithm {name}", where)
        runs = _runs(self.gen.program, calculation)
        if sum(r.header is not None and r.bits % 8 != 0 for r in runs) > _SHIFTS:
            raise UnsupportedError(f"a hash over more than {_SHIFTS} headers of odd length", where)
        self._payload = any(isinstance(i, Name) and i.kind == "payload" for i in calculation.input)
        if self._payload and name not in ("csum16", "cksum16"):
            raise UnsupportedError(f"hash algorithm {name} over the payload", where)
        sink: _Sink
        if name in CRCS:
            sink = _CrcSink(self.gen, name)
        elif name == "identity":
            sink = _IdentitySink(self.gen)
        else:
            sink = _WordSink(self.gen, add=name != "xor16")
        return self._rest(sink, calculation, runs, sink.begin(), const(64, 0), 0)

    def _rest(
        self, sink: _Sink, calculation: Calculation, runs: list[_Run], state: State, left: Value, bits: int
    ) -> Value:
        """Process the rest of the input (`runs`). `left` holds the last `bits` (0 to 7) unprocessed bits."""
        asm, b = self.asm, self.asm.b
        for i, run in enumerate(runs):
            if run.header is None:
                state, left, bits = self._run(sink, calculation, run, state, left, bits)
                continue
            valid = self.gen.machine.read(FieldRef(run.header, "$valid$"), calculation.source)
            there, absent, done = (asm.block(f"hash.{n}") for n in ("there", "absent", "done"))
            b.cbranch(valid, there, absent)
            asm.enter(there)
            after, after_left, after_bits = self._run(sink, calculation, run, state, left, bits)
            if run.bits % 8:
                further = runs[i + 1 :]
                longer = self._rest(sink, calculation, further, after, after_left, after_bits)
                longer_ends = b.block
                b.branch(done)
                asm.enter(absent)
                shorter = self._rest(sink, calculation, further, state, left, bits)
                shorter_ends = b.block
                b.branch(done)
                asm.enter(done)
                return self._either([(longer, longer_ends), (shorter, shorter_ends)])
            ends = b.block
            b.branch(done)
            asm.enter(absent)
            b.branch(done)
            asm.enter(done)
            state = tuple(self._either([(a, ends), (s, absent)]) for a, s in zip(after, state, strict=True))
            left = self._either([(after_left, ends), (left, absent)])
        if bits:
            state = sink.take(state, [b.shl(left, const(64, 8 - bits))])
        if self._payload:  # after an odd number of bytes, swap the bytes of the payload's sum
            total, shift = state
            words = payload_sum(self.gen)
            swapped = b.or_(b.lshr(words, const(64, 8)), b.shl(b.and_(words, const(64, 255)), const(64, 8)))
            even = b.icmp_unsigned("==", shift, const(64, 8))
            state = b.add(total, b.select(even, words, swapped)), shift
        return sink.end(state)

    def _either(self, values: list[tuple[Value, object]]) -> Value:
        phi = self.asm.b.phi(I64)
        for value, block in values:
            phi.add_incoming(value, block)
        return phi

    def _run(
        self, sink: _Sink, calculation: Calculation, run: _Run, state: State, left: Value, bits: int
    ) -> tuple[State, Value, int]:
        asm, b = self.asm, self.asm.b
        data: list[Value] = []
        for part in run.parts:
            if isinstance(part, FieldRef) and self.gen.program.varbit(part) is not None:
                if bits or not (isinstance(sink, _WordSink) and sink.add):
                    what = f"a hash other than csum16 over variable-length field {part.header}.{part.field}"
                    raise UnsupportedError(what, str(calculation.source))
                state, data = sink.take_varbit(sink.take(state, data), part.header), []
                continue
            if isinstance(part, Bits):
                whole, width = const(part.width, part.value), part.width
            else:
                whole, width = (
                    self.gen.machine.read(part, calculation.source),
                    self.gen.program.field(part).width,
                )
            while width:
                take = min(_CHUNK, width)
                width -= take
                piece = b.lshr(whole, const(whole.type.width, width)) if width else whole
                piece = b.and_(asm.fit(piece, 64), const(64, (1 << take) - 1))
                left = b.or_(b.shl(left, const(64, take)), piece) if bits else piece
                bits += take
                while bits >= 8:
                    bits -= 8
                    byte = b.lshr(left, const(64, bits)) if bits else left
                    data.append(b.and_(byte, const(64, 0xFF)))
                left = b.and_(left, const(64, (1 << bits) - 1))
        return sink.take(state, data), left, bits


def write_hash(gen: CodegenContext, e: Evaluator, p: Primitive) -> None:
    """Write code that sets a field to (hash modulo size) + base, in 64 bits. A size of 0 counts as 1."""
    target, base, calculation, size = p.args
    asm, b = gen.asm, gen.asm.b
    if not isinstance(target, FieldRef):
        raise e.refuse("a hash into something other than a field")
    if not isinstance(calculation, Name) or calculation.name not in gen.program.calculations:
        raise e.refuse("a hash that is not declared")
    number = HashWriter(gen).hash(gen.program.calculations[calculation.name])
    if isinstance(size, Const):
        modulo = size.value % (1 << 64) or 1
        if modulo & (modulo - 1) == 0:
            number = b.and_(number, const(64, modulo - 1))
        else:
            number = b.urem(number, const(64, modulo))
    else:
        span = e.value(size, 64)
        zero = b.icmp_unsigned("==", span, const(64, 0))
        number = b.urem(number, b.select(zero, const(64, 1), span))
    number = b.add(number, e.value(base, 64))
    width = gen.program.field(target).width
    gen.machine.write(target, asm.fit(number, width), p.source)


def verify_checksums(gen: CodegenContext) -> None:
    """Write code that sets checksum_error if a checksum is wrong. If this field is unused, write nothing."""
    if not gen.has_standard("checksum_error"):
        return
    asm, b = gen.asm, gen.asm.b
    for c in (c for c in gen.program.checksums if c.verify):
        tests = [] if gen.program.headers[c.target.header].metadata else [_valid(gen, c)]
        look, wrong, done = (
            asm.block("checksum.look"),
            asm.block("checksum.wrong"),
            asm.block("checksum.done"),
        )
        b.cbranch(_all(gen, [*tests, *_condition(gen, c)]), look, done)
        asm.enter(look)
        computed = HashWriter(gen).hash(gen.program.calculations[c.calculation])
        found = gen.machine.read(c.target, c.source)
        width = max(64, found.type.width)
        b.cbranch(b.icmp_unsigned("==", asm.fit(computed, width), asm.fit(found, width)), done, wrong)
        asm.enter(wrong)
        gen.set_standard("checksum_error", const(32, 1))
        b.branch(done)
        asm.enter(done)


def update_checksums(gen: CodegenContext) -> None:
    """Write code that updates checksums whose condition is true, even in invalid headers, as in BMv2."""
    asm, b = gen.asm, gen.asm.b
    for c in (c for c in gen.program.checksums if c.update):
        write, done = asm.block("checksum.write"), asm.block("checksum.done")
        b.cbranch(_all(gen, _condition(gen, c)), write, done)
        asm.enter(write)
        computed = HashWriter(gen).hash(gen.program.calculations[c.calculation])
        width = gen.program.field(c.target).width
        gen.machine.write(c.target, asm.fit(computed, width), c.source)
        b.branch(done)
        asm.enter(done)


def _valid(gen: CodegenContext, checksum: Checksum) -> Value:
    return gen.machine.read(FieldRef(checksum.target.header, "$valid$"), checksum.source)


def _condition(gen: CodegenContext, checksum: Checksum) -> list[Value]:
    if checksum.condition is None:
        return []
    return [Evaluator(gen.machine, checksum.source).truth(checksum.condition)]


def _all(gen: CodegenContext, tests: Iterable[Value]) -> Value:
    result = const(1, 1)
    for test in tests:
        result = gen.asm.b.and_(result, test)
    return result
