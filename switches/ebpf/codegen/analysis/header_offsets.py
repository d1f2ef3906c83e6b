"""Find the offsets that each header can have in a frame, so that the deparser need not compute them.

To find them, this module follows the parser through every state at every position, as `codegen.parser` does.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.v1model.expressions import Const, Expr, Name, Primitive, UnionStackHeader
from mrclab.switches.v1model.program import Program


@dataclass(frozen=True)
class ParserPosition:
    """A position of the parser: the offset in the frame, and the next free element of each header stack."""

    offset: int
    unknown_lengths: int = 0  # number of earlier fields whose length `offset` does not include
    stacks: tuple[tuple[str, int], ...] = ()

    def next_index(self, stack: str) -> int:
        """Return the number of elements of a stack that the parser has extracted."""
        return dict(self.stacks).get(stack, 0)

    def folded(self) -> ParserPosition:
        """Return this position without its offset, which the program computes at run time."""
        return replace(self, offset=0, unknown_lengths=1)

    def with_next(self, stack: str, index: int) -> ParserPosition:
        """Return this position, but with `index` as the next free element of a stack."""
        return replace(self, stacks=tuple(sorted({**dict(self.stacks), stack: index}.items())))

    def extract(self, program: Program, target: Expr) -> tuple[str, ParserPosition] | None:
        """Return the header that an `extract` fills, and the position for it, or None if the stack is full.

        The returned position differs from this position only in the next free element of a stack.
        """
        match target:
            case Name("header_stack", stack):
                member = None
            case UnionStackHeader(stack, member):
                pass
            case Name("header", name):
                return name, self
            case _:
                raise UnsupportedError("extracting something other than a header")
        index = self.next_index(stack)
        if index >= program.depth(stack):
            return None
        return program.element(stack, index, member), self.with_next(stack, index + 1)

    def moved(self, program: Program, op: Primitive) -> ParserPosition:
        """Return the position after a statement. Only push, pop and copies of stacks change a position."""
        match op:
            case Primitive("push" | "pop", (Name(_, stack), Const(count))):
                index = self.next_index(stack)
                if op.op == "push":
                    return self.with_next(stack, min(index + count, program.depth(stack)))
                return self.with_next(stack, max(index - count, 0))
            case Primitive("assign_header_stack" | "assign_union_stack", (Name(_, to), Name(_, origin))):
                return self.with_next(to, self.next_index(origin))
        return self


Step = tuple[str, ParserPosition]


def follow_parser(program: Program, limit: int, folded: bool) -> dict[Step, list[Step]] | None:
    """Return the parser's steps, each with its next steps. A step is a state and the position at its start.

    If `folded` is true, the program computes offsets at run time. Then a position has no offset, only the
    next free stack elements.
    Return None if there are more than `limit` steps.
    """
    start = program.parser.start, ParserPosition(0)
    steps: dict[Step, list[Step]] = {}
    pending = [start]
    while pending:
        step = pending.pop()
        if step in steps:
            continue
        if len(steps) >= limit:
            return None
        after = _behind(program, step)
        if after is not None and folded:
            after = after.folded()
        transitions = program.parser.states[step[0]].transitions
        steps[step] = [] if after is None else [(t.next, after) for t in transitions if t.next is not None]
        pending += steps[step]
    return steps


def _behind(program: Program, step: Step) -> ParserPosition | None:
    """Return the position at the end of a state, or None if the state always stops the parser."""
    name, at = step
    for op in program.parser.states[name].ops:
        match op.op:
            case "extract" | "extract_VL":
                found = at.extract(program, op.args[0])
                if found is None:
                    return None
                header, at = found
                unknown = at.unknown_lengths + (op.op == "extract_VL")
                at = replace(
                    at, offset=at.offset + program.headers[header].type.bits // 8, unknown_lengths=unknown
                )
            case "advance" | "shift":
                count = op.args[0]
                if isinstance(count, Const):
                    at = replace(at, offset=at.offset + count.value // (8 if op.op == "advance" else 1))
                else:
                    at = replace(at, unknown_lengths=at.unknown_lengths + 1)
            case _:
                at = at.moved(program, op)
    return at


def endless(steps: dict[Step, list[Step]]) -> str | None:
    """Return the name of a state that is part of an endless loop of the parser, or None."""
    done: set[Step] = set()
    for first in steps:
        path: dict[Step, list[Step]] = {first: list(steps[first])} if first not in done else {}
        while path:
            step = next(reversed(path))
            if not path[step]:
                done.add(step)
                del path[step]
                continue
            following = path[step].pop()
            if following in path:
                return following[0]
            if following not in done:
                path[following] = list(steps[following])
    return None


_LIMIT = 4096  # maximum number of steps of the search; the compiler rejects a parser with more steps


def find_header_offsets(program: Program) -> dict[str, frozenset[int]] | None:
    """Return the offsets in bytes at which the parser can extract each header.

    Return None in three cases: the parser and the deparser may use different orders of headers, the parser
    may extract a header twice, or there may be other bytes between headers.
    """
    ranks = {name: i for i, name in enumerate(program.deparser.order)}
    places: dict[str, set[int]] = defaultdict(set)
    start = program.parser.start
    nothing: frozenset[str] = frozenset()
    pending: list[tuple[str | None, ParserPosition, int, frozenset[str]]] = [
        (start, ParserPosition(0), -1, nothing)
    ]
    seen = set(pending)
    while pending:
        name, at, last, gone = pending.pop()
        if name is None:
            continue
        state = program.parser.states[name]
        full = False
        for op in state.ops:
            if op.op in ("advance", "shift", "extract_VL"):
                return None
            at = at.moved(program, op)
            if op.op != "extract":
                continue
            found = at.extract(program, op.args[0])
            full = found is None
            if found is None:  # the stack is full, so the parser stops
                break
            header, after = found
            if ranks.get(header, -1) <= last or header in gone:
                return None
            gone |= {*program.exclusive_with(header)}  # the other headers of its union
            last = ranks[header]
            places[header].add(at.offset)
            at = replace(after, offset=at.offset + program.headers[header].type.bits // 8)
        if full:
            continue
        for t in state.transitions:
            step = (t.next, at, last, gone)
            if step not in seen:
                seen.add(step)
                pending.append(step)
        if len(seen) > _LIMIT:
            return None
    return {header: frozenset(offsets) for header, offsets in places.items()}
