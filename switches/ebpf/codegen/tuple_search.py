"""Tuple space search as code: one hash look-up per mask, until no further mask can have a higher priority."""

from __future__ import annotations

from llvmlite import ir

from mrclab.switches.ebpf.codegen.backend.asm import I32, I64, PTR, Helper, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.plan.layouts import TUPLE_HEADER, TUPLES, TableLayout, tuple_size


def search_tuples(gen: CodegenContext, layout: TableLayout, keys: list[Value], miss: object) -> Value:
    """Write the look-up of key elements (numbers of their width); ends at a hit with the entry's value."""
    asm, b, memory = gen.asm, gen.asm.b, gen.machine.scratch
    assert layout.map is not None
    assert layout.tuple_map is not None
    words: list[tuple[int, Value]] = []
    for bits, slot in zip(keys, layout.key, strict=True):
        whole = asm.fit(bits, slot.size * 8)
        for at in range(0, slot.size, 8):
            word = b.lshr(whole, const(slot.size * 8, at * 8)) if at else whole
            words.append((slot.offset + at, asm.fit(word, 64)))
    base = gen.layout.key
    asm.store(const(64, 0), asm.at(memory, base), 8)
    masks = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(layout.tuple_map), gen.zero_key)
    start, loop, test, found, better, following, end, hit = (
        asm.block(f"tuple.{n}")
        for n in ("start", "loop", "test", "found", "better", "following", "end", "hit")
    )
    b.cbranch(asm.is_null(masks), miss, start)
    asm.enter(start)
    b.branch(loop)
    asm.enter(loop)
    index, best, best_priority = b.phi(I64), b.phi(PTR), b.phi(I32)
    nothing = ir.Constant(PTR, None)
    for phi, first in ((index, const(64, 0)), (best, nothing), (best_priority, const(32, 0))):
        phi.add_incoming(first, start)
    cell = asm.at(masks, b.mul(index, const(64, tuple_size(layout.key_size))))
    # The list is sorted and ends with priority 0, which ends the loop too.
    b.cbranch(b.icmp_unsigned(">", asm.load(cell, 32, 4), best_priority), test, end)
    asm.enter(test)
    asm.store(asm.load(asm.at(cell, 4), 32, 4), asm.at(memory, base), 4)
    for offset, word in words:
        mask = asm.load(asm.at(cell, TUPLE_HEADER + offset), 64, 8)
        asm.store(b.and_(word, mask), asm.at(memory, base + TUPLE_HEADER + offset), 8)
    value = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(layout.map), asm.at(memory, base))
    b.cbranch(asm.is_null(value), following, found)
    asm.enter(found)
    priority = asm.load(asm.at(value, layout.value_size), 32, 4)
    b.cbranch(b.icmp_unsigned(">", priority, best_priority), better, following)
    asm.enter(better)
    b.branch(following)
    asm.enter(following)
    next_best, next_priority = b.phi(PTR), b.phi(I32)
    for block, one, two in ((test, best, best_priority), (found, best, best_priority)):
        next_best.add_incoming(one, block)
        next_priority.add_incoming(two, block)
    next_best.add_incoming(value, better)
    next_priority.add_incoming(priority, better)
    succ = b.add(index, const(64, 1))
    for phi, again in ((index, succ), (best, next_best), (best_priority, next_priority)):
        phi.add_incoming(again, following)
    b.cbranch(b.icmp_unsigned("<", succ, const(64, TUPLES)), loop, end)
    asm.enter(end)
    last = b.phi(PTR)
    last.add_incoming(best, loop)
    last.add_incoming(next_best, following)
    b.cbranch(asm.is_null(last), miss, hit)
    asm.enter(hit)
    return last
