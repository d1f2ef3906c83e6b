"""Jumps inside an action: p4c writes them for `if` in an action's body."""

from __future__ import annotations

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.v1model.declarations import Action
from mrclab.switches.v1model.expressions import Const, Primitive

JUMPS = ("_jump", "_jump_if_zero")


def jump_target(primitive: Primitive) -> int:
    """Return the index of the statement that a jump leads to. Raises UnsupportedError for a computed one."""
    last = primitive.args[-1]
    if not isinstance(last, Const):
        raise UnsupportedError("a computed jump", str(primitive.source))
    return last.value


def loops(action: Action) -> bool:
    """Return True if an action jumps back."""
    jumps = [(i, p) for i, p in enumerate(action.primitives) if p.op in JUMPS]
    return any(jump_target(p) <= i for i, p in jumps)
