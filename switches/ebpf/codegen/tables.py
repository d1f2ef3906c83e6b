"""Write the code of tables: look up the key in a map, and run the action of the found entry.

Large ternary tables use tuple space search: one hash look-up per tuple (entries with the same masks). The
search ends when no other tuple can have an entry of higher priority than the best entry found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llvmlite import ir

from mrclab.linux.bpf_types import NO_PREALLOC, MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.actions import ActionWriter
from mrclab.switches.ebpf.codegen.backend.asm import I32, I64, PTR, Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.ebpf.codegen.externs.selectors import SelectorWriter
from mrclab.switches.ebpf.codegen.externs.stateful import execute_meter, layout_meter
from mrclab.switches.ebpf.plan import (
    REFERENCE_SIZE,
    SCAN_LIMIT,
    TUPLE_HEADER,
    TUPLES,
    WIDEST,
    ActionLayout,
    KeySlot,
    ProfileLayout,
    TableLayout,
    counter_map,
    layout_action,
    round8,
    tuple_size,
    value_size_of,
)
from mrclab.switches.v1model.expressions import FieldRef
from mrclab.switches.v1model.program import KeyField, Program, Table


def search_tuples(gen: CodegenContext, layout: TableLayout, keys: list[Value], miss: object) -> Value:
    """Write a tuple space search for a key. Return the address of the entry's value, or jump to `miss`."""
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
    # Tuples are sorted by priority; unused tuples have 0. End the loop if no later tuple can be better.
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


_PREALLOCATE = 64 << 10  # the memory of a hash map is allocated at load if its entries take at most 64 KiB


def _kind(table: Table) -> str:
    matches = [k.match for k in table.key]
    if not matches:
        return "none"
    if all(m in ("exact", "valid") for m in matches):
        return "hash"
    if (
        matches.count("lpm") == 1
        and all(m in ("exact", "valid", "lpm") for m in matches)
        and table.match == "lpm"
    ):
        return "lpm"
    if all(m in ("exact", "valid", "lpm", "ternary", "optional", "range") for m in matches):
        return "scan" if max(table.size, len(table.entries)) <= SCAN_LIMIT else "tuples"
    raise UnsupportedError(f"table {table.name} with match kinds {', '.join(matches)}", str(table.source))


def _keys(program: Program, table: Table, kind: str) -> tuple[KeySlot, ...]:
    # An lpm map matches a prefix of the whole key, so exact fields must come before the lpm field.
    order = sorted(table.key, key=lambda k: k.match == "lpm") if kind == "lpm" else list(table.key)
    offset = 4 if kind == "lpm" else 0
    slots = {}
    for k in order:
        width = program.field(k.target).width
        if width > WIDEST:
            raise UnsupportedError(f"key {k.name} of {width} bits in table {table.name}", str(table.source))
        size = (width + 7) // 8
        if kind in ("scan", "tuples"):  # the code compares such keys in words of 8 bytes
            size = max(8, round8(size))
        slots[k.name, k.target] = KeySlot(k.name, k.match, width, offset, size)
        offset += size
    return tuple(slots[k.name, k.target] for k in table.key)


def _profile_actions(program: Program, table: Table, profile: ProfileLayout) -> tuple[ActionLayout, ...]:
    """Return the actions of a table with a profile. An action has the same number as in the profile."""
    own = {program.actions[a].name: a for a in table.action_ids}
    return tuple(replace(a, id=own[a.name]) for a in profile.actions if a.name in own)


def layout_table(
    program: Program, table: Table, pool: MapPool, profiles: Mapping[str, ProfileLayout]
) -> TableLayout:
    """Lay out a table: its maps and its entries. Raise UnsupportedError for unsupported keys or actions."""
    kind = _kind(table)
    key = _keys(program, table, kind)
    key_size = max((s.offset + s.size for s in key), default=0)
    if table.profile is not None:
        actions = _profile_actions(program, table, profiles[table.profile])
        value_size = REFERENCE_SIZE
    else:
        actions = tuple(
            layout_action(program.actions[a], n + 1, table.source) for n, a in enumerate(table.action_ids)
        )
        value_size = value_size_of(actions)
    capacity = max(table.size, len(table.entries), 1)
    draft = TableLayout(table.name, kind, None, None, None, key, key_size, value_size, capacity, actions)
    entries = None
    if kind == "hash":
        # Preallocate small maps: then an update takes 1 to 2 us. An update that allocates may take 20 us.
        small = capacity * (64 + round8(key_size) + value_size) <= _PREALLOCATE
        flags = 0 if small else NO_PREALLOC
        entries = MapSpec(table.name, MapType.HASH, key_size, value_size, capacity, flags)
    elif kind == "lpm":
        entries = MapSpec(table.name, MapType.LPM_TRIE, key_size, value_size, capacity, NO_PREALLOC)
    elif kind == "scan":
        # The map has one value with all entries. When it is replaced, the whole table changes at once.
        entries = MapSpec(table.name, MapType.HASH, 4, draft.cell_size * capacity, 1, NO_PREALLOC)
    tuples = None
    if kind == "tuples":
        # A range is split into many keys, so allow 64 keys per entry. Unused keys take no memory.
        keys = capacity * 64 if any(m.match == "range" for m in key) else capacity
        entries = MapSpec(
            table.name, MapType.HASH, TUPLE_HEADER + key_size, value_size + 8, keys, NO_PREALLOC
        )
        size = tuple_size(key_size) * TUPLES
        tuples = pool.add(MapSpec(f"{table.name}.tuples", MapType.HASH, 4, size, 1, NO_PREALLOC))
    default = None
    if table.profile is None and (table.default is None or not table.default.const):
        default = MapSpec(f"{table.name}.default", MapType.HASH, 4, value_size, 1, NO_PREALLOC)
    counts = (
        counter_map(f"{table.name}.counter", capacity) if table.with_counters and kind != "none" else None
    )
    default_counts = pool.add(counter_map(f"{table.name}.misses", 1)) if table.with_counters else None
    default_meter = None
    if table.direct_meters:
        default_meter = layout_meter(program.meters[table.direct_meters], 1, pool)
    meter = hits = None
    if table.direct_meters and kind != "none":
        meter = layout_meter(program.meters[table.direct_meters], capacity, pool)
    if table.support_timeout and kind != "none":
        hits = pool.add(MapSpec(f"{table.name}.hit", MapType.ARRAY, 4, 8, capacity))
    entries_index, default_index, counter_index = (
        None if spec is None else pool.add(spec) for spec in (entries, default, counts)
    )
    return TableLayout(
        table.name,
        kind,
        entries_index,
        default_index,
        counter_index,
        key,
        key_size,
        value_size,
        capacity,
        actions,
        table.profile,
        meter,
        tuples,
        default_counts,
        default_meter,
        hits,
    )


class TableWriter:
    """Write the code of tables. `nodes` maps the names of nodes to blocks, and None to the control's end."""

    def __init__(self, gen: CodegenContext, actions: ActionWriter, nodes: dict[str | None, object]) -> None:
        self.gen = gen
        self.asm = gen.asm
        self.actions = actions
        self.nodes = nodes
        self.selectors = SelectorWriter(gen)

    def run(self, table: Table) -> None:
        """Write the code that looks up a table's key, runs the action, and jumps to the next node."""
        layout = self.gen.tables[table.name]
        asm, b = self.asm, self.asm.b
        miss = asm.block("miss")
        value = self._look_up(table, layout, miss)
        if value is not None:
            self._note_hit(table, layout, value)
            if layout.profile is not None:
                value = self.selectors.member(self.gen.profiles[layout.profile], value, self._nothing(table))
            self._dispatch(table, layout, value, hit=True)
        asm.enter(miss)
        self._note_miss(table, layout)
        if layout.default_map is not None:
            found, nothing = asm.block("default"), asm.block("no.default")
            value = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(layout.default_map), self.gen.zero_key)
            b.cbranch(asm.is_null(value), nothing, found)
            asm.enter(found)
            self._dispatch(table, layout, value, hit=False)
            asm.enter(nothing)
            b.branch(self.nodes[self._next(table, "", hit=False)])
        elif table.default is not None:
            action = self.gen.program.actions[table.default.action_id]
            data = zip(action.params, table.default.data, strict=True)
            self.actions.run(action, [(p.width, const(p.width, v)) for p, v in data])
            asm.goto(self.nodes[self._next(table, action.name, hit=False)])
        else:
            b.branch(self.nodes[self._next(table, "", hit=False)])

    def _nothing(self, table: Table) -> object:
        """Return the block for a hit without an action, for instance if the group is empty."""
        return self.nodes[self._next(table, "", hit=True)]

    def _next(self, table: Table, action: str, hit: bool) -> str | None:
        choice = "__HIT__" if hit else "__MISS__"
        if choice in table.next_by_action:
            return table.next_by_action[choice]
        return table.next_by_action.get(action, table.base_default_next)

    def _dispatch(self, table: Table, layout: TableLayout, value: Value, hit: bool) -> None:
        asm, b = self.asm, self.asm.b
        number = asm.load(value, 32, 4)
        unknown = asm.block("unknown.action")
        choose = b.switch(number, unknown)
        for a in layout.actions:
            block = asm.block(f"run.{a.number}")
            choose.add_case(const(32, a.number), block)
            asm.enter(block)
            params = [
                (p.width, asm.fit(asm.load(asm.at(value, p.offset), p.size * 8, 8), p.width))
                for p in a.params
            ]
            self.actions.run(self.gen.program.actions[a.id], params)
            asm.goto(self.nodes[self._next(table, a.name, hit)])
        asm.enter(unknown)
        b.branch(self.nodes[self._next(table, "", hit)])

    def _note_hit(self, table: Table, layout: TableLayout, value: Value) -> None:
        cell = self.asm.load(self.asm.at(value, 4), 32, 4)
        if layout.counter_map is not None:
            self.gen.count(layout.counter_map, layout.capacity, cell)
        if layout.hit_map is not None:
            self._stamp(layout.hit_map, cell)
        if layout.meter is not None and table.direct_meters is not None:
            target = self.gen.program.meters[table.direct_meters].result
            assert target is not None
            execute_meter(self.gen, layout.meter, cell, target, table.source)

    def _note_miss(self, table: Table, layout: TableLayout) -> None:
        # P4Runtime demands a counter and a meter for the default entry. BMv2 has neither. To give the same
        # result as BMv2, an unconfigured meter of the default entry does not write its result.
        if layout.default_counter_map is not None:
            self.gen.count(layout.default_counter_map, 1, const(32, 0))
        if layout.default_meter is not None and table.direct_meters is not None:
            target = self.gen.program.meters[table.direct_meters].result
            assert target is not None
            execute_meter(
                self.gen, layout.default_meter, const(32, 0), target, table.source, only_configured=True
            )

    def _stamp(self, hit_map: int, cell: Value) -> None:
        """Write code that stores the time of an entry's hit. The kernel's coarse clock is accurate enough."""
        asm, b = self.asm, self.asm.b
        asm.store(cell, self.gen.index_key, 4)
        place = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(hit_map), self.gen.index_key)
        found, done = asm.block("stamp"), asm.block("stamped")
        b.cbranch(asm.is_null(place), done, found)
        asm.enter(found)
        asm.store(asm.helper(Helper.KTIME_GET_COARSE_NS), place, 8)
        b.branch(done)
        asm.enter(done)

    def _key_value(self, table: Table, k: KeyField) -> Value:
        target = FieldRef(k.target.header, k.target.field)
        bits = Evaluator(self.gen.machine, table.source).value(target, self.gen.program.field(target).width)
        return bits if k.mask is None else self.asm.b.and_(bits, const(bits.type.width, k.mask))

    def _look_up(self, table: Table, layout: TableLayout, miss: object) -> Value | None:
        """Write the look-up. Return the address of the entry's value; if no entry matches, jump to `miss`."""
        asm, b, memory = self.asm, self.asm.b, self.gen.machine.scratch
        if layout.kind == "none" or layout.map is None:
            b.branch(miss)
            return None
        if layout.kind == "scan":
            return self._scan(table, layout, miss)
        if layout.kind == "tuples":
            keys = [self._key_value(table, k) for k in table.key]
            return search_tuples(self.gen, layout, keys, miss)
        base = self.gen.layout.key
        if layout.kind == "lpm":
            asm.store(const(32, (layout.key_size - 4) * 8), asm.at(memory, base), 4)
        for k, slot in zip(table.key, layout.key, strict=True):
            asm.store_be(self._key_value(table, k), memory, base + slot.offset, slot.size)
        value = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(layout.map), asm.at(memory, base))
        hit = asm.block("hit")
        b.cbranch(asm.is_null(value), miss, hit)
        asm.enter(hit)
        return value

    def _scan(self, table: Table, layout: TableLayout, miss: object) -> Value:
        """Write a scan: compare the key with each used cell, in order of priority, until one matches."""
        asm, b = self.asm, self.asm.b
        keys = [self._key_value(table, k) for k in table.key]
        assert layout.map is not None
        all_cells = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(layout.map), self.gen.zero_key)
        start, loop, test, following, hit = (
            asm.block(f"scan.{n}") for n in ("start", "loop", "test", "following", "hit")
        )
        b.cbranch(asm.is_null(all_cells), miss, start)
        asm.enter(start)
        b.branch(loop)
        asm.enter(loop)
        index = b.phi(I64)
        index.add_incoming(const(64, 0), start)
        cell = asm.at(all_cells, b.mul(index, const(64, layout.cell_size)))
        b.cbranch(b.icmp_unsigned("==", asm.load(cell, 64, 8), const(64, 0)), miss, test)
        asm.enter(test)
        low = 8 + layout.value_size
        high = low + round8(layout.key_size)
        fits = const(1, 1)
        for bits, slot in zip(keys, layout.key, strict=True):
            width = slot.size * 8
            key = asm.fit(bits, width)
            a = asm.load(asm.at(cell, low + slot.offset), width, 8)
            z = asm.load(asm.at(cell, high + slot.offset), width, 8)
            if slot.match == "range":
                inside = b.and_(b.icmp_unsigned(">=", key, a), b.icmp_unsigned("<=", key, z))
                fits = b.and_(fits, inside)
            else:
                fits = b.and_(fits, b.icmp_unsigned("==", b.and_(key, z), a))
        b.cbranch(fits, hit, following)
        asm.enter(following)
        succ = b.add(index, const(64, 1))
        index.add_incoming(succ, following)
        b.cbranch(b.icmp_unsigned("<", succ, const(64, layout.capacity)), loop, miss)
        asm.enter(hit)
        return asm.at(cell, 8)
