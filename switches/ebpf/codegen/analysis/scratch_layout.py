"""Find the fields and features that a program uses, and lay out its scratch memory.

Scratch memory is one value of a per-CPU map. It holds the state of the frame while the program runs. Every
field that the program reads or writes has a slot in host byte order, whose size is a power of two. Unused
fields have no slot: their bits stay in the raw bytes of the header, which scratch memory also holds.
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
    """The fields that a program reads and writes. For a header in `whole`, these are all fields."""

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


_WHOLE = ("access_field", "dereference_header_stack", "==", "!=")  # operations that may use a whole header
RESULTS = {"execute_meter": 2}  # index of the argument that a statement writes, if the index is not 0


def operands(expr: Expr | None) -> Iterator[Expr]:
    """Yield an expression and all its parts, at every depth."""
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
        # A statement writes its first argument, or the argument given in RESULTS, and reads the others.
        at = RESULTS.get(p.op, 0)
        if len(p.args) > at and isinstance(target := p.args[at], FieldRef):
            usage.written.add(target)
        _reads(program, usage, p.args)


def usage_of(program: Program) -> Usage:
    """Return the fields that a program's statements, keys, conditions and externs read and write."""
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
    """Return True if a program can send a frame to a multicast group."""
    return any(True for _ in multicast_writes(program))


def program_clones(program: Program) -> bool:
    """Return True if a program can clone a frame."""
    return _uses(program, "clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress")


def program_truncates(program: Program) -> bool:
    """Return True if a program can truncate a frame."""
    return _uses(program, "truncate")


def program_reenters(program: Program) -> bool:
    """Return True if frames, or clones of them, can enter the pipeline again (see `recirculation`)."""
    cut_copies = program_multicasts(program) and program_truncates(program)
    return program_clones(program) or _uses(program, "resubmit", "recirculate") or cut_copies


def _uses(program: Program, *names: str) -> bool:
    return any(p.op in names for a in program.actions.values() for p in a.primitives)


COPYING = 32
TRAILER = 32  # bytes of the trailer of a frame that enters again, see `recirculation`
ASKED = 1 << 31  # flag in a clone request; bits 16 to 30 are the field list, bits 0 to 14 the session
SESSION_MASK = 0x7FFF  # a session number has 15 bits, as in BMv2
CHUNK = 512  # bytes of the payload that are moved or summed at a time


@dataclass(frozen=True)
class Slot:
    """The offset and the size of a field in scratch memory, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True)
class VarbitSlot:
    """A field of variable length in scratch memory: the offsets of its length (4 bytes) and its content.

    The content has room for `room` bytes, a power of two. Bytes after the end of the field are zero.
    """

    length: int
    offset: int
    room: int


@dataclass(frozen=True)
class Layout:
    """Offsets in scratch memory, in bytes."""

    slots: dict[FieldRef, Slot]
    valid: dict[str, int]  # one byte per header: 1 if it is valid, else 0
    raw: dict[str, int]  # the bytes of each header, as on the wire
    place: dict[str, int]  # 2 bytes per header: its offset in the received frame
    varbits: dict[str, VarbitSlot]  # variable-length fields, by header
    dirty: dict[str, int]  # one byte per header: 1 if a field was written after the parser
    moved: int  # one byte: 1 if a header was added or removed after the parser
    digest: int  # 4 bytes: the requested digest, or 0
    exited: int  # one byte: 1 if an action has executed `exit`
    clone: int  # 4 bytes: the requested clone (see ASKED), or 0
    resubmit: int  # 4 bytes: the field list of a requested resubmit, or 0
    recirculate: int  # 4 bytes: the field list of a requested recirculate, or 0
    cut: int  # 4 bytes: the length that truncate() has set, plus 1; 0 without truncate()
    zeroed: int  # the bytes before this offset are cleared for every frame
    parsed: int  # 4 bytes: the offset of the payload in the frame
    base: int  # 4 bytes, in the parser: sum of the extracted lengths that are known only at run time
    length: int  # 4 bytes: packet_length, updated when headers are added or removed
    key: int  # the key of a table look-up
    buffer: int  # CHUNK bytes for the payload while it is moved or summed
    copying: int  # state while copies are made, see `replication`
    trailer: int  # TRAILER bytes: the trailer of a frame that has entered again, see `recirculation`
    saved: int  # a copy of all bytes before `key`, for a frame's copies and frames that enter again
    size: int
    usage: Usage

    def written(self, header: str) -> list[FieldRef]:
        """Return the fields of a header that may differ from its raw bytes, in the order of the slots."""
        whole = header in self.usage.whole
        return [r for r in self.slots if r.header == header and (whole or r in self.usage.written)]


def slot_size(width: int) -> int:
    """Return the slot size in bytes for a field of `width` bits. The size is a power of two."""
    size = 1
    while size * 8 < width:
        size *= 2
    return size


def make_layout(program: Program, key_size: int) -> Layout:
    """Lay out a program's scratch memory. `key_size` is the size of its largest table key in bytes."""
    usage = usage_of(program)
    reenters = program_reenters(program)
    touched = usage.read | usage.written
    refs = [
        FieldRef(h.name, f.name)
        for h in program.headers.values()
        for f in h.type.fields
        if f.width <= WIDEST and (h.metadata or h.name in usage.whole or FieldRef(h.name, f.name) in touched)
    ]
    # Unused fields of standard_metadata have no slot, except egress_spec, which the target always reads.
    spec = FieldRef("standard_metadata", "egress_spec")
    kept = {*touched, spec}
    refs = [r for r in refs if r in kept or r.header in usage.whole or not program.headers[r.header].metadata]
    slots: dict[FieldRef, Slot] = {}
    at = 0
    sized = [(slot_size(program.field(r).width), r) for r in refs]
    for size, ref in sorted(sized, key=lambda pair: -pair[0]):  # largest slots first, so that all are aligned
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
