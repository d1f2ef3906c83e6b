"""The deparser: writes back what changed, in place where the frame keeps its length."""

from __future__ import annotations

from switches.bmv2_json import FieldRef
from switches.ebpf.llvm import Helper, Value, const
from switches.ebpf.unit import Unit


class DeparserWriter:
    """Writes the deparser of a unit."""

    def __init__(self, unit: Unit) -> None:
        self.u = unit
        self.asm = unit.asm

    def run(self) -> None:
        """Write back every valid header in order. The builder ends in an open block."""
        asm, b = self.asm, self.asm.b
        order = self.u.program.deparser.order
        sizes = {h: (self.u.program.headers[h].type.bits + 7) // 8 for h in order}
        offset: Value = const(32, 0)
        valid, starts = {}, {}
        for h in order:
            valid[h] = self.u.machine.read(
                FieldRef(h, "$valid$"), self.u.program.parser.states[self.u.program.parser.start].source
            )
            starts[h] = offset
            offset = b.add(offset, b.select(valid[h], const(32, sizes[h]), const(32, 0)))
        parsed = asm.load(asm.at(self.u.machine.scratch, self.u.layout.parsed), 32, 4)
        same, other = asm.block("same.length"), asm.block("other.length")
        b.cbranch(b.icmp_unsigned("==", offset, parsed), same, other)
        asm.enter(other)
        self._resize(offset, parsed)
        b.branch(same)
        asm.enter(same)
        for h in order:
            self._emit(h, valid[h], starts[h], sizes[h])

    def _resize(self, want: Value, have: Value) -> None:
        """Give the frame room for `want` bytes before its payload, which begins at `have`."""
        self.asm.b.branch(self.u.drop)
        self.asm.enter(self.asm.block("behind.resize"))

    def _emit(self, header: str, valid: Value, start: Value, size: int) -> None:
        asm, b = self.asm, self.asm.b
        written = self.u.layout.written(header)
        if not size:
            return
        present, done = asm.block(f"emit.{header}"), asm.block(f"emitted.{header}")
        b.cbranch(valid, present, done)
        asm.enter(present)
        for ref in written:
            self._pack(ref)
        raw = asm.at(self.u.machine.scratch, self.u.layout.raw[header])
        failed = asm.helper(
            Helper.SKB_STORE_BYTES, self.u.ctx, asm.fit(start, 64), raw, const(64, size), const(64, 0)
        )
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), done, self.u.drop)
        asm.enter(done)

    def _pack(self, ref: FieldRef) -> None:
        """Put a field's bits back into the raw image of its header."""
        asm, b, memory = self.asm, self.asm.b, self.u.machine.scratch
        field = self.u.program.field(ref)
        base = self.u.layout.raw[ref.header]
        bits = self.u.machine.read(ref, self.u.program.parser.states[self.u.program.parser.start].source)
        first, last = field.offset // 8, (field.offset + field.width - 1) // 8
        size = last - first + 1
        behind = (last + 1) * 8 - (field.offset + field.width)
        value = asm.fit(bits, size * 8)
        if field.width < size * 8:
            if behind:
                value = b.shl(value, const(size * 8, behind))
            mask = ((1 << field.width) - 1) << behind
            old = asm.load_be(memory, base + first, size)
            value = b.or_(b.and_(old, const(size * 8, ~mask)), value)
        asm.store_be(value, memory, base + first, size)
