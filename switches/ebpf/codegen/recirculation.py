"""Frames that begin anew: clones, resubmit, recirculate.

A tc program has one frame. So it sends such a frame, or a clone of it, to the port that it came in on, as if
it came in there once more (bpf_redirect with BPF_F_INGRESS): the kernel puts it into its queue of received
frames and runs the program for it. What has to be known of it then is at its end: what scratch memory held
below `key`, and a trailer. Such frames bear a mark that others do not have.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from linux.bpf_types import MapSpec, MapType
from linux.errors import UnsupportedError
from switches.ebpf.codegen.analysis.scratch_layout import SESSION_MASK, TRAILER, Layout, program_again
from switches.ebpf.codegen.backend.asm import Asm, Helper, MapPool, Value, const
from switches.ebpf.codegen.codegen_context import Again, Unit
from switches.v1model.program import Program

ROUNDS = 256  # how often a frame, or what became of it, begins anew
MARK = 8  # offset in struct __sk_buff of linux/bpf.h
_INGRESS = 1  # BPF_F_INGRESS
_ALL = 0xFFFFFFFF
_LARGEST = 6 * 1024  # what can be put behind a frame of 9,216 bytes
# Where in the trailer is why, the session or port, the field list, how often, how many bytes of the frame to
# keep, how many there were when it came in, and which program has sent it.
_WHY, _SESSION, _FIELDS, _ROUNDS, _KEEP, _RECEIVED, _PROGRAM, _SPARE = range(0, 32, 4)


class Why(IntEnum):
    """Why a frame begins anew: BMv2's instance types, and a copy that is to be sent when it has been cut."""

    NEW = 0
    INGRESS_CLONE = 1
    EGRESS_CLONE = 2
    RECIRCULATED = 4
    RESUBMITTED = 6
    CUT = 7


def names_map(program: Program, layout: Layout, pool: MapPool) -> int | None:
    """The map with the mark of frames that begin anew (32 bits) and the number of the program (32 bits).

    None for a program that has no such frames. Raises UnsupportedError.
    """
    if not program_again(program):
        return None
    if layout.key + TRAILER > _LARGEST:
        raise UnsupportedError("so many headers and metadata in a program that clones or recirculates")
    for fields in program.field_lists.values():
        for ref in fields.fields:
            if ref not in layout.slots:
                raise UnsupportedError(f"preserving {ref.header}.{ref.field}", str(fields.source))
    return pool.add(MapSpec("names", MapType.ARRAY, 4, 8, 1))


def arrive(
    asm: Asm, layout: Layout, ctx: Value, scratch: Value, again: Again, length: Value, drop: Any
) -> Value:
    """Take off a frame what the program has put behind it. Returns the length that it then has."""
    b = asm.b
    asm.zero(scratch, layout.again, TRAILER)
    start = b.block
    marked, ours, mine, plain = (asm.block(f"again.{n}") for n in ("marked", "ours", "mine", "plain"))
    b.cbranch(b.icmp_unsigned("==", again.mark, const(32, 0)), plain, marked)
    asm.enter(marked)
    names = asm.map_value(again.names)
    b.cbranch(b.icmp_unsigned("==", again.mark, asm.load(names, 32, 4)), ours, plain)
    asm.enter(ours)
    base = b.sub(length, const(32, layout.key + TRAILER))
    _need(
        asm,
        asm.helper(Helper.SKB_LOAD_BYTES, ctx, base, asm.at(scratch, layout.saved), const(64, layout.key)),
        drop,
    )
    behind = b.add(base, const(32, layout.key))
    _need(
        asm,
        asm.helper(Helper.SKB_LOAD_BYTES, ctx, behind, asm.at(scratch, layout.again), const(64, TRAILER)),
        drop,
    )
    # A frame that the program sent which was here before is of no use to this one.
    sender = asm.load(asm.at(scratch, layout.again + _PROGRAM), 32, 4)
    b.cbranch(b.icmp_unsigned("==", sender, asm.load(asm.at(names, 4), 32, 4)), mine, drop)
    asm.enter(mine)
    asm.store(const(32, 0), asm.at(ctx, MARK), 4)
    _need(asm, asm.helper(Helper.SKB_CHANGE_TAIL, ctx, base, const(64, 0)), drop)
    end = b.block
    b.branch(plain)
    asm.enter(plain)
    result = b.phi(length.type)
    result.add_incoming(length, start)
    result.add_incoming(length, marked)
    result.add_incoming(base, end)
    return result


def _need(asm: Asm, failed: Value, drop: Any) -> None:
    fine = asm.block("again.fine")
    asm.b.cbranch(asm.b.icmp_unsigned("==", failed, const(64, 0)), fine, drop)
    asm.enter(fine)


def cut_to(asm: Asm, ctx: Value, length: Value, keep: Value, drop: Any) -> Value:
    """Shorten a frame to `keep` bytes if it has more. Returns the length that it then has."""
    b = asm.b
    start = b.block
    shorten, done = asm.block("keep.shorten"), asm.block("keep.done")
    b.cbranch(b.icmp_unsigned("<", keep, length), shorten, done)
    asm.enter(shorten)
    _need(asm, asm.helper(Helper.SKB_CHANGE_TAIL, ctx, keep, const(64, 0)), drop)
    end = b.block
    b.branch(done)
    asm.enter(done)
    result = b.phi(length.type)
    result.add_incoming(length, start)
    result.add_incoming(keep, end)
    return result


def keep_bytes(
    asm: Asm, layout: Layout, ctx: Value, scratch: Value, length: Value, drop: Any
) -> tuple[Value, Value]:
    """Cut a frame that began anew to what it is to keep. Returns its length, and how long it was received."""
    b = asm.b
    why = asm.load(asm.at(scratch, layout.again + _WHY), 32, 4)
    new = b.icmp_unsigned("==", why, const(32, Why.NEW))
    keep = asm.load(asm.at(scratch, layout.again + _KEEP), 32, 4)
    length = cut_to(asm, ctx, length, b.select(new, const(32, _ALL), keep), drop)
    whole = b.or_(new, b.icmp_unsigned("==", why, const(32, Why.RECIRCULATED)))
    received = asm.load(asm.at(scratch, layout.again + _RECEIVED), 32, 4)
    return length, b.select(whole, length, received)


def _cell(u: Unit, at: int) -> Value:
    """A 32-bit number of the trailer with which the frame has come."""
    return u.asm.load(u.asm.at(u.machine.scratch, u.layout.again + at), 32, 4)


def begin(u: Unit, egress_clone: Any, cut: Any) -> None:
    """Before the parser: take back what only a frame that came in has. The builder goes on with the parser.

    Clones of egress, which do not go there, and frames that only had to be cut go to blocks of their own.
    """
    asm, b = u.asm, u.asm.b
    why = why_of(u)
    clone, more, parse = (asm.block(f"begin.{n}") for n in ("clone", "more", "parse"))
    choose = b.switch(why, parse)
    for kind, block in (
        (Why.INGRESS_CLONE, clone),
        (Why.EGRESS_CLONE, egress_clone),
        (Why.RECIRCULATED, more),
        (Why.RESUBMITTED, more),
        (Why.CUT, cut),
    ):
        choose.add_case(const(32, kind), block)
    asm.enter(clone)  # the parser may look at the port; all metadata is cleared behind it
    for name in ("packet_length", "ingress_global_timestamp"):
        u.set_standard(name, const(64, 0))
    b.branch(parse)
    asm.enter(more)
    for name in ("ingress_port", "ingress_global_timestamp"):
        u.set_standard(name, const(64, 0))
    u.set_standard("instance_type", why)
    preserve(u)
    b.branch(parse)
    asm.enter(parse)


def become_clone(u: Unit, why: Why) -> None:
    """Clear all metadata but what is preserved, and say what kind of clone this is."""
    asm, memory = u.asm, u.machine.scratch
    for ref, slot in u.layout.slots.items():
        if u.program.headers[ref.header].metadata:
            asm.zero(memory, slot.offset, slot.size)
    preserve(u)
    u.set_standard("instance_type", const(32, why))


def restore_image(u: Unit) -> None:
    """Let scratch memory be what it was when an egress clone was sent; what was asked for then is done."""
    asm, memory, layout = u.asm, u.machine.scratch, u.layout
    asm.copy(memory, 0, memory, layout.saved, layout.key)
    for place in (layout.clone, layout.recirculate, layout.cut, layout.digest):
        asm.store(const(32, 0), asm.at(memory, place), 4)


def preserve(u: Unit) -> None:
    """Give a frame the metadata that the one it comes from was to preserve."""
    asm, b, memory = u.asm, u.asm.b, u.machine.scratch
    lists = [f for f in u.program.field_lists.values() if f.fields]
    if not lists:
        return
    done = asm.block("preserved")
    choose = b.switch(_cell(u, _FIELDS), done)
    for fields in lists:
        block = asm.block(f"preserve.{fields.id}")
        choose.add_case(const(32, fields.id), block)
        asm.enter(block)
        for ref in fields.fields:
            slot = u.layout.slots[ref]
            asm.copy(memory, slot.offset, memory, u.layout.saved + slot.offset, slot.size)
        b.branch(done)
    asm.enter(done)


def why_of(u: Unit) -> Value:
    """Why the frame has begun anew."""
    return _cell(u, _WHY)


def session_of(u: Unit) -> Value:
    """The session of a clone, or the port of a frame that only had to be cut."""
    return _cell(u, _SESSION)


def class_of(u: Unit) -> Value:
    """The class of a frame that only had to be cut."""
    return _cell(u, _FIELDS)


def override(u: Unit, at: int) -> Value:
    """What an action has asked for: one of the cells `clone`, `resubmit`, `recirculate` of the layout."""
    return u.asm.load(u.asm.at(u.machine.scratch, at), 32, 4)


def keep_wish(u: Unit) -> Value:
    """How many bytes truncate() leaves of a frame; all ones without."""
    asm, b = u.asm, u.asm.b
    cut = asm.load(asm.at(u.machine.scratch, u.layout.cut), 32, 4)
    return b.sub(cut, const(32, 1))


def clone_if_asked(u: Unit, why: Why) -> None:
    """At the end of ingress or egress: send a clone, if one was asked for."""
    asm, b, layout = u.asm, u.asm.b, u.layout
    asked = override(u, layout.clone)
    send, done = asm.block("clone.send"), asm.block("clone.done")
    b.cbranch(b.icmp_unsigned("==", asked, const(32, 0)), done, send)
    asm.enter(send)
    asm.store(const(32, 0), asm.at(u.machine.scratch, layout.clone), 4)
    session = b.and_(asked, const(32, SESSION_MASK))
    fields = b.and_(b.lshr(asked, const(32, 16)), const(32, SESSION_MASK))
    send_again(u, why, u.frame_length, session, fields, const(32, _ALL), done)
    b.branch(done)
    asm.enter(done)


def resubmit_if_asked(u: Unit) -> None:
    """At the end of ingress: let the frame begin anew, if that was asked for."""
    asm, b = u.asm, u.asm.b
    fields = override(u, u.layout.resubmit)
    send, done = asm.block("resubmit.send"), asm.block("resubmit.done")
    b.cbranch(b.icmp_unsigned("==", fields, const(32, 0)), done, send)
    asm.enter(send)
    send_again(u, Why.RESUBMITTED, u.frame_length, const(32, 0), fields, const(32, _ALL), None)
    asm.enter(done)


def recirculate_if_asked(u: Unit, length: Value, after: Any) -> None:
    """Behind the deparser: let the frame, now of that length, begin anew, if that was asked for.

    A copy goes on in the block `after`, a frame itself, without one, ends there.
    """
    asm, b = u.asm, u.asm.b
    fields = override(u, u.layout.recirculate)
    send, done = asm.block("recirculate.send"), asm.block("recirculate.done")
    b.cbranch(b.icmp_unsigned("==", fields, const(32, 0)), done, send)
    asm.enter(send)
    send_again(u, Why.RECIRCULATED, length, const(32, 0), fields, const(32, _ALL), after)
    if after is not None:
        b.branch(after)
    asm.enter(done)


def send_again(
    u: Unit, why: Why, length: Value, session: Value, fields: Value, keep: Value, after: Any
) -> None:
    """Let a frame of `length` bytes begin anew: itself, or a clone where there is a block `after`.

    One that did so too often is lost. Ends the current block where it is the frame itself.
    """
    again = u.again
    assert again is not None
    asm, b, memory, layout = u.asm, u.asm.b, u.machine.scratch, u.layout
    rounds = _cell(u, _ROUNDS)
    few = asm.block("again.few")
    b.cbranch(b.icmp_unsigned("<", rounds, const(32, ROUNDS)), few, u.drop if after is None else after)
    asm.enter(few)
    names = asm.map_value(again.names)
    for at, value in (
        (_WHY, const(32, why)),
        (_SESSION, session),
        (_FIELDS, fields),
        (_ROUNDS, b.add(rounds, const(32, 1))),
        (_KEEP, keep),
        (_RECEIVED, u.length),
        (_PROGRAM, asm.load(asm.at(names, 4), 32, 4)),
        (_SPARE, const(32, 0)),
    ):
        asm.store(value, asm.at(memory, layout.key + at), 4)
    size = layout.key + TRAILER
    longer = b.add(length, const(32, size))
    _need(asm, asm.helper(Helper.SKB_CHANGE_TAIL, u.ctx, longer, const(64, 0)), u.drop)
    stored = asm.helper(Helper.SKB_STORE_BYTES, u.ctx, length, memory, const(64, size), const(64, 0))
    _need(asm, stored, u.drop)
    asm.store(asm.load(names, 32, 4), asm.at(u.ctx, MARK), 4)
    if after is None:
        b.ret(asm.fit(asm.helper(Helper.REDIRECT, again.ifindex, const(64, _INGRESS)), 32))
        return
    asm.helper(Helper.CLONE_REDIRECT, u.ctx, again.ifindex, const(64, _INGRESS))
    asm.store(const(32, 0), asm.at(u.ctx, MARK), 4)
    _need(asm, asm.helper(Helper.SKB_CHANGE_TAIL, u.ctx, length, const(64, 0)), u.drop)
