"""Action bodies: one statement after the other, with the jumps that p4c makes of `if` inside an action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from linux.errors import UnsupportedError
from switches.ebpf.codegen.analysis.scratch_layout import ASKED, CHUNK, RESULTS, SESSION_MASK
from switches.ebpf.codegen.backend.asm import Helper, Value, const
from switches.ebpf.codegen.codegen_context import Unit
from switches.ebpf.codegen.expressions import Evaluator, computed_index
from switches.ebpf.codegen.externs.hashes import HashWriter
from switches.ebpf.codegen.externs.meters import execute_meter
from switches.ebpf.plan.layouts import DROP_PORT
from switches.v1model.declarations import Action
from switches.v1model.expressions import Const, Expr, FieldRef, Name, Op, Primitive, Source

# Register primitives, and which argument names the array.
_REGISTER = {"register_read": 1, "register_write": 0}

Params = Sequence[tuple[int, Value]]


_COUNT_SIZE = 16


@dataclass(frozen=True)
class _Counted:
    primitives: list[Primitive]


class ActionWriter:
    """Writes action bodies into a unit. `leave` is the block behind the control, for `exit`."""

    def __init__(self, unit: Unit, leave: Any) -> None:
        self.u = unit
        self.asm = unit.asm
        self.leave = leave
        self._drawn: dict[int, Value] = {}  # random numbers by the statement that wants them
        self._counted: _Counted | None = None  # where counting waits for a lock to be given back
        self._ops: dict[str, Callable[[Evaluator, Primitive], None]] = {
            "assign": self._assign,
            "set": self._assign,
            "assign_VL": self._assign_varbit,
            "assign_header": self._assign_header,
            "assign_union": self._assign_headers,
            "assign_header_stack": self._assign_headers,
            "assign_union_stack": self._assign_headers,
            "add_header": self._add_header,
            "remove_header": self._remove_header,
            "push": self._push,
            "pop": self._pop,
            "mark_to_drop": self._mark_to_drop,
            "drop": self._mark_to_drop,
            "count": self._count,
            "generate_digest": self._digest,
            "execute_meter": self._execute_meter,
            "register_read": self._register_read,
            "register_write": self._register_write,
            "modify_field_rng_uniform": self._random,
            "modify_field_with_hash_based_offset": self._hash,
            "truncate": self._truncate,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": lambda e, p: self._ask(e, p, self.u.layout.resubmit),
            "recirculate": lambda e, p: self._ask(e, p, self.u.layout.recirculate),
            "exit": self._exit,
            "assert": self._assert,
            "assume": self._assert,
            "no_op": lambda e, p: None,
            "log_msg": lambda e, p: None,  # BMv2 writes to its log; frames are the same
        }

    def run(self, action: Action, params: Params) -> None:
        """Write the body of an action. The builder ends in an open block."""
        jumps = {_target(p) for p in action.primitives if p.op in _JUMPS}
        blocks = {i: self.asm.block(f"{_plain(action.name)}.{i}") for i in sorted(jumps)}
        b = self.asm.b
        locked = self._lock(action)
        for i, p in enumerate(action.primitives):
            self._place(blocks.get(i))
            if p.op in _JUMPS:
                behind = self.asm.block(f"{_plain(action.name)}.{i}.next")
                with self.asm.place(f"action {action.name}", p.source):
                    if p.op == "_jump":
                        b.branch(blocks[_target(p)])
                    else:
                        e = Evaluator(self.u.machine, p.source, params)
                        b.cbranch(self._nonzero(e, p.args[0]), behind, blocks[_target(p)])
                self.asm.enter(behind)
            else:
                with self.asm.place(f"action {action.name}", p.source):
                    self.statement(p, params)
        self._place(blocks.get(len(action.primitives)))
        if locked:
            self.asm.helper(Helper.SPIN_UNLOCK, self._lock_value())
            self._after_lock()
        if any(p.op == "exit" for p in action.primitives):
            stay = self.asm.block(f"{_plain(action.name)}.stay")
            flag = self.asm.load(self.asm.at(self.u.machine.scratch, self.u.layout.exited), 8)
            b.cbranch(b.icmp_unsigned("==", flag, const(8, 0)), stay, self.leave)
            self.asm.enter(stay)

    def statement(self, primitive: Primitive, params: Params = ()) -> None:
        """Write one statement."""
        e = Evaluator(self.u.machine, primitive.source, params)
        for i, arg in enumerate(primitive.args):
            place = arg.left if i == RESULTS.get(primitive.op, 0) and is_access(arg) else arg
            index = computed_index(place)
            if index is not None:
                self._for_each_element(e, primitive, i, index, params)
                return
        self._ops.get(primitive.op, self._refuse)(e, primitive)

    def _for_each_element(self, e: Evaluator, p: Primitive, which: int, index: Expr, params: Params) -> None:
        """Write a statement about an element of a stack, whose index is computed, once for each element.

        Beyond the end of the stack it does nothing. BMv2 ends itself there.
        """
        asm = self.asm
        arg = p.args[which]
        access = arg if is_access(arg) else None
        headers = e.elements(arg if access is None else access.left)
        done = asm.block("element.done")
        for here, header in zip(e.choose(index, len(headers)), headers, strict=True):
            this, other = asm.block("element.this"), asm.block("element.other")
            asm.b.cbranch(here, this, other)
            asm.enter(this)
            element: Expr = Name("header", header)
            element = element if access is None else replace(access, left=element)
            self.statement(replace(p, args=(*p.args[:which], element, *p.args[which + 1 :])), params)
            asm.goto(done)
            asm.enter(other)
        asm.b.branch(done)
        asm.enter(done)

    def _place(self, block: Any) -> None:
        if block is not None:
            self.asm.goto(block)
            self.asm.enter(block)

    def _nonzero(self, e: Evaluator, expr: Expr) -> Value:
        if isinstance(expr, Op) and expr.op == "b2d":
            return e.truth(expr.right)
        return e.truth(Op("d2b", None, expr))

    def _refuse(self, e: Evaluator, p: Primitive) -> None:
        raise e.refuse(f"primitive '{p.op}'")

    def _assign(self, e: Evaluator, p: Primitive) -> None:
        target = e._static(p.args[0])
        if not isinstance(target, FieldRef):
            raise e.refuse("assigning to something other than a field")
        field = self.u.program.field(target)
        self.u.machine.write(target, e.value(p.args[1], field.width), p.source)

    def _assert(self, e: Evaluator, p: Primitive) -> None:
        """Go on only if a condition is true. Where BMv2 would end itself, the frame is lost."""
        true, false = self.asm.block("assert.true"), self.asm.block("assert.false")
        self.asm.b.cbranch(self._nonzero(e, p.args[0]), true, false)
        self.asm.enter(false)
        if self._counted is not None:  # under the lock of registers
            self.asm.helper(Helper.SPIN_UNLOCK, self._lock_value())
        self.asm.b.branch(self.u.wrong or self.u.drop)
        self.asm.enter(true)

    def _moved(self) -> None:
        """Note that headers came or went, so that the deparser has to write all of them."""
        self.asm.store(const(8, 1), self.asm.at(self.u.machine.scratch, self.u.layout.moved))

    def copy_header(self, to: str, origin: str) -> None:
        """Copy fields, raw image and validity of one header to another of the same type."""
        layout, asm, memory = self.u.layout, self.asm, self.u.machine.scratch
        for name in self.u.program.headers[to].field_by_name:
            target, source = (layout.slots.get(FieldRef(h, name)) for h in (to, origin))
            if target and source:
                asm.copy(memory, target.offset, memory, source.offset, target.size)
        if to in layout.raw and origin in layout.raw:
            size = (self.u.program.headers[to].type.bits + 7) // 8
            asm.copy(memory, layout.raw[to], memory, layout.raw[origin], size)
            asm.copy(memory, layout.valid[to], memory, layout.valid[origin], 1)
        if to in layout.varbits:
            self._copy_varbit(to, origin)

    def _copy_varbit(self, to: str, origin: str) -> None:
        asm, memory = self.asm, self.u.machine.scratch
        target, source = self.u.layout.varbits[to], self.u.layout.varbits[origin]
        asm.copy(memory, target.length, memory, source.length, 4)
        asm.copy(memory, target.offset, memory, source.offset, source.room)
        asm.zero(memory, target.offset + source.room, target.room - source.room)

    def _assign_varbit(self, e: Evaluator, p: Primitive) -> None:
        """Copy a field of variable length, with its length."""
        to, origin = p.args
        program = self.u.program
        if not isinstance(to, FieldRef) or not isinstance(origin, FieldRef):
            raise e.refuse("a variable-length field of a computed header")
        sizes = [v.size for ref in (to, origin) if (v := program.varbit(ref)) is not None]
        if len(sizes) != 2 or sizes[0] < sizes[1]:
            raise e.refuse("a variable-length field in something too small for it")
        self._moved()
        self._copy_varbit(to.header, origin.header)

    def _assign_headers(self, e: Evaluator, p: Primitive) -> None:
        """Copy a union or a stack, header by header."""
        to, origin = p.args
        if not isinstance(to, Name) or not isinstance(origin, Name):
            raise e.refuse("a computed header stack")
        for one, other in zip(
            self.u.program.elements(to.name), self.u.program.elements(origin.name), strict=True
        ):
            self._assign_header(e, replace(p, args=(Name("header", one), Name("header", other))))

    def _assign_header(self, e: Evaluator, p: Primitive) -> None:
        """Copy a valid header; one that is not only makes the other invalid too."""
        to, origin = e.header(p.args[0]), e.header(p.args[1])
        asm = self.asm
        metadata = [self.u.program.headers[h].metadata for h in (to, origin)]
        if any(metadata):
            if not all(metadata):
                raise e.refuse("copying between a header and metadata")
            self.copy_header(to, origin)  # always valid, and never in a frame
            return
        self._moved()
        copy, clear, done = asm.block("assign.copy"), asm.block("assign.clear"), asm.block("assign.done")
        asm.b.cbranch(self.u.machine.read(FieldRef(origin, "$valid$"), p.source), copy, clear)
        asm.enter(copy)
        self.copy_header(to, origin)
        self.u.machine.set_valid(to, True)
        asm.b.branch(done)
        asm.enter(clear)
        self.u.machine.set_valid(to, False)
        asm.b.branch(done)
        asm.enter(done)

    def _add_header(self, e: Evaluator, p: Primitive) -> None:
        """Make a header valid; one that was not gets all its fields zeroed, as BMv2 does."""
        header = e.header(p.args[0])
        asm, b = self.asm, self.asm.b
        fresh, done = asm.block("add.fresh"), asm.block("add.done")
        b.cbranch(self.u.machine.read(FieldRef(header, "$valid$"), p.source), done, fresh)
        asm.enter(fresh)
        self._moved()
        self.reset_header(header)
        self.u.machine.set_valid(header, True)
        self.u.lengthen(self.u.header_bytes(header))
        b.branch(done)
        asm.enter(done)

    def reset_header(self, header: str) -> None:
        """Zero a header's fields and raw image."""
        layout, asm, memory = self.u.layout, self.asm, self.u.machine.scratch
        for ref, slot in layout.slots.items():
            if ref.header == header:
                asm.zero(memory, slot.offset, slot.size)
        asm.zero(memory, layout.raw[header], (self.u.program.headers[header].type.bits + 7) // 8)
        if header in layout.varbits:  # as in BMv2 the field keeps its length
            asm.zero(memory, layout.varbits[header].offset, layout.varbits[header].room)

    def _remove_header(self, e: Evaluator, p: Primitive) -> None:
        header, asm = e.header(p.args[0]), self.asm
        there, done = asm.block("remove.there"), asm.block("remove.done")
        asm.b.cbranch(self.u.machine.read(FieldRef(header, "$valid$"), p.source), there, done)
        asm.enter(there)
        self._moved()
        self.u.machine.set_valid(header, False)
        self.u.lengthen(asm.b.neg(self.u.header_bytes(header)))
        asm.b.branch(done)
        asm.enter(done)

    def _stack(self, e: Evaluator, p: Primitive) -> tuple[tuple[str, ...], int]:
        """The headers of a stack, and by how many of them it moves: by all of a union at a time."""
        stack, count = p.args[0], p.args[1]
        if not isinstance(stack, Name) or not isinstance(count, Const):
            raise e.refuse(f"primitive '{p.op}' by an amount that is not constant")
        headers, depth = self.u.program.elements(stack.name), self.u.program.depth(stack.name)
        self._moved()
        return headers, count.value * (len(headers) // depth)

    def _push(self, e: Evaluator, p: Primitive) -> None:
        members, count = self._stack(e, p)
        for i in reversed(range(len(members))):
            if i >= count:
                self.copy_header(members[i], members[i - count])
            else:
                self.reset_header(members[i])
                self.u.machine.set_valid(members[i], False)

    def _pop(self, e: Evaluator, p: Primitive) -> None:
        members, count = self._stack(e, p)
        for i in range(len(members)):
            if i + count < len(members):
                self.copy_header(members[i], members[i + count])
            else:
                self.u.machine.set_valid(members[i], False)

    def _mark_to_drop(self, e: Evaluator, p: Primitive) -> None:
        self.u.set_standard("egress_spec", const(32, DROP_PORT))
        if self.u.copy is not None:
            self.u.set_standard("mcast_grp", const(32, 0))

    def _count(self, e: Evaluator, p: Primitive) -> None:
        array = p.args[0]
        if not isinstance(array, Name) or array.name not in self.u.counters:
            raise e.refuse("counting in something other than a counter array")
        counter = self.u.counters[array.name]
        bits, _, (index,) = e.whole(p.args[1])
        if self._counted is None:
            self.u.count(counter.map, counter.size, index)
            return
        if bits > 64:
            raise e.refuse("a counter's index of more than 64 bits")
        place = self._count_place(next(i for i, c in enumerate(self._counted.primitives) if c is p))
        self.asm.store(const(64, 1), place, 8)
        self.asm.store(self.asm.fit(index, 64), self.asm.at(place, 8), 8)

    def _execute_meter(self, e: Evaluator, p: Primitive) -> None:
        """Meter this frame; an index outside the array does nothing, not even to the result."""
        array, at, target = p.args
        if not isinstance(array, Name) or array.name not in self.u.meters:
            raise e.refuse("a meter that is not declared")
        if not isinstance(target, FieldRef):
            raise e.refuse("a meter's result in something other than a field")
        _, _, (index,) = e.whole(at)
        execute_meter(self.u, self.u.meters[array.name], index, target, p.source)

    def _lock(self, action: Action) -> bool:
        """Take the lock of the switch's registers where another CPU could come in between.

        BMv2 locks every register that an action touches. One read or write of up to 64 bits is whole by
        itself; but once some action needs the lock, those that only write have to wait for it too.
        """
        ops = _register_ops(action)
        contended = any(self._needs_lock(a) for a in self.u.program.actions.values())
        writes = any(p.op == "register_write" for p in ops)
        if not self._needs_lock(action) and not (writes and contended):
            return False
        self._before_lock(action)
        self.asm.helper(Helper.SPIN_LOCK, self._lock_value())
        return True

    def _before_lock(self, action: Action) -> None:
        """No helper may be called under the lock: numbers are drawn before it, and counted is behind it."""
        for p in action.primitives:
            if p.op in _NOT_LOCKED:
                what = f"{_NOT_LOCKED[p.op]} in an action that holds the lock of registers"
                raise UnsupportedError(what, str(p.source))
            if p.op == "modify_field_rng_uniform":
                self._drawn[id(p)] = self._draw()
        self._counted = _Counted([p for p in action.primitives if p.op == "count"])
        if len(self._counted.primitives) > CHUNK // _COUNT_SIZE:
            raise UnsupportedError("so many counters in one action", str(action.source))
        for i in range(len(self._counted.primitives)):
            self.asm.store(const(64, 0), self._count_place(i), 8)

    def _digest(self, e: Evaluator, p: Primitive) -> None:
        """Ask for a digest. As in BMv2 it is made at the end of ingress, and of several the last counts."""
        number = p.args[1]
        if not isinstance(number, Const) or number.value not in self.u.program.digests:
            raise e.refuse("a digest that is not declared")
        self.asm.store(const(32, number.value), self.asm.at(self.u.machine.scratch, self.u.layout.digest), 4)

    def _count_place(self, i: int) -> Value:
        """Where it is noted that a counter is to be counted (0 or 1, 64 bits), and which cell (64 bits)."""
        return self.asm.at(self.u.machine.scratch, self.u.layout.buffer + i * _COUNT_SIZE)

    def _after_lock(self) -> None:
        asm, b = self.asm, self.asm.b
        counted, self._counted = self._counted, None
        self._drawn.clear()
        for i, p in enumerate(counted.primitives if counted else []):
            asked, done = asm.block("counted.asked"), asm.block("counted.done")
            flag = asm.load(self._count_place(i), 64, 8)
            b.cbranch(b.icmp_unsigned("!=", flag, const(64, 0)), asked, done)
            asm.enter(asked)
            array = p.args[0]
            assert isinstance(array, Name)
            counter = self.u.counters[array.name]
            self.u.count(counter.map, counter.size, asm.load(asm.at(self._count_place(i), 8), 64, 8))
            b.branch(done)
            asm.enter(done)

    def _draw(self) -> Value:
        """64 random bits."""
        asm, b = self.asm, self.asm.b
        low, high = (b.and_(asm.helper(Helper.GET_PRANDOM_U32), const(64, 0xFFFFFFFF)) for _ in range(2))
        return b.or_(b.shl(high, const(64, 32)), low)

    def _needs_lock(self, action: Action) -> bool:
        ops = _register_ops(action)
        names = [a.name for p in ops if isinstance(a := p.args[_REGISTER[p.op]], Name)]
        return len(ops) > 1 or any(self.u.registers[n].cell_size > 8 for n in names)

    def _lock_value(self) -> Value:
        assert self.u.lock_map is not None
        return self.asm.map_value(self.u.lock_map)

    def _register_cell(self, e: Evaluator, array: Expr, at: Expr) -> tuple[int, int, Value, Value]:
        """Width of a register, bits of its cell, whether the index is inside, and the cell's address."""
        if not isinstance(array, Name) or array.name not in self.u.registers:
            raise e.refuse("a register that is not declared")
        asm, b = self.asm, self.asm.b
        layout = self.u.registers[array.name]
        _, _, (index,) = e.whole(at)
        index = asm.fit(index, max(index.type.width, 32))
        if index.type.width <= 64:  # what is left by a division LLVM knows to be small, and the verifier not
            index = asm.forget(asm.fit(index, 64))
        inside = b.icmp_unsigned("<", index, const(index.type.width, layout.size))
        offset = b.mul(asm.fit(index, 64), const(64, layout.cell_size))
        return layout.width, layout.cell_size * 8, inside, asm.at(asm.map_value(layout.map), offset)

    def _register_read(self, e: Evaluator, p: Primitive) -> None:
        """Read a cell; one outside the array reads as 0."""
        target = p.args[0]
        if not isinstance(target, FieldRef):
            raise e.refuse("reading a register into something other than a field")
        asm, b = self.asm, self.asm.b
        _, bits, inside, cell = self._register_cell(e, p.args[1], p.args[2])
        start, there, done = b.block, asm.block("register.there"), asm.block("register.done")
        b.cbranch(inside, there, done)
        asm.enter(there)
        loaded = asm.load(cell, bits, min(bits // 8, 8))
        b.branch(done)
        asm.enter(done)
        value = b.phi(loaded.type)
        value.add_incoming(loaded, there)
        value.add_incoming(const(bits, 0), start)
        self.u.machine.write(target, asm.fit(value, self.u.program.field(target).width), p.source)

    def _register_write(self, e: Evaluator, p: Primitive) -> None:
        """Write a cell; one outside the array is not written."""
        asm, b = self.asm, self.asm.b
        width, bits, inside, cell = self._register_cell(e, p.args[0], p.args[1])
        value = asm.fit(e.value(p.args[2], width), bits)
        there, done = asm.block("register.there"), asm.block("register.done")
        b.cbranch(inside, there, done)
        asm.enter(there)
        asm.store(value, cell, min(bits // 8, 8))
        b.branch(done)
        asm.enter(done)

    def _random(self, e: Evaluator, p: Primitive) -> None:
        """A uniform number from low to high, both included."""
        target, low, high = p.args
        asm, b = self.asm, self.asm.b
        if not isinstance(target, FieldRef):
            raise e.refuse("random into something other than a field")
        for bound in (low, high):
            if e.interval(bound).signed or e.interval(bound).bits > 64:
                raise e.refuse("random outside 0..2^64-1")
        if id(p) in self._drawn:
            draw = self._drawn[id(p)]
            draw = draw if e.interval(high).bits > 32 else b.and_(draw, const(64, 0xFFFFFFFF))
        else:
            draw = b.and_(asm.helper(Helper.GET_PRANDOM_U32), const(64, 0xFFFFFFFF))
        if e.interval(high).bits > 32 and id(p) not in self._drawn:
            second = b.and_(asm.helper(Helper.GET_PRANDOM_U32), const(64, 0xFFFFFFFF))
            draw = b.or_(b.shl(draw, const(64, 32)), second)
        field = self.u.program.field(target)
        if isinstance(low, Const) and isinstance(high, Const):
            span = high.value - low.value + 1
            if span <= 0:
                raise e.refuse("random with its bounds the wrong way round")
            if span & (span - 1) == 0:
                number = b.and_(draw, const(64, span - 1))
            else:
                number = self._scale(draw, const(64, span), e.interval(high).bits)
            number = b.add(number, const(64, low.value))
        else:
            base = e.value(low, 64)
            span = b.add(b.sub(e.value(high, 64), base), const(64, 1))
            whole = b.icmp_unsigned("==", span, const(64, 0))
            some = b.select(whole, const(64, 1), span)
            scaled = self._scale(draw, some, e.interval(high).bits)
            number = b.add(b.select(whole, draw, scaled), base)
            # With the bounds the wrong way round, BMv2 leaves the field as it is.
            ordered = b.icmp_unsigned("<=", base, e.value(high, 64))
            kept = asm.fit(self.u.machine.read(target, p.source), 64)
            number = b.select(ordered, number, kept)
        self.u.machine.write(target, asm.fit(number, field.width), p.source)

    def _hash(self, e: Evaluator, p: Primitive) -> None:
        """A hash modulo a size, plus a base, in 64 bits; a size of 0 is taken for 1."""
        target, base, calculation, size = p.args
        asm, b = self.asm, self.asm.b
        if not isinstance(target, FieldRef):
            raise e.refuse("a hash into something other than a field")
        if not isinstance(calculation, Name) or calculation.name not in self.u.program.calculations:
            raise e.refuse("a hash that is not declared")
        number = HashWriter(self.u).hash(self.u.program.calculations[calculation.name])
        if isinstance(size, Const):
            modulo = size.value % (1 << 64) or 1
            if modulo & (modulo - 1) == 0:
                number = b.and_(number, const(64, modulo - 1))
            else:
                number = b.urem(number, const(64, modulo))
        else:
            span = e.value(size, 64)
            zero = b.icmp_unsigned("==", span, const(64, 0))
            number = b.urem(number, b.select(zero, const(64, 1), span))
        number = b.add(number, e.value(base, 64))
        width = self.u.program.field(target).width
        self.u.machine.write(target, asm.fit(number, width), p.source)

    def _scale(self, draw: Value, span: Value, bits: int) -> Value:
        # Multiplying keeps the bias below 2^-32 and costs no division, where the product fits 64 bits.
        b = self.asm.b
        if bits < 32:
            return b.lshr(b.mul(draw, span), const(64, 32))
        return b.urem(draw, span)

    def _truncate(self, e: Evaluator, p: Primitive) -> None:
        """Ask for the frame to be cut behind the deparser; of several overrides the shortest counts."""
        asm, b = self.asm, self.asm.b
        cell = asm.at(self.u.machine.scratch, self.u.layout.cut)
        before, override = asm.load(cell, 32, 4), b.add(e.value(p.args[0], 32), const(32, 1))
        # One less and unsigned, 0 (no override yet) is the largest number.
        one = const(32, 1)
        shorter = b.icmp_unsigned("<", b.sub(override, one), b.sub(before, one))
        asm.store(b.select(shorter, override, before), cell, 4)

    def _clone(self, e: Evaluator, p: Primitive) -> None:
        """Ask for a clone. As in BMv2 it is made when the control ends, and of several the last counts."""
        session, b = self.asm.fit(e.value(p.args[0], 16), 32), self.asm.b
        asked = const(32, ASKED | self._fields(e, p.args[1]) << 16)
        cell = self.asm.at(self.u.machine.scratch, self.u.layout.clone)
        self.asm.store(b.or_(b.and_(session, const(32, SESSION_MASK)), asked), cell, 4)

    def _ask(self, e: Evaluator, p: Primitive, cell: int) -> None:
        """Ask for a frame to begin anew, with the field list that it is to preserve."""
        fields = const(32, self._fields(e, p.args[0]))
        self.asm.store(fields, self.asm.at(self.u.machine.scratch, cell), 4)

    def _fields(self, e: Evaluator, number: Expr) -> int:
        if not isinstance(number, Const) or number.value not in self.u.program.field_lists:
            raise e.refuse("a field list that is not declared")
        return number.value

    def _exit(self, e: Evaluator, p: Primitive) -> None:
        # As in BMv2, what follows in the same action still runs; then the control ends.
        self.asm.store(const(8, 1), self.asm.at(self.u.machine.scratch, self.u.layout.exited))


_JUMPS = ("_jump", "_jump_if_zero")
# What an action cannot do while it holds the lock.
_NOT_LOCKED = {"execute_meter": "a meter"}


def _register_ops(action: Action) -> list[Primitive]:
    return [p for p in action.primitives if p.op in _REGISTER]


def loops(action: Action) -> bool:
    """Whether an action jumps back."""
    jumps = [(i, p) for i, p in enumerate(action.primitives) if p.op in _JUMPS]
    return any(_target(p) <= i for i, p in jumps)


def _target(p: Primitive) -> int:
    last = p.args[-1]
    if not isinstance(last, Const):
        raise UnsupportedError("a computed jump", str(p.source or Source()))
    return last.value


def is_access(expr: Expr) -> TypeGuard[Op]:
    """Whether an expression is a field of a header that another expression denotes."""
    return isinstance(expr, Op) and expr.op == "access_field"


def _plain(name: str) -> str:
    return name.replace(".", "_")
