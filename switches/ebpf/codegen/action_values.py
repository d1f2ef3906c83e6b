"""How an action and its arguments lie in the value of an entry or of a member."""

from __future__ import annotations

from collections.abc import Sequence

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.plan.layouts import VALUE_HEADER, WIDEST, ActionLayout, ParamSlot, round8
from mrclab.switches.v1model.declarations import Action
from mrclab.switches.v1model.expressions import Source


def layout_action(action: Action, number: int, where: Source) -> ActionLayout:
    """Lay out the parameters of an action in an entry's value. Raises UnsupportedError."""
    params, offset = [], VALUE_HEADER
    for p in action.params:
        if p.width > WIDEST:
            what = f"parameter {p.name} of {p.width} bits in action {action.name}"
            raise UnsupportedError(what, str(where))
        size = round8((p.width + 7) // 8)
        params.append(ParamSlot(p.name, p.width, offset, size))
        offset += size
    return ActionLayout(action.name, action.id, number, tuple(params))


def value_size_of(actions: Sequence[ActionLayout]) -> int:
    """Return the bytes that hold any of these actions."""
    return max([VALUE_HEADER] + [p.offset + p.size for a in actions for p in a.params])
