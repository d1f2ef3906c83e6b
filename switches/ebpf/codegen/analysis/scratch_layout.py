"""What a program uses, and the layout of a packet's fields while it runs: one value of a scratch map.

The scratch map is per CPU. Every field that the program reads or writes has a slot of 1, 2, 4, 8 or 16 bytes
in host order. Fields that are only carried along have none: their bits stay in the raw image of their
header, kept beside the slots. The features that a program uses are multicast, clones and truncation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mrclab.switches.ebpf.plan import WIDEST, round8
from mrclab.switches.v1model.expressions import (
    Const,
    Expr,
    FieldRef,
    Name,
    Op,
    Primitive,
    StackField,
    UnionStackField,
    Vector,
)
from mrclab.switches.v1model.program import ActionCall, Conditional, Program, Table


@dataclass
class Usage:
    """Which fields a program touches. A `whole` header is copied, so all of it counts."""

    read: set[FieldRef] = field(default_factory=set)
    written: set[FieldRef] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)


_HEADER_WRITERS = {
    "assign_header",
    "add_header",
    "push",
    "pop",
    "assign_header_stack",
    "assign_union",
    "assign_union_stack",
}


_WHOLE = ("access_field", "dereference_header_stack", "==", "!=")  # may compare headers as a whole
RESULTS = {"execute_meter": 2}  # the index of the written argument, if it is not 0


def operands(expr: Expr | None) -> Iterator[Expr]:
    """Yield an expression and everything in it."""
    if expr is None:
        return
    yield expr
    if isinstance(expr, Op):
        for part in (expr.left, expr.right, expr.cond):
            yield from operands(part)
    elif isinstance(expr, Vector):
        for item in expr.items:
            yield from operands(item)


def _reads(program: Program, usage: Usage, exprs: Iterable[Expr]) -> None:
    for expr in exprs:
        for part in operands(expr):
            if isinstance(part, FieldRef):
                usage.read.add(part)
            elif isinstance(part, StackField):
                members = program.stacks[part.stack].members
                usage.read |= {FieldRef(m, part.field) for m in members}
                if part.field == "last":
                    usage.whole |= set(members)
            elif isinstance(part, UnionStackField):
                elements = (
                    program.element(part.stack, i, part.header) for i in range(program.depth(part.stack))
                )
                usage.read |= {FieldRef(header, part.field) for header in elements}
            elif isinstance(part, Op) and part.op in _WHOLE:
                for inner in (*operands(part.left), *operands(part.right)):
                    if isinstance(inner, Name):
                        usage.whole |= set(program.named(inner))


def _primitives(program: Program, usage: Usage, primitives: Iterable[Primitive]) -> None:
    for p in primitives:
        if p.op in _HEADER_WRITERS:
            for a in p.args:
                if isinstance(a, Name):
                    usage.whole |= set(program.named(a))
        # Most statements that write a field have it as their first argument; other arguments are read.
        at = RESULTS.get(p.op, 0)
        if len(p.args) > at and isinstance(target := p.args[at], FieldRef):
            usage.written.add(target)
        _reads(program, usage, p.args)


def usage_of(program: Program) -> Usage:
    """Collect what every statement, key and condition of a program reads and writes."""
    usage = Usage()
    for state in program.parser.states.values():
        _primitives(program, usage, state.ops)
        _reads(program, usage, state.key)
    for action in program.actions.values():
        _primitives(program, usage, action.primitives)
    _primitives(program, usage, program.deparser.primitives)
    usage.written |= {m.result for m in program.meters.values() if m.result is not None}
    usage.read |= {ref for d in program.digests.values() for ref in d.fields}
    usage.read |= {ref for f in program.field_lists.values() for ref in f.fields}
    selectors = [p.selector for p in program.profiles.values() if p.selector is not None]
    for calculation in (*program.calculations.values(), *selectors):
        for item in calculation.input:
            if isinstance(item, FieldRef):
                usage.read.add(item)
            elif isinstance(item, Name) and item.kind == "header":
                usage.whole.add(item.name)
    for checksum in program.checksums:
        if checksum.update:
            usage.written.add(checksum.target)
        usage.read.add(checksum.target)
        if checksum.condition is not None:
            _reads(program, usage, [checksum.condition])
    for pipeline in (program.ingress, program.egress):
        for node in pipeline.nodes.values():
            match node:
                case Table():
                    usage.read |= {k.target for k in node.key}
                case Conditional():
                    _reads(program, usage, [node.expr])
                case ActionCall():
                    pass
    return usage


def multicast_writes(program: Program) -> Iterator[Primitive]:
    """Yield the statements that send a frame to a multicast group."""
    states = (op for s in program.parser.states.values() for op in s.ops)
    for p in (*states, *(p for a in program.actions.values() for p in a.primitives)):
        at = RESULTS.get(p.op, 0)
        target = p.args[at] if len(p.args) > at else None
        if target == FieldRef("standard_metadata", "mcast_grp") and p.args[1:] != (Const(0),):
            yield p


def program_multicasts(program: Program) -> bool:
    """Return True if a program sends any frame to a multicast group."""
    return any(True for _ in multicast_writes(program))


def program_clones(program: Program) -> bool:
    """Return True if a program clones any frame."""
    return _uses(program, "clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress")


def program_truncates(program: Program) -> bool:
    """Return True if a program truncates any frame."""
    return _uses(program, "truncate")


def program_reenters(program: Program) -> bool:
    """Return True if frames, or clones of them, can enter the pipeline again (see `recirculation`)."""
    cut_copies = program_multicasts(program) and program_truncates(program)
    return program_clones(program) or _uses(program, "resubmit", "recirculate") or cut_copies


def _uses(program: Program, *names: str) -> bool:
    return any(p.op in names for a in program.actions.values() for p in a.primitives)


COPYING = 32
TRAILER = 32  # bytes behind a frame that enters again, see `recirculation`
ASKED = 1 << 31  # set in a requested clone; the field list is in bits 16 to 30, the session below
SESSION_MASK = 0x7FFF  # as in BMv2
CHUNK = 512  # bytes moved at a time when a frame shrinks


@dataclass(frozen=True)
class Slot:
    """A field's place in scratch memory, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True)
class VarbitSlot:
    """The place of a field of variable length: its length in bytes (4 bytes), and its bytes.

    There is room for `room` bytes, a power of two; those behind its end are zeros.
    """

    length: int
    offset: int
    room: int


@dataclass(frozen=True)
class Layout:
    """Offsets in the scratch value, in bytes."""

    slots: dict[FieldRef, Slot]
    valid: dict[str, int]  # one byte per header, 0 or 1
    raw: dict[str, int]  # the header as it is on the wire
    place: dict[str, int]  # 2 bytes per header: where in the frame it was found
    varbits: dict[str, VarbitSlot]  # by header
    dirty: dict[str, int]  # one byte per header: a field was written since it was parsed
    moved: int  # one byte: a header was added or removed since the parser
    digest: int  # 4 bytes: the requested digest, 0 without
    exited: int  # one byte: an action has executed `exit`
    clone: int  # 4 bytes: the requested clone (ASKED), 0 without
    resubmit: int  # 4 bytes: the field list of a requested resubmit, 0 without
    recirculate: int  # 4 bytes: the field list of a requested recirculate, 0 without
    cut: int  # 4 bytes: one more than what truncate() leaves of the frame, 0 without
    zeroed: int  # bytes from 0 on that are cleared for every frame
    parsed: int  # 4 bytes: where the payload begins
    base: int  # 4 bytes: sum of the lengths, known only at run time, that the parser has passed
    length: int  # 4 bytes: packet_length with added and removed headers
    key: int  # where table keys are assembled
    buffer: int  # CHUNK bytes to move payload through
    copying: int  # state of the frame while it is copied, see `replication`
    trailer: int  # TRAILER bytes: how a frame has entered again, see `recirculation`
    saved: int  # the value below `key` before the first copy, or when a frame was reinjected
    size: int
    usage: Usage

    def written(self, header: str) -> list[FieldRef]:
        """Return the fields of a header that may differ from its raw image, in the order of the slots."""
        whole = header in self.usage.whole
        return [r for r in self.slots if r.header == header and (whole or r in self.usage.written)]


def slot_size(width: int) -> int:
    """Return the bytes of the slot of a field of `width` bits, a power of two."""
    size = 1
    while size * 8 < width:
        size *= 2
    return size


def make_layout(program: Program, key_size: int) -> Layout:
    """Lay out a program's scratch value; `key_size` is that of its largest key in bytes."""
    usage = usage_of(program)
    reenters = program_reenters(program)
    touched = usage.read | usage.written
    refs = [
        FieldRef(h.name, f.name)
        for h in program.headers.values()
        for f in h.type.fields
        if f.width <= WIDEST and (h.metadata or h.name in usage.whole or FieldRef(h.name, f.name) in touched)
    ]
    # Standard metadata that no statement names has no slot, except egress_spec, which the target reads.
    spec = FieldRef("standard_metadata", "egress_spec")
    kept = {*touched, spec}
    refs = [r for r in refs if r in kept or r.header in usage.whole or not program.headers[r.header].metadata]
    slots: dict[FieldRef, Slot] = {}
    at = 0
    sized = [(slot_size(program.field(r).width), r) for r in refs]
    for size, ref in sorted(sized, key=lambda pair: -pair[0]):  # largest first: every slot is aligned
        slots[ref] = Slot(at, size)
        at += size
    wire = [h for h in program.headers.values() if not h.metadata]
    valid = {}
    for h in wire:
        valid[h.name] = at
        at += 1
    dirty = {}
    for h in wire:
        dirty[h.name] = at
        at += 1
    moved, exited = at, at + 1
    cut = at = (at + 5) & ~3
    digest = at = at + 4
    base = at = at + 4
    if reenters:
        at += 12
    clone, resubmit, recirculate = at - 8, at - 4, at
    at = round8(at + 4)
    varbits = {}
    for h in program.headers.values():
        if h.type.varbit is not None:
            varbits[h.name] = slot = VarbitSlot(
                at, at + 8, max(8, 1 << (h.type.varbit.size - 1).bit_length())
            )
            at = slot.offset + slot.room
    zeroed = at
    parsed, at = at, at + 8
    raw = {}
    for h in wire:
        raw[h.name] = at
        at += round8((h.type.bits + 7) // 8)
    place = {}
    for h in wire:
        place[h.name] = at
        at += 2
    key = at = round8(at)
    at += max(round8(key_size), TRAILER if reenters else 0)
    buffer, at = at, at + CHUNK
    copying, at = at, at + COPYING
    trailer, at = at, at + (TRAILER if reenters else 0)
    saved, at = at, at + (key if reenters or program_multicasts(program) else 0)
    return Layout(
        slots=slots,
        valid=valid,
        raw=raw,
        place=place,
        varbits=varbits,
        base=base,
        dirty=dirty,
        moved=moved,
        digest=digest,
        exited=exited,
        clone=clone,
        resubmit=resubmit,
        recirculate=recirculate,
        cut=cut,
        zeroed=zeroed,
        parsed=parsed,
        length=parsed + 4,
        key=key,
        buffer=buffer,
        copying=copying,
        trailer=trailer,
        saved=saved,
        size=at,
        usage=usage,
    )
