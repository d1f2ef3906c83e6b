"""Write the code of the deparser, which writes the headers back to the frame.

If no header was added or removed, only changed headers are written. The payload is moved, or summed for a
checksum, in pieces of constant sizes, because the kernel's verifier accepts only known sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from mrclab.switches.ebpf.codegen.analysis.header_offsets import find_header_offsets
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import CHUNK
from mrclab.switches.ebpf.codegen.backend.asm import I32, Asm, Helper, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.v1model.expressions import NOWHERE, FieldRef

_CHUNKS = 65536 // CHUNK  # maximum number of chunks of a frame: no frame is longer than 65536 bytes
_WORD = 4  # bytes: bpf_csum_diff accepts only multiples of 4 bytes


def walk(asm: Asm, count: Value, visit: Callable[[Value, int], None]) -> None:
    """Split `count` bytes into pieces, and call `visit` with the offset and the size of each piece.

    The sizes are powers of two, at most CHUNK. The sizes are constants, because the kernel's verifier must
    know the bounds of every size.
    """
    b = asm.b
    start = b.block
    loop, chunk, tail = asm.block("walk.loop"), asm.block("walk.chunk"), asm.block("walk.tail")
    b.branch(loop)
    asm.enter(loop)
    index = b.phi(I32)
    index.add_incoming(const(32, 0), start)
    done = b.mul(index, const(32, CHUNK))
    more = b.icmp_unsigned(">=", count, b.add(done, const(32, CHUNK)))
    b.cbranch(b.and_(more, b.icmp_unsigned("<", index, const(32, _CHUNKS))), chunk, tail)
    asm.enter(chunk)
    visit(done, CHUNK)
    index.add_incoming(b.add(index, const(32, 1)), b.block)
    b.branch(loop)
    asm.enter(tail)
    at = done
    size = CHUNK // 2
    while size:
        before = b.block
        piece, after = asm.block(f"walk.{size}"), asm.block(f"walked.{size}")
        b.cbranch(b.icmp_unsigned("!=", b.and_(count, const(32, size)), const(32, 0)), piece, after)
        asm.enter(piece)
        visit(at, size)
        further = b.add(at, const(32, size))
        behind = b.block
        b.branch(after)
        asm.enter(after)
        position = b.phi(I32)
        position.add_incoming(at, before)
        position.add_incoming(further, behind)
        at = position
        size //= 2


def payload_sum(gen: CodegenContext) -> Value:
    """Return the 64-bit sum of the payload's 16-bit words, most significant byte first (RFC 1071).

    As in BMv2, only the bytes that truncate() keeps are summed. Call this function before `emit_all`.
    """
    asm, b, layout, memory = gen.asm, gen.asm.b, gen.layout, gen.machine.scratch
    start = asm.load(asm.at(memory, layout.parsed), 32, 4)
    count = b.sub(gen.frame_length, start)
    if gen.truncates:
        # Without truncate(), the memory at layout.cut is zero. Then `keep` becomes the largest unsigned
        # number, so all bytes are kept.
        keep = b.sub(asm.load(asm.at(memory, layout.cut), 32, 4), const(32, 1))
        count = b.select(b.icmp_unsigned("<", keep, count), keep, count)
    total, buffer = asm.at(memory, layout.key), asm.at(memory, layout.buffer)
    asm.store(const(64, 0), total, 8)

    def add(at: Value, size: int) -> None:
        fine = asm.block("sum.fine")
        whole = max(size, _WORD)
        if size < _WORD:
            asm.zero(memory, layout.buffer, _WORD)
        where = asm.fit(b.add(start, at), 64)
        failed = asm.helper(Helper.SKB_LOAD_BYTES, gen.ctx, where, buffer, const(64, size))
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), fine, gen.drop)
        asm.enter(fine)
        seed = asm.load(total, 64, 8)
        null = const(64, 0)
        words = asm.helper(Helper.CSUM_DIFF, null, const(64, 0), buffer, const(64, whole), seed)
        asm.store(b.and_(words, const(64, 0xFFFFFFFF)), total, 8)

    walk(asm, count, add)
    words = asm.load(total, 64, 8)
    for _ in range(3):
        words = b.add(b.and_(words, const(64, 0xFFFF)), b.lshr(words, const(64, 16)))
    return b.or_(b.lshr(words, const(64, 8)), b.shl(b.and_(words, const(64, 255)), const(64, 8)))


_ROOM_AT_MAC = 1  # BPF_ADJ_ROOM_MAC: remove bytes directly after the Ethernet header
_TAKE_FROM = 54  # bytes of the Ethernet and IPv6 headers, which must remain
_AT_ONCE = 8  # number of headers whose sizes are loaded together: more would not fit into registers


def valid_bytes(gen: CodegenContext) -> Value:
    """Return the total size of the valid headers, in bytes."""
    asm, b, total = gen.asm, gen.asm.b, const(32, 0)
    for h in gen.program.deparser.order:
        there = asm.fit(asm.load(asm.at(gen.machine.scratch, gen.layout.valid[h]), 8), 32)
        total = b.add(total, b.mul(there, gen.header_bytes(h)))
    return total


class DeparserWriter:
    """Write the code of the deparser."""

    def __init__(self, gen: CodegenContext) -> None:
        self.gen = gen
        self.asm = gen.asm

    def run(self) -> Value:
        """Write back all valid headers in order. Return the length of the frame.

        If no header was added or removed, only changed headers are written.
        """
        asm, b = self.asm, self.asm.b
        places = find_header_offsets(self.gen.program)
        if places is None:
            return self._emitted()
        moved = asm.load(asm.at(self.gen.machine.scratch, self.gen.layout.moved), 8)
        same, other, done = asm.block("same.headers"), asm.block("other.headers"), asm.block("deparsed")
        b.cbranch(b.icmp_unsigned("==", moved, const(8, 0)), same, other)
        asm.enter(other)
        changed = self._emitted()
        rewritten = b.block
        b.branch(done)
        asm.enter(same)
        for h in self.gen.program.deparser.order:
            if h in places and self.gen.layout.written(h):
                self._emit_written(h, places[h])
        kept = b.block
        b.branch(done)
        asm.enter(done)
        length = b.phi(self.gen.frame_length.type)
        length.add_incoming(changed, rewritten)
        length.add_incoming(self.gen.frame_length, kept)
        return length

    def _emitted(self) -> Value:
        parsed = self.asm.load(self.asm.at(self.gen.machine.scratch, self.gen.layout.parsed), 32, 4)
        return self.asm.b.sub(self.asm.b.add(self.gen.frame_length, self.emit_all()), parsed)

    def emit_all(self) -> Value:
        """Resize the frame for the valid headers, and write all of them. Return their total size."""
        asm, order = self.asm, self.gen.program.deparser.order
        size: Value = const(32, 0)
        for number, h in enumerate(order, 1):
            size = self._behind(h, size)
            if number % _AT_ONCE == 0:
                size = asm.fit(asm.here(asm.fit(size, 64)), 32)
        self._fit(size)
        # Compute the offsets again instead of storing them: the stack has no room for all offsets.
        offset: Value = const(32, 0)
        for h in order:
            self._emit(h, self.gen.machine.read(FieldRef(h, "$valid$"), NOWHERE), offset)
            offset = self._behind(h, offset)
        return offset

    def _behind(self, header: str, offset: Value) -> Value:
        """Return the offset after a header. If the header is not valid, return `offset` itself."""
        asm, b = self.asm, self.asm.b
        # Multiply by 0 or 1 instead of a branch: the verifier would check every combination of branches.
        there = asm.fit(asm.load(asm.at(self.gen.machine.scratch, self.gen.layout.valid[header]), 8), 32)
        return b.add(offset, b.mul(there, self.gen.header_bytes(header)))

    def _emit_written(self, header: str, places: frozenset[int]) -> None:
        """Write a header back to its old place in the frame, if it is valid and was changed."""
        asm, b, layout = self.asm, self.asm.b, self.gen.layout
        valid = self.gen.machine.read(FieldRef(header, "$valid$"), NOWHERE)
        dirty = asm.fit(asm.load(asm.at(self.gen.machine.scratch, layout.dirty[header]), 8), 1)
        if len(places) == 1:
            start: Value = const(32, *places)
        else:
            start = asm.fit(asm.load(asm.at(self.gen.machine.scratch, layout.place[header]), 16, 2), 32)
        self._emit(header, b.and_(valid, dirty), start)

    def cut(self, length: Value) -> None:
        """Write code that shortens the frame (of `length` bytes) to the length that truncate() has set."""
        asm, b = self.asm, self.asm.b
        cut = asm.load(asm.at(self.gen.machine.scratch, self.gen.layout.cut), 32, 4)
        asked, shorten, done = asm.block("cut.asked"), asm.block("cut.shorten"), asm.block("cut.done")
        b.cbranch(b.icmp_unsigned("==", cut, const(32, 0)), done, asked)
        asm.enter(asked)
        keep = b.sub(cut, const(32, 1))
        b.cbranch(b.icmp_unsigned("<", keep, length), shorten, done)
        asm.enter(shorten)
        # The kernel refuses a length below an Ethernet header. Then drop the frame; BMv2 sends it.
        failed = asm.helper(Helper.SKB_CHANGE_TAIL, self.gen.ctx, keep, const(64, 0))
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), done, self.gen.drop)
        asm.enter(done)

    def _fit(self, offset: Value) -> None:
        """If the headers now have another total size than the parsed headers, resize the frame."""
        asm, b = self.asm, self.asm.b
        parsed = asm.load(asm.at(self.gen.machine.scratch, self.gen.layout.parsed), 32, 4)
        same, other = asm.block("same.length"), asm.block("other.length")
        b.cbranch(b.icmp_unsigned("==", offset, parsed), same, other)
        asm.enter(other)
        self._resize(offset, parsed)
        b.branch(same)
        asm.enter(same)

    def _resize(self, want: Value, have: Value) -> None:
        """Change the size of the part before the payload from `have` to `want` bytes."""
        asm, b = self.asm, self.asm.b
        grow, shrink, done = asm.block("grow"), asm.block("shrink"), asm.block("resized")
        b.cbranch(b.icmp_unsigned(">", want, have), grow, shrink)
        asm.enter(grow)
        failed = asm.helper(Helper.SKB_CHANGE_HEAD, self.gen.ctx, b.sub(want, have), const(64, 0))
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), done, self.gen.drop)
        asm.enter(shrink)
        # In an IP frame the kernel can remove bytes after the Ethernet header, so try this first. The
        # alternative, to move the payload and shorten the frame at its end, fails for very short frames.
        take, move = asm.block("take.out"), asm.block("move")
        b.cbranch(b.icmp_unsigned(">=", want, const(32, _TAKE_FROM)), take, move)
        asm.enter(take)
        failed = asm.helper(
            Helper.SKB_ADJUST_ROOM, self.gen.ctx, b.sub(want, have), const(64, _ROOM_AT_MAC), const(64, 0)
        )
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), done, move)
        asm.enter(move)
        self._move_payload(want, have)
        length = b.sub(b.add(self.gen.frame_length, want), have)
        failed = asm.helper(Helper.SKB_CHANGE_TAIL, self.gen.ctx, length, const(64, 0))
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), done, self.gen.drop)
        asm.enter(done)

    def _move_payload(self, to: Value, origin: Value) -> None:
        """Move the payload towards the front of the frame, piece by piece."""
        b = self.asm.b
        left = b.sub(self.gen.frame_length, origin)
        walk(self.asm, left, lambda at, size: self._move(b.add(to, at), b.add(origin, at), size))

    def _move(self, to: Value, origin: Value, size: int) -> None:
        """Copy `size` bytes of the frame from one offset to another."""
        asm, b = self.asm, self.asm.b
        buffer = asm.at(self.gen.machine.scratch, self.gen.layout.buffer)
        for step, offset in ((Helper.SKB_LOAD_BYTES, origin), (Helper.SKB_STORE_BYTES, to)):
            fine = asm.block("moving")
            args = [asm.fit(offset, 64), buffer, const(64, size)]
            args += [const(64, 0)] if step is Helper.SKB_STORE_BYTES else []
            failed = asm.helper(step, self.gen.ctx, *args)
            b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), fine, self.gen.drop)
            asm.enter(fine)

    def _emit(self, header: str, valid: Value, start: Value) -> None:
        asm, b, layout = self.asm, self.asm.b, self.gen.layout
        written = layout.written(header)
        size = (self.gen.program.headers[header].type.bits + 7) // 8
        varbit = self.gen.program.headers[header].type.varbit
        if not size and varbit is None:
            return
        present, done = asm.block(f"emit.{header}"), asm.block(f"emitted.{header}")
        b.cbranch(valid, present, done)
        asm.enter(present)
        for ref in written:
            self._pack(ref)
        raw = layout.raw[header]
        if varbit is None:
            self._store(start, raw, const(64, size))
        else:
            before, slot = varbit.offset // 8, layout.varbits[header]
            if before:
                self._store(start, raw, const(64, before))
            length = asm.load(asm.at(self.gen.machine.scratch, slot.length), 32, 4)
            some, behind = asm.block("varbit.some"), asm.block("varbit.behind")
            b.cbranch(b.icmp_unsigned("==", length, const(32, 0)), behind, some)
            asm.enter(some)
            self._store(b.add(start, const(32, before)), slot.offset, self.gen.varbit_bytes(header))
            b.branch(behind)
            asm.enter(behind)
            if size > before:
                rest = b.add(b.add(start, const(32, before)), length)
                self._store(rest, raw + before, const(64, size - before))
        b.branch(done)
        asm.enter(done)

    def _store(self, start: Value, scratch_offset: int, count: Value) -> None:
        """Copy `count` bytes of scratch memory to offset `start` of the frame."""
        asm, b = self.asm, self.asm.b
        fine = asm.block("stored")
        origin = asm.at(self.gen.machine.scratch, scratch_offset)
        failed = asm.helper(
            Helper.SKB_STORE_BYTES, self.gen.ctx, asm.fit(start, 64), origin, count, const(64, 0)
        )
        b.cbranch(b.icmp_unsigned("==", failed, const(64, 0)), fine, self.gen.drop)
        asm.enter(fine)

    def _pack(self, ref: FieldRef) -> None:
        """Write a field's bits into the raw bytes of its header in scratch memory."""
        asm, b, memory = self.asm, self.asm.b, self.gen.machine.scratch
        field = self.gen.program.field(ref)
        base = self.gen.layout.raw[ref.header]
        bits = self.gen.machine.read(ref, NOWHERE)
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
