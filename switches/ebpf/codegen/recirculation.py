"""Write code for frames that enter the pipeline again: clones, and resubmitted or recirculated frames.

Each run of a tc program handles one frame. So the program sends a clone, for example, to its ingress port
(bpf_redirect with BPF_F_INGRESS), and the kernel runs the program again for the clone. The frame's state is
appended to the frame: scratch memory up to `Layout.key`, and a trailer. A mark (skb->mark) distinguishes such
frames from all other frames.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from mrclab.linux.bpf_types import MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import (
    SESSION_MASK,
    TRAILER,
    Layout,
    program_reenters,
)
from mrclab.switches.ebpf.codegen.backend.asm import Asm, Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext, Recirculation
from mrclab.switches.v1model.program import Program

ROUNDS = 256  # maximum number of re-entries of a frame; a clone inherits the number of its original
MARK = 8  # offset in struct __sk_buff of linux/bpf.h
_INGRESS = 1  # BPF_F_INGRESS
_ALL = 0xFFFFFFFF
_LARGEST = 6 * 1024  # maximum number of bytes that can be appended to a frame of 9,216 bytes
# Offsets of the trailer's fields. SESSION is a session or a port, FIELDS a field list, ROUNDS the number of
# earlier re-entries, KEEP the number of bytes to keep, and PROGRAM the number of the sending program.
_REASON, _SESSION, _FIELDS, _ROUNDS, _KEEP, _RECEIVED, _PROGRAM, _SPARE = range(0, 32, 4)


class EntryReason(IntEnum):
    """Why a frame enters the pipeline. The numbers are BMv2's instance types; CUT is a truncated copy."""

    NEW = 0
    INGRESS_CLONE = 1
    EGRESS_CLONE = 2
    RECIRCULATED = 4
    RESUBMITTED = 6
    CUT = 7


def identity_map(program: Program, layout: Layout, pool: MapPool) -> int | None:
    """Add a map with the program's number and the mark of frames that enter the pipeline again.

    Return the map's index, or None if no frame of this program enters the pipeline again. Raise
    UnsupportedError if the program's state is too large.
    """
    if not program_reenters(program):
        return None
    if layout.key + TRAILER > _LARGEST:
        raise UnsupportedError("so many headers and metadata in a program that clones or recirculates")
    for fields in program.field_lists.values():
        for ref in fields.fields:
            if ref not in layout.slots:
                raise UnsupportedError(f"preserving {ref.header}.{ref.field}", str(fields.source))
    return pool.add(MapSpec("names", MapType.ARRAY, 4, 8, 1))


def take_trailer(
    asm: Asm, layout: Layout, ctx: Value, scratch: Value, entry: Recirculation, length: Value, drop: Any
) -> Value:
    """Write code that removes the trailer of a frame that entered again. Return the new length."""
    b = asm.b
    asm.zero(scratch, layout.trailer, TRAILER)
    start = b.block
    marked, ours, mine, plain = (asm.block(f"again.{n}") for n in ("marked", "ours", "mine", "plain"))
    b.cbranch(b.icmp_unsigned("==", entry.mark, const(32, 0)), plain, marked)
    asm.enter(marked)
    identity = asm.map_value(entry.identity)
    b.cbranch(b.icmp_unsigned("==", entry.mark, asm.load(identity, 32, 4)), ours, plain)
    asm.enter(ours)
    base = b.sub(length, const(32, layout.key + TRAILER))
    _require_zero(
        asm,
        asm.helper(Helper.SKB_LOAD_BYTES, ctx, base, asm.at(scratch, layout.saved), const(64, layout.key)),
        drop,
    )
    behind = b.add(base, const(32, layout.key))
    _require_zero(
        asm,
        asm.helper(Helper.SKB_LOAD_BYTES, ctx, behind, asm.at(scratch, layout.trailer), const(64, TRAILER)),
        drop,
    )
    # If the program was replaced after it sent this frame, drop the frame: the new layout may differ.
    sender = asm.load(asm.at(scratch, layout.trailer + _PROGRAM), 32, 4)
    b.cbranch(b.icmp_unsigned("==", sender, asm.load(asm.at(identity, 4), 32, 4)), mine, drop)
    asm.enter(mine)
    asm.store(const(32, 0), asm.at(ctx, MARK), 4)
    _require_zero(asm, asm.helper(Helper.SKB_CHANGE_TAIL, ctx, base, const(64, 0)), drop)
    end = b.block
    b.branch(plain)
    asm.enter(plain)
    result = b.phi(length.type)
    result.add_incoming(length, start)
    result.add_incoming(length, marked)
    result.add_incoming(base, end)
    return result


def _require_zero(asm: Asm, failed: Value, drop: Any) -> None:
    fine = asm.block("again.fine")
    asm.b.cbranch(asm.b.icmp_unsigned("==", failed, const(64, 0)), fine, drop)
    asm.enter(fine)


def cut_to(asm: Asm, ctx: Value, length: Value, keep: Value, drop: Any) -> Value:
    """Write code that shortens a frame to at most `keep` bytes. Return its new length."""
    b = asm.b
    start = b.block
    shorten, done = asm.block("keep.shorten"), asm.block("keep.done")
    b.cbranch(b.icmp_unsigned("<", keep, length), shorten, done)
    asm.enter(shorten)
    _require_zero(asm, asm.helper(Helper.SKB_CHANGE_TAIL, ctx, keep, const(64, 0)), drop)
    end = b.block
    b.branch(done)
    asm.enter(done)
    result = b.phi(length.type)
    result.add_incoming(length, start)
    result.add_incoming(keep, end)
    return result


def cut_reentered(
    asm: Asm, layout: Layout, ctx: Value, scratch: Value, length: Value, drop: Any
) -> tuple[Value, Value]:
    """Write code that shortens a frame that has entered again. The frame's trailer has the new length.

    Return the present length and the received length. Both lengths are equal for a new or recirculated frame.
    For other frames, the received length is the length of the original frame.
    """
    b = asm.b
    reason = asm.load(asm.at(scratch, layout.trailer + _REASON), 32, 4)
    new = b.icmp_unsigned("==", reason, const(32, EntryReason.NEW))
    keep = asm.load(asm.at(scratch, layout.trailer + _KEEP), 32, 4)
    length = cut_to(asm, ctx, length, b.select(new, const(32, _ALL), keep), drop)
    whole = b.or_(new, b.icmp_unsigned("==", reason, const(32, EntryReason.RECIRCULATED)))
    received = asm.load(asm.at(scratch, layout.trailer + _RECEIVED), 32, 4)
    return length, b.select(whole, length, received)


def _trailer_field(gen: CodegenContext, at: int) -> Value:
    """Write code that loads a 32-bit field of the trailer with which the frame entered."""
    return gen.asm.load(gen.asm.at(gen.machine.scratch, gen.layout.trailer + at), 32, 4)


def dispatch_reentry(gen: CodegenContext, egress_clone: Any, cut: Any) -> None:
    """Write the code between entry and parser. The code clears metadata for frames that enter again.

    Egress clones and truncated copies skip the parser: they continue in the blocks given as arguments.
    """
    asm, b = gen.asm, gen.asm.b
    reason = entry_reason(gen)
    clone, more, parse = (asm.block(f"begin.{n}") for n in ("clone", "more", "parse"))
    choose = b.switch(reason, parse)
    for kind, block in (
        (EntryReason.INGRESS_CLONE, clone),
        (EntryReason.EGRESS_CLONE, egress_clone),
        (EntryReason.RECIRCULATED, more),
        (EntryReason.RESUBMITTED, more),
        (EntryReason.CUT, cut),
    ):
        choose.add_case(const(32, kind), block)
    asm.enter(clone)  # keep the ingress port, which the parser may read; become_clone clears the rest
    for name in ("packet_length", "ingress_global_timestamp"):
        gen.set_standard(name, const(64, 0))
    b.branch(parse)
    asm.enter(more)
    for name in ("ingress_port", "ingress_global_timestamp"):
        gen.set_standard(name, const(64, 0))
    gen.set_standard("instance_type", reason)
    _preserve(gen)
    b.branch(parse)
    asm.enter(parse)


def become_clone(gen: CodegenContext, reason: EntryReason) -> None:
    """Write code that clears all metadata that a clone does not keep, and sets its instance type."""
    asm, memory = gen.asm, gen.machine.scratch
    for ref, slot in gen.layout.slots.items():
        if gen.program.headers[ref.header].metadata:
            asm.zero(memory, slot.offset, slot.size)
    _preserve(gen)
    gen.set_standard("instance_type", const(32, reason))


def restore_image(gen: CodegenContext) -> None:
    """Write code that restores the scratch memory of an egress clone, but without the requests of actions."""
    asm, memory, layout = gen.asm, gen.machine.scratch, gen.layout
    asm.copy(memory, 0, memory, layout.saved, layout.key)
    for place in (layout.clone, layout.recirculate, layout.cut, layout.digest):
        asm.store(const(32, 0), asm.at(memory, place), 4)


def _preserve(gen: CodegenContext) -> None:
    """Write code that copies the metadata of the requested field list from the original frame."""
    asm, b, memory = gen.asm, gen.asm.b, gen.machine.scratch
    lists = [f for f in gen.program.field_lists.values() if f.fields]
    if not lists:
        return
    done = asm.block("preserved")
    choose = b.switch(_trailer_field(gen, _FIELDS), done)
    for fields in lists:
        block = asm.block(f"preserve.{fields.id}")
        choose.add_case(const(32, fields.id), block)
        asm.enter(block)
        for ref in fields.fields:
            slot = gen.layout.slots[ref]
            asm.copy(memory, slot.offset, memory, gen.layout.saved + slot.offset, slot.size)
        b.branch(done)
    asm.enter(done)


def entry_reason(gen: CodegenContext) -> Value:
    """Write code that loads the reason why the frame has entered (EntryReason)."""
    return _trailer_field(gen, _REASON)


def session_of(gen: CodegenContext) -> Value:
    """Write code that loads the session of a clone, or the egress port of a truncated copy."""
    return _trailer_field(gen, _SESSION)


def class_of(gen: CodegenContext) -> Value:
    """Write code that loads skb->priority of a truncated copy."""
    return _trailer_field(gen, _FIELDS)


def _request(gen: CodegenContext, at: int) -> Value:
    """Write code that loads a request. `at` is the layout's offset `clone`, `resubmit` or `recirculate`."""
    return gen.asm.load(gen.asm.at(gen.machine.scratch, at), 32, 4)


def truncated_length(gen: CodegenContext) -> Value:
    """Return the length that truncate() has set. Without truncate() it is the largest 32-bit number."""
    asm, b = gen.asm, gen.asm.b
    cut = asm.load(asm.at(gen.machine.scratch, gen.layout.cut), 32, 4)
    return b.sub(cut, const(32, 1))


def clone_if_requested(gen: CodegenContext, reason: EntryReason) -> None:
    """Write code for the end of ingress or egress: send a clone if an action has requested it."""
    asm, b, layout = gen.asm, gen.asm.b, gen.layout
    requested = _request(gen, layout.clone)
    send, done = asm.block("clone.send"), asm.block("clone.done")
    b.cbranch(b.icmp_unsigned("==", requested, const(32, 0)), done, send)
    asm.enter(send)
    asm.store(const(32, 0), asm.at(gen.machine.scratch, layout.clone), 4)
    session = b.and_(requested, const(32, SESSION_MASK))
    fields = b.and_(b.lshr(requested, const(32, 16)), const(32, SESSION_MASK))
    reinject(gen, reason, gen.frame_length, session, fields, const(32, _ALL), done)
    b.branch(done)
    asm.enter(done)


def resubmit_if_requested(gen: CodegenContext) -> None:
    """Write code for the end of ingress: resubmit the frame if an action has requested it."""
    asm, b = gen.asm, gen.asm.b
    fields = _request(gen, gen.layout.resubmit)
    send, done = asm.block("resubmit.send"), asm.block("resubmit.done")
    b.cbranch(b.icmp_unsigned("==", fields, const(32, 0)), done, send)
    asm.enter(send)
    reinject(gen, EntryReason.RESUBMITTED, gen.frame_length, const(32, 0), fields, const(32, _ALL), None)
    asm.enter(done)


def recirculate_if_requested(gen: CodegenContext, length: Value, after: Any) -> None:
    """Write code for the end of the deparser: recirculate the frame (`length` bytes) if requested.

    If `after` is a block, a clone of the frame is recirculated, and the code continues in `after`. If `after`
    is None, the frame itself is recirculated.
    """
    asm, b = gen.asm, gen.asm.b
    fields = _request(gen, gen.layout.recirculate)
    send, done = asm.block("recirculate.send"), asm.block("recirculate.done")
    b.cbranch(b.icmp_unsigned("==", fields, const(32, 0)), done, send)
    asm.enter(send)
    reinject(gen, EntryReason.RECIRCULATED, length, const(32, 0), fields, const(32, _ALL), after)
    if after is not None:
        b.branch(after)
    asm.enter(done)


def reinject(
    gen: CodegenContext,
    reason: EntryReason,
    length: Value,
    session: Value,
    fields: Value,
    keep: Value,
    after: Any,
) -> None:
    """Write code that sends a frame of `length` bytes to its ingress port, so that the frame enters again.

    If `after` is a block, a clone of the frame is sent. If `after` is None, the frame itself is sent, and
    the current block ends. A frame that has entered ROUNDS times is not sent again.
    """
    entry = gen.recirculation
    assert entry is not None
    asm, b, memory, layout = gen.asm, gen.asm.b, gen.machine.scratch, gen.layout
    rounds = _trailer_field(gen, _ROUNDS)
    few = asm.block("again.few")
    b.cbranch(b.icmp_unsigned("<", rounds, const(32, ROUNDS)), few, gen.drop if after is None else after)
    asm.enter(few)
    identity = asm.map_value(entry.identity)
    for at, value in (
        (_REASON, const(32, reason)),
        (_SESSION, session),
        (_FIELDS, fields),
        (_ROUNDS, b.add(rounds, const(32, 1))),
        (_KEEP, keep),
        (_RECEIVED, gen.length),
        (_PROGRAM, asm.load(asm.at(identity, 4), 32, 4)),
        (_SPARE, const(32, 0)),
    ):
        asm.store(value, asm.at(memory, layout.key + at), 4)
    size = layout.key + TRAILER
    longer = b.add(length, const(32, size))
    _require_zero(asm, asm.helper(Helper.SKB_CHANGE_TAIL, gen.ctx, longer, const(64, 0)), gen.drop)
    stored = asm.helper(Helper.SKB_STORE_BYTES, gen.ctx, length, memory, const(64, size), const(64, 0))
    _require_zero(asm, stored, gen.drop)
    asm.store(asm.load(identity, 32, 4), asm.at(gen.ctx, MARK), 4)
    if after is None:
        b.ret(asm.fit(asm.helper(Helper.REDIRECT, entry.ifindex, const(64, _INGRESS)), 32))
        return
    asm.helper(Helper.CLONE_REDIRECT, gen.ctx, entry.ifindex, const(64, _INGRESS))
    asm.store(const(32, 0), asm.at(gen.ctx, MARK), 4)
    _require_zero(asm, asm.helper(Helper.SKB_CHANGE_TAIL, gen.ctx, length, const(64, 0)), gen.drop)
