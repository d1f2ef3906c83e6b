"""Write the code of action bodies: statements, and the jumps that p4c writes for an `if`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import ASKED, CHUNK, RESULTS, SESSION_MASK
from mrclab.switches.ebpf.codegen.backend.asm import Helper, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.expressions import Evaluator, computed_index
from mrclab.switches.ebpf.codegen.externs.hashes import write_hash
from mrclab.switches.ebpf.codegen.externs.random_numbers import RandomStatements
from mrclab.switches.ebpf.codegen.externs.stateful import RegisterStatements, execute_meter, register_ops
from mrclab.switches.ebpf.codegen.header_statements import HeaderStatements
from mrclab.switches.ebpf.plan import DROP_PORT
from mrclab.switches.v1model.declarations import JUMPS, Action, jump_target
from mrclab.switches.v1model.expressions import Const, Expr, FieldRef, Name, Op, Primitive

Params = Sequence[tuple[int, Value]]


_COUNT_SIZE = 16


@dataclass(frozen=True)
class _Counted:
    primitives: list[Primitive]


class ActionWriter:
    """Write the code of action bodies. P4's `exit` jumps to block `leave`, which follows the control."""

    def __init__(self, gen: CodegenContext, leave: Any) -> None:
        self.gen = gen
        self.asm = gen.asm
        self.leave = leave
        headers, self._registers, self._random = (
            HeaderStatements(gen),
            RegisterStatements(gen),
            RandomStatements(gen),
        )
        self._counted: _Counted | None = None  # count() statements to run after the lock is released
        self._ops: dict[str, Callable[[Evaluator, Primitive], None]] = {
            "assign": self._assign,
            "set": self._assign,
            "assign_VL": headers.assign_varbit,
            "assign_header": headers.assign_header,
            "assign_union": headers.assign_headers,
            "assign_header_stack": headers.assign_headers,
            "assign_union_stack": headers.assign_headers,
            "add_header": headers.add_header,
            "remove_header": headers.remove_header,
            "push": headers.push,
            "pop": headers.pop,
            "mark_to_drop": self._mark_to_drop,
            "drop": self._mark_to_drop,
            "count": self._count,
            "generate_digest": self._digest,
            "execute_meter": self._execute_meter,
            "register_read": self._registers.read,
            "register_write": self._registers.write,
            "modify_field_rng_uniform": self._random.write,
            "modify_field_with_hash_based_offset": lambda e, p: write_hash(gen, e, p),
            "truncate": self._truncate,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": lambda e, p: self._reenter(e, p, self.gen.layout.resubmit),
            "recirculate": lambda e, p: self._reenter(e, p, self.gen.layout.recirculate),
            "exit": self._exit,
            "assert": self._assert,
            "assume": self._assert,
            "no_op": lambda e, p: None,
            "log_msg": lambda e, p: None,  # ignored: only BMv2 has a log
        }

    def run(self, action: Action, params: Params) -> None:
        """Write the code of an action's body. Then the builder is at the end of the body."""
        jumps = {jump_target(p) for p in action.primitives if p.op in JUMPS}
        blocks = {i: self.asm.block(f"{_plain(action.name)}.{i}") for i in sorted(jumps)}
        b = self.asm.b
        locked = self._lock(action)
        for i, p in enumerate(action.primitives):
            self._place(blocks.get(i))
            if p.op in JUMPS:
                behind = self.asm.block(f"{_plain(action.name)}.{i}.next")
                with self.asm.place(f"action {action.name}", p.source):
                    if p.op == "_jump":
                        b.branch(blocks[jump_target(p)])
                    else:
                        e = Evaluator(self.gen.machine, p.source, params)
                        b.cbranch(self._nonzero(e, p.args[0]), behind, blocks[jump_target(p)])
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
            flag = self.asm.load(self.asm.at(self.gen.machine.scratch, self.gen.layout.exited), 8)
            b.cbranch(b.icmp_unsigned("==", flag, const(8, 0)), stay, self.leave)
            self.asm.enter(stay)

    def statement(self, primitive: Primitive, params: Params = ()) -> None:
        """Write the code of one statement."""
        e = Evaluator(self.gen.machine, primitive.source, params)
        for i, arg in enumerate(primitive.args):
            place = arg.left if i == RESULTS.get(primitive.op, 0) and is_access(arg) else arg
            index = computed_index(place)
            if index is not None:
                self._for_each_element(e, primitive, i, index, params)
                return
        self._ops.get(primitive.op, self._refuse)(e, primitive)

    def _for_each_element(self, e: Evaluator, p: Primitive, which: int, index: Expr, params: Params) -> None:
        """Write a copy of a statement for each element of a header stack; `index` selects a copy at run time.

        If `index` is beyond the end of the stack, the statement has no effect; BMv2 would terminate.
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
        field = self.gen.program.field(target)
        self.gen.machine.write(target, e.value(p.args[1], field.width), p.source)

    def _assert(self, e: Evaluator, p: Primitive) -> None:
        """Write an assertion. If the condition is false, drop the frame; BMv2 would terminate."""
        true, false = self.asm.block("assert.true"), self.asm.block("assert.false")
        self.asm.b.cbranch(self._nonzero(e, p.args[0]), true, false)
        self.asm.enter(false)
        if self._counted is not None:  # the action holds the lock of registers: release it first
            self.asm.helper(Helper.SPIN_UNLOCK, self._lock_value())
        self.asm.b.branch(self.gen.wrong or self.gen.drop)
        self.asm.enter(true)

    def _mark_to_drop(self, e: Evaluator, p: Primitive) -> None:
        self.gen.set_standard("egress_spec", const(32, DROP_PORT))
        if self.gen.copies_block is not None:
            self.gen.set_standard("mcast_grp", const(32, 0))

    def _count(self, e: Evaluator, p: Primitive) -> None:
        array = p.args[0]
        if not isinstance(array, Name) or array.name not in self.gen.counters:
            raise e.refuse("counting in something other than a counter array")
        counter = self.gen.counters[array.name]
        bits, _, (index,) = e.whole(p.args[1])
        if self._counted is None:
            self.gen.count(counter.map, counter.size, index)
            return
        if bits > 64:
            raise e.refuse("a counter's index of more than 64 bits")
        place = self._count_place(next(i for i, c in enumerate(self._counted.primitives) if c is p))
        self.asm.store(const(64, 1), place, 8)
        self.asm.store(self.asm.fit(index, 64), self.asm.at(place, 8), 8)

    def _execute_meter(self, e: Evaluator, p: Primitive) -> None:
        """Write code that meters the frame. An index outside the array leaves the result field unchanged."""
        array, at, target = p.args
        if not isinstance(array, Name) or array.name not in self.gen.meters:
            raise e.refuse("a meter that is not declared")
        if not isinstance(target, FieldRef):
            raise e.refuse("a meter's result in something other than a field")
        _, _, (index,) = e.whole(at)
        execute_meter(self.gen, self.gen.meters[array.name], index, target, p.source)

    def _lock(self, action: Action) -> bool:
        """Take the lock of all registers if another CPU must not change them during the action.

        BMv2 locks every register that an action uses. Here a single access of up to 64 bits needs no lock,
        because it is atomic. But if one action needs the lock, all actions that write registers take it.
        """
        ops = register_ops(action)
        contended = any(self._registers.needs_lock(a) for a in self.gen.program.actions.values())
        writes = any(p.op == "register_write" for p in ops)
        if not self._registers.needs_lock(action) and not (writes and contended):
            return False
        self._before_lock(action)
        self.asm.helper(Helper.SPIN_LOCK, self._lock_value())
        return True

    def _before_lock(self, action: Action) -> None:
        """Draw random numbers and defer counting: no helper function can be called while the lock is held."""
        for p in action.primitives:
            if p.op in _NOT_LOCKED:
                what = f"{_NOT_LOCKED[p.op]} in an action that holds the lock of registers"
                raise UnsupportedError(what, str(p.source))
            if p.op == "modify_field_rng_uniform":
                self._random.draw(p)
        self._counted = _Counted([p for p in action.primitives if p.op == "count"])
        if len(self._counted.primitives) > CHUNK // _COUNT_SIZE:
            raise UnsupportedError("so many counters in one action", str(action.source))
        for i in range(len(self._counted.primitives)):
            self.asm.store(const(64, 0), self._count_place(i), 8)

    def _digest(self, e: Evaluator, p: Primitive) -> None:
        """Request a digest, which is sent at the end of ingress. As in BMv2, the last request wins."""
        number = p.args[1]
        if not isinstance(number, Const) or number.value not in self.gen.program.digests:
            raise e.refuse("a digest that is not declared")
        self.asm.store(
            const(32, number.value), self.asm.at(self.gen.machine.scratch, self.gen.layout.digest), 4
        )

    def _count_place(self, i: int) -> Value:
        """Return the address of the record of deferred count() `i`.

        The record has a flag (1 if the count must run) and the cell's index.
        """
        return self.asm.at(self.gen.machine.scratch, self.gen.layout.buffer + i * _COUNT_SIZE)

    def _after_lock(self) -> None:
        asm, b = self.asm, self.asm.b
        counted, self._counted = self._counted, None
        self._random.forget()
        for i, p in enumerate(counted.primitives if counted else []):
            asked, done = asm.block("counted.asked"), asm.block("counted.done")
            flag = asm.load(self._count_place(i), 64, 8)
            b.cbranch(b.icmp_unsigned("!=", flag, const(64, 0)), asked, done)
            asm.enter(asked)
            array = p.args[0]
            assert isinstance(array, Name)
            counter = self.gen.counters[array.name]
            self.gen.count(counter.map, counter.size, asm.load(asm.at(self._count_place(i), 8), 64, 8))
            b.branch(done)
            asm.enter(done)

    def _lock_value(self) -> Value:
        assert self.gen.lock_map is not None
        return self.asm.map_value(self.gen.lock_map)

    def _truncate(self, e: Evaluator, p: Primitive) -> None:
        """Request that the frame is truncated after the deparser. The shortest requested length wins."""
        asm, b = self.asm, self.asm.b
        cell = asm.at(self.gen.machine.scratch, self.gen.layout.cut)
        before, request = asm.load(cell, 32, 4), b.add(e.value(p.args[0], 32), const(32, 1))
        # The cell holds the requested length plus 1, or 0 without a request. 0 - 1 is the largest unsigned
        # number, so any request is shorter than no request.
        one = const(32, 1)
        shorter = b.icmp_unsigned("<", b.sub(request, one), b.sub(before, one))
        asm.store(b.select(shorter, request, before), cell, 4)

    def _clone(self, e: Evaluator, p: Primitive) -> None:
        """Request a clone at the end of ingress or egress. As in BMv2, the last request wins."""
        session, b = self.asm.fit(e.value(p.args[0], 16), 32), self.asm.b
        request = const(32, ASKED | self._fields(e, p.args[1]) << 16)
        cell = self.asm.at(self.gen.machine.scratch, self.gen.layout.clone)
        self.asm.store(b.or_(b.and_(session, const(32, SESSION_MASK)), request), cell, 4)

    def _reenter(self, e: Evaluator, p: Primitive, cell: int) -> None:
        """Request that the frame is resubmitted or recirculated and keeps the fields of a field list."""
        fields = const(32, self._fields(e, p.args[0]))
        self.asm.store(fields, self.asm.at(self.gen.machine.scratch, cell), 4)

    def _fields(self, e: Evaluator, number: Expr) -> int:
        if not isinstance(number, Const) or number.value not in self.gen.program.field_lists:
            raise e.refuse("a field list that is not declared")
        return number.value

    def _exit(self, e: Evaluator, p: Primitive) -> None:
        # As in BMv2, the rest of the action still runs. Then the control ends.
        self.asm.store(const(8, 1), self.asm.at(self.gen.machine.scratch, self.gen.layout.exited))


# Statements that are unsupported in an action that holds the lock of registers.
_NOT_LOCKED = {"execute_meter": "a meter"}


def is_access(expr: Expr) -> TypeGuard[Op]:
    """Return True if an expression is a field of a computed header, such as `stack[index].field`."""
    return isinstance(expr, Op) and expr.op == "access_field"


def _plain(name: str) -> str:
    return name.replace(".", "_")
