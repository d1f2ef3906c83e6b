"""Bounds of an expression's value, from the widths of its operands.

BMv2 computes with whole numbers of any size. Most operations can be done modulo 2^w when only w bits of
the result are kept, but a right shift, a comparison, a division or a saturating cast look at the whole
number. For those, the interval says how many bits hold it without loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mrclab.switches.v1model.expressions import Const, Expr, FieldRef, Lookahead, Op, Param, StackField

_HUGE = 1 << 1024


@dataclass(frozen=True)
class Interval:
    """All values lie in low..high, both included."""

    low: int
    high: int

    @property
    def signed(self) -> bool:
        """True if a sign bit is needed."""
        return self.low < 0

    @property
    def bits(self) -> int:
        """Bits that hold every value, with any sign bit; at least 1."""
        if self.low >= 0:
            return max(self.high.bit_length(), 1)
        return max(self.high.bit_length(), (-self.low - 1).bit_length()) + 1


def unsigned(width: int) -> Interval:
    """Return the values of a bit<width>."""
    return Interval(0, (1 << width) - 1)


def signed(width: int) -> Interval:
    """Return the values of an int<width>."""
    return Interval(-(1 << (width - 1)), (1 << (width - 1)) - 1)


def hull(a: Interval, b: Interval) -> Interval:
    """Return the smallest interval that holds both."""
    return Interval(min(a.low, b.low), max(a.high, b.high))


_ANYTHING = Interval(-_HUGE, _HUGE)
Leaf = Callable[[FieldRef | Param | StackField | Op], Interval]
_TRUTHS = ("==", "!=", "<", "<=", ">", ">=", "and", "or", "not", "d2b", "valid", "valid_union")


def interval(expr: Expr | None, leaf: Leaf) -> Interval:
    """Return the interval of a data expression; `leaf` gives that of fields, parameters and `access_field`.

    An operation that this module does not know yields an interval too wide for any target.
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
