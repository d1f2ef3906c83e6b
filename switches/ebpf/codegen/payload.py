"""The payload: walking through it in pieces whose sizes the verifier knows."""

from __future__ import annotations

from collections.abc import Callable

from mrclab.switches.ebpf.codegen.analysis.scratch_layout import CHUNK
from mrclab.switches.ebpf.codegen.backend.asm import I32, Asm, Helper, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext

_CHUNKS = 65536 // CHUNK  # no frame is longer
_WORD = 4  # bytes; bpf_csum_diff takes whole words


def walk(asm: Asm, count: Value, visit: Callable[[Value, int], None]) -> None:
    """Visit `count` bytes in order, each piece as offset and size: chunks, then ever smaller powers of two.

    Sizes are constants: for a computed size the verifier would need a proof.
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

    As in BMv2, the payload ends where truncate() has cut it. Call it before the frame changes its length.
    """
    asm, b, layout, memory = gen.asm, gen.asm.b, gen.layout, gen.machine.scratch
    start = asm.load(asm.at(memory, layout.parsed), 32, 4)
    count = b.sub(gen.frame_length, start)
    if gen.truncates:
        keep = b.sub(
            asm.load(asm.at(memory, layout.cut), 32, 4), const(32, 1)
        )  # the largest number if there was no truncate()
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
