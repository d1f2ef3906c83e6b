"""The operations of expressions, on integers of any size."""

from __future__ import annotations

from collections.abc import Callable


def _divide(a: int, b: int) -> int:
    """Towards zero; a division by zero gives zero."""
    if not b:
        return 0
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _modulo(value: int, width: int) -> int:
    low = value % (1 << width)
    return low - (1 << width) if low >> (width - 1) else low


NUMERIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": lambda a, b: a - b * _divide(a, b),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "two_comp_mod": _modulo,
    "usat_cast": lambda a, w: min(max(a, 0), (1 << w) - 1),
    "sat_cast": lambda a, w: min(max(a, -(1 << (w - 1))), (1 << (w - 1)) - 1),
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
