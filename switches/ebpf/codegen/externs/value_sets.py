"""Parser value sets: the layout of their maps, and the look-up of a select's key."""

from __future__ import annotations

from collections.abc import Sequence

from mrclab.linux.bpf_types import NO_PREALLOC, MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.backend.asm import I64, Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.plan.layouts import SCAN_LIMIT, KeySlot, ValueSetLayout, round8
from mrclab.switches.ebpf.plan.value_sets import PLACES_PER_FIELD, USED_BYTES
from mrclab.switches.v1model.declarations import ValueSet
from mrclab.switches.v1model.expressions import Expr, FieldRef, Lookahead, StackField, UnionStackField
from mrclab.switches.v1model.program import Program


def key_width(program: Program, key: Expr) -> int:
    """Return the width of an element of a select, in bits."""
    match key:
        case Lookahead(_, width):
            return width
        case FieldRef():
            return program.field(key).width
        case StackField(stack, name):
            return program.field(FieldRef(program.element(stack, 0), name)).width
        case UnionStackField(stack, header, name):
            return program.field(FieldRef(program.element(stack, 0, header), name)).width
    raise UnsupportedError("a select on something other than fields and lookahead")


def _widths(program: Program, value_set: ValueSet) -> list[int]:
    for state in program.parser.states.values():
        if any(t.value_set == value_set.name for t in state.transitions):
            return [key_width(program, k) for k in state.key]
    return [value_set.bits]


def layout_value_set(program: Program, value_set: ValueSet, pool: MapPool) -> ValueSetLayout:
    """Decide on a value set's map. Raises UnsupportedError for one of very many members."""
    size = max(value_set.size, 1)
    if size > SCAN_LIMIT:
        what = f"parser value set {value_set.name} of more than {SCAN_LIMIT} members"
        raise UnsupportedError(what, str(value_set.source))
    slots, offset = [], 0
    for i, width in enumerate(_widths(program, value_set)):
        slots.append(KeySlot(str(i), "exact", width, offset, round8((width + 7) // 8)))
        offset += slots[-1].size
    spec = MapSpec(
        value_set.name, MapType.HASH, 4, (USED_BYTES + PLACES_PER_FIELD * offset) * size, 1, NO_PREALLOC
    )
    return ValueSetLayout(value_set.name, pool.add(spec), tuple(slots), offset, size)


def find_member(
    gen: CodegenContext, layout: ValueSetLayout, keys: Sequence[Value], found: object, absent: object
) -> None:
    """Write a look-up of a key's elements: control goes to `found` or to `absent`."""
    asm, b = gen.asm, gen.asm.b
    cells = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(layout.map), gen.zero_key)
    start, loop, test, following = (asm.block(f"members.{n}") for n in ("start", "loop", "test", "following"))
    b.cbranch(asm.is_null(cells), absent, start)
    asm.enter(start)
    b.branch(loop)
    asm.enter(loop)
    index = b.phi(I64)
    index.add_incoming(const(64, 0), start)
    cell = asm.at(cells, b.mul(index, const(64, USED_BYTES + PLACES_PER_FIELD * layout.key_size)))
    b.cbranch(b.icmp_unsigned("==", asm.load(cell, 64, 8), const(64, 0)), absent, test)
    asm.enter(test)
    fits = const(1, 1)
    for bits, slot in zip(keys, layout.key, strict=True):
        width = slot.size * 8
        mask, low, high = (
            asm.load(asm.at(cell, USED_BYTES + place * layout.key_size + slot.offset), width, 8)
            for place in range(PLACES_PER_FIELD)
        )
        key = b.and_(asm.fit(bits, width), mask)
        inside = b.and_(b.icmp_unsigned(">=", key, low), b.icmp_unsigned("<=", key, high))
        fits = b.and_(fits, inside)
    b.cbranch(fits, found, following)
    asm.enter(following)
    succ = b.add(index, const(64, 1))
    index.add_incoming(succ, following)
    b.cbranch(b.icmp_unsigned("<", succ, const(64, layout.size)), loop, absent)
