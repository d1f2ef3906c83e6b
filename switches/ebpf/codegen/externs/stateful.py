"""Write the code of externs with state: meters and registers.

A meter is the two-rate three-colour marker of RFC 2698, colour-blind. Each cell has two token buckets, one
for the peak rate and one for the committed rate. If the peak bucket has too few tokens, the frame is red and
takes no tokens. If only the committed bucket has too few, the frame is yellow and takes peak tokens only.
Otherwise the frame is green and takes tokens of both buckets. Without configuration, every frame is green.
"""

from __future__ import annotations

from mrclab.linux.bpf_types import MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.backend.asm import Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.ebpf.plan import (
    METER_BURST,
    METER_COLOURS,
    METER_COMMITTED,
    METER_CONFIGURED,
    METER_LAST,
    METER_PEAK,
    METER_RATE,
    METER_REST,
    METER_SIZE,
    METER_TOKENS,
    MeterLayout,
    counter_map,
)
from mrclab.switches.v1model.declarations import Action, MeterArray
from mrclab.switches.v1model.expressions import Expr, FieldRef, Name, Primitive, Source

GREEN, YELLOW, RED = 0, 1, 2
_SECOND = 10**9
_AGES = 1 << 28  # limit of the elapsed seconds, so that no number overflows; every bucket is full by then


def layout_meter(meter: MeterArray, size: int, pool: MapPool) -> MeterLayout:
    """Lay out a meter array with `size` cells. Raise UnsupportedError if it does not have two rates."""
    if meter.rates != 2:
        raise UnsupportedError(f"meter {meter.name} with {meter.rates} rates", str(meter.source))
    spec = MapSpec(meter.name, MapType.ARRAY, 4, METER_SIZE, max(size, 1), lock=True)
    counts = counter_map(f"{meter.name}.colours", METER_COLOURS * max(size, 1))
    return MeterLayout(meter.name, pool.add(spec), max(size, 1), meter.packets, pool.add(counts))


def execute_meter(
    gen: CodegenContext,
    meter: MeterLayout,
    index: Value,
    target: FieldRef,
    where: Source,
    only_configured: bool = False,
) -> None:
    """Write code that meters the frame and sets the field `target` to its colour.

    If the index is outside the array, `target` keeps its value. If `only_configured` is true, `target` also
    keeps its value if the cell is not configured.
    """
    asm, b = gen.asm, gen.asm.b
    inside, found, done = (asm.block(f"meter.{n}") for n in ("inside", "found", "done"))
    index = asm.fit(index, max(index.type.width, 32))
    b.cbranch(b.icmp_unsigned("<", index, const(index.type.width, meter.size)), inside, done)
    asm.enter(inside)
    now = asm.helper(Helper.KTIME_GET_NS)  # before the lock: while it is held, no helper can be called
    asm.store(asm.fit(index, 32), gen.index_key, 4)
    cell = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(meter.map), gen.index_key)
    b.cbranch(asm.is_null(cell), done, found)
    asm.enter(found)
    size = const(64, 1) if meter.packets else asm.fit(gen.length, 64)
    asm.helper(Helper.SPIN_LOCK, cell)
    last = asm.load(asm.at(cell, METER_LAST), 64, 8)
    later = b.icmp_unsigned(">", now, last)  # false if another CPU has just used the cell, at a later time
    elapsed = b.select(later, b.sub(now, last), const(64, 0))
    asm.store(b.select(later, now, last), asm.at(cell, METER_LAST), 8)
    seconds, part = b.udiv(elapsed, const(64, _SECOND)), b.urem(elapsed, const(64, _SECOND))
    seconds = b.select(b.icmp_unsigned("<", seconds, const(64, _AGES)), seconds, const(64, _AGES))
    peak = _fill(gen, asm.at(cell, METER_PEAK), seconds, part)
    committed = _fill(gen, asm.at(cell, METER_COMMITTED), seconds, part)
    red = b.icmp_unsigned("<", peak, size)
    short = b.icmp_unsigned("<", committed, size)
    none = const(64, 0)
    peak = b.sub(peak, b.select(red, none, size))
    committed = b.sub(committed, b.select(b.or_(red, short), none, size))
    asm.store(peak, asm.at(cell, METER_PEAK + METER_TOKENS), 8)
    asm.store(committed, asm.at(cell, METER_COMMITTED + METER_TOKENS), 8)
    configured = b.icmp_unsigned("!=", asm.load(asm.at(cell, METER_CONFIGURED), 32, 4), const(32, 0))
    asm.helper(Helper.SPIN_UNLOCK, cell)
    colour = b.select(red, const(32, RED), b.select(short, const(32, YELLOW), const(32, GREEN)))
    colour = b.select(configured, colour, const(32, GREEN))
    if only_configured:
        chosen, go_on = asm.block("meter.chosen"), asm.block("meter.none")
        b.cbranch(configured, chosen, go_on)
        asm.enter(go_on)
        b.branch(done)
        asm.enter(chosen)
    gen.machine.write(target, asm.fit(colour, gen.program.field(target).width), where)
    counted = b.add(b.mul(asm.fit(index, 64), const(64, METER_COLOURS)), asm.fit(colour, 64))
    gen.count(meter.counter_map, meter.counters, counted)
    b.branch(done)
    asm.enter(done)


def _fill(gen: CodegenContext, bucket: Value, seconds: Value, part: Value) -> Value:
    """Add the tokens for the elapsed time (`seconds`, and `part` in ns) to a bucket. Return its tokens."""
    asm, b = gen.asm, gen.asm.b
    rate, burst, tokens, rest = (
        asm.load(asm.at(bucket, at), 64, 8) for at in (METER_RATE, METER_BURST, METER_TOKENS, METER_REST)
    )
    fresh = b.add(b.mul(part, rate), rest)
    asm.store(b.urem(fresh, const(64, _SECOND)), asm.at(bucket, METER_REST), 8)
    tokens = b.add(tokens, b.add(b.mul(seconds, rate), b.udiv(fresh, const(64, _SECOND))))
    return b.select(b.icmp_unsigned("<", tokens, burst), tokens, burst)


# Statements that access registers, with the index of the argument that names the array.
_REGISTER = {"register_read": 1, "register_write": 0}


def register_ops(action: Action) -> list[Primitive]:
    """Return the statements of an action that access registers."""
    return [p for p in action.primitives if p.op in _REGISTER]


class RegisterStatements:
    """Write the code of register accesses."""

    def __init__(self, gen: CodegenContext) -> None:
        self.gen = gen
        self.asm = gen.asm

    def needs_lock(self, action: Action) -> bool:
        """Return True if other CPUs must not change registers between an action's register accesses."""
        ops = register_ops(action)
        names = [a.name for p in ops if isinstance(a := p.args[_REGISTER[p.op]], Name)]
        return len(ops) > 1 or any(self.gen.registers[n].cell_size > 8 for n in names)

    def _cell(self, e: Evaluator, array: Expr, at: Expr) -> tuple[int, int, Value, Value]:
        """Return (bits of the register, bits of a cell, i1: index in range, address of the cell)."""
        if not isinstance(array, Name) or array.name not in self.gen.registers:
            raise e.refuse("a register that is not declared")
        asm, b = self.asm, self.asm.b
        layout = self.gen.registers[array.name]
        _, _, (index,) = e.whole(at)
        index = asm.fit(index, max(index.type.width, 32))
        if index.type.width <= 64:  # else LLVM may remove a check that the verifier needs
            index = asm.forget(asm.fit(index, 64))
        inside = b.icmp_unsigned("<", index, const(index.type.width, layout.size))
        offset = b.mul(asm.fit(index, 64), const(64, layout.cell_size))
        return layout.width, layout.cell_size * 8, inside, asm.at(asm.map_value(layout.map), offset)

    def read(self, e: Evaluator, p: Primitive) -> None:
        """Write code that reads a cell. If the index is outside the array, the result is 0."""
        target = p.args[0]
        if not isinstance(target, FieldRef):
            raise e.refuse("reading a register into something other than a field")
        asm, b = self.asm, self.asm.b
        _, bits, inside, cell = self._cell(e, p.args[1], p.args[2])
        start, there, done = b.block, asm.block("register.there"), asm.block("register.done")
        b.cbranch(inside, there, done)
        asm.enter(there)
        loaded = asm.load(cell, bits, min(bits // 8, 8))
        b.branch(done)
        asm.enter(done)
        value = b.phi(loaded.type)
        value.add_incoming(loaded, there)
        value.add_incoming(const(bits, 0), start)
        self.gen.machine.write(target, asm.fit(value, self.gen.program.field(target).width), p.source)

    def write(self, e: Evaluator, p: Primitive) -> None:
        """Write code that writes a cell. If the index is outside the array, nothing is written."""
        asm, b = self.asm, self.asm.b
        width, bits, inside, cell = self._cell(e, p.args[0], p.args[1])
        value = asm.fit(e.value(p.args[2], width), bits)
        there, done = asm.block("register.there"), asm.block("register.done")
        b.cbranch(inside, there, done)
        asm.enter(there)
        asm.store(value, cell, min(bits // 8, 8))
        b.branch(done)
        asm.enter(done)
