"""Compare two measurements of the same quantities: check bounds of their differences and make a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest allowed difference of two values: a `share` of the first value, or a `distance`.

    If both are None, there is no bound, and the row only informs the reader.
    """

    share: float | None = None
    distance: float | None = None

    def holds(self, first: float, second: float) -> bool | None:
        """Return True if the difference of two values is allowed, or None if there is no bound."""
        if self.share is not None:
            return abs(second - first) <= self.share * abs(first)
        if self.distance is not None:
            return abs(second - first) <= self.distance
        return None

    def text(self, unit: str) -> str:
        """Return the bound as text for the table."""
        if self.share is not None:
            return f"within {self.share:.0%}"
        return "-" if self.distance is None else f"within {self.distance:.3g} {unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Row:
    """A quantity with its two measured values and their bound. A value is None if it was not found."""

    what: str
    unit: str
    first: float | None
    second: float | None
    bound: Bound = Bound()

    @property
    def ratio(self) -> float | None:
        """Return the second value divided by the first."""
        return None if self.first in (None, 0) or self.second is None else self.second / self.first

    @property
    def holds(self) -> bool | None:
        """Return whether the bound holds: False if a value is missing, None if there is no bound."""
        if self.first is None or self.second is None:
            return None if self.bound == Bound() else False
        return self.bound.holds(self.first, self.second)


VERDICT = {True: "holds", False: "DOES NOT HOLD", None: ""}


def table(rows: Sequence[Row], first: str, second: str) -> str:
    """Return the rows as lines of text: quantity, both values, ratio, bound, verdict."""
    lines = [f"{'':46} {first:>11} {second:>11} {'ratio':>7}  bound"]
    for row in rows:
        values = " ".join(f"{_shown(value):>11}" for value in (row.first, row.second))
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        name = f"{row.what}, {row.unit}" if row.unit else row.what
        lines.append(
            f"{name:46} {values} {ratio:>7}  {row.bound.text(row.unit):20} {VERDICT[row.holds]}".rstrip()
        )
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
