"""Compute the bounds of an expression's value from the widths of its operands.

BMv2 computes with integers of any size. If only w bits of a result are kept, most operations can be done
modulo 2^w. But a right shift, a comparison, a division and a saturating cast need all bits of their operands.
For these operations, the interval of the values gives the number of bits that hold every value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mrclab.switches.v1model.expressions import Const, Expr, FieldRef, Lookahead, Op, Param, StackField

_HUGE = 1 << 1024


@dataclass(frozen=True)
class Interval:
    """The interval low..high, including both."""

    low: int
    high: int

    @property
    def signed(self) -> bool:
        """True if the interval has negative values, so that a sign bit is needed."""
        return self.low < 0

    @property
    def bits(self) -> int:
        """The number of bits that can hold every value, with the sign bit if needed; at least 1 bit."""
        if self.low >= 0:
            return max(self.high.bit_length(), 1)
        return max(self.high.bit_length(), (-self.low - 1).bit_length()) + 1


def unsigned(width: int) -> Interval:
    """Return the interval of the P4 type bit<width>."""
    return Interval(0, (1 << width) - 1)


def signed(width: int) -> Interval:
    """Return the interval of the P4 type int<width>."""
    return Interval(-(1 << (width - 1)), (1 << (width - 1)) - 1)


def hull(a: Interval, b: Interval) -> Interval:
    """Return the smallest interval that contains both intervals."""
    return Interval(min(a.low, b.low), max(a.high, b.high))


_ANYTHING = Interval(-_HUGE, _HUGE)
Leaf = Callable[[FieldRef | Param | StackField | Op], Interval]
_TRUTHS = ("==", "!=", "<", "<=", ">", ">=", "and", "or", "not", "d2b", "valid", "valid_union")


def interval(expr: Expr | None, leaf: Leaf) -> Interval:
    """Return the interval of a numeric expression. `leaf` returns the interval of a field or a parameter.

    For an unknown operation, return a very wide interval, so that the caller refuses the expression.
    """
    match expr:
        case Const(value):
            return Interval(value, value)
        case FieldRef() | Param() | StackField():
            return leaf(expr)
        case Lookahead(_, width):
            return unsigned(width)
        case Op(op="access_field"):
            return leaf(expr)
        case Op():
            return _clamp(_operation(expr, leaf))
    return _ANYTHING


def _clamp(i: Interval) -> Interval:
    return Interval(max(i.low, -_HUGE), min(i.high, _HUGE))


def _operation(e: Op, leaf: Leaf) -> Interval:
    if e.op == "b2d" or e.op in _TRUTHS:
        return Interval(0, 1)
    if e.op == "two_comp_mod":
        return signed(e.right.value) if isinstance(e.right, Const) else _ANYTHING
    if e.op == "usat_cast":
        return unsigned(e.right.value) if isinstance(e.right, Const) else _ANYTHING
    if e.op == "sat_cast":
        return signed(e.right.value) if isinstance(e.right, Const) else _ANYTHING
    if e.op.startswith("dereference"):
        return _ANYTHING
    right = interval(e.right, leaf)
    if e.op == "~":
        return Interval(-right.high - 1, -right.low - 1)
    if e.left is None:
        return Interval(-right.high, -right.low) if e.op == "-" else _ANYTHING
    left = interval(e.left, leaf)
    match e.op:
        case "+":
            return Interval(left.low + right.low, left.high + right.high)
        case "-":
            return Interval(left.low - right.high, left.high - right.low)
        case "*":
            corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
            return Interval(min(corners), max(corners))
        case "&":
            bounds = [i.high for i in (left, right) if not i.signed]
            return Interval(0, min(bounds)) if bounds else hull(left, right)
        case "|" | "^":
            both = hull(left, right)
            return signed(both.bits) if both.signed else unsigned(both.bits)
        case "<<":
            if right.signed or right.high > 1024:
                return _ANYTHING
            return Interval(min(left.low << right.high, left.low), max(left.high << right.high, left.high))
        case ">>":
            if right.signed or right.high > 1 << 16:
                return hull(left, Interval(0, 0))
            return hull(
                Interval(left.low >> right.low, left.high >> right.low),
                Interval(left.low >> right.high, left.high >> right.high),
            )
        case "/":
            size = max(left.high, -left.low) if right.signed else 0
            return hull(hull(left, Interval(0, 0)), Interval(-size, size))
        case "%":
            return (
                Interval(0, right.high - 1)
                if not left.signed and right.low > 0
                else hull(left, Interval(0, 0))
            )
        case "?":
            return hull(left, right)
    return _ANYTHING
