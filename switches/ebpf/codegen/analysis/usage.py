"""Which fields a program reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mrclab.switches.v1model.expressions import (
    Expr,
    FieldRef,
    Name,
    Op,
    Primitive,
    StackField,
    UnionStackField,
    Vector,
)
from mrclab.switches.v1model.pipeline import ActionCall, Conditional, Table
from mrclab.switches.v1model.program import Program


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
