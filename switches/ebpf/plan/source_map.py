"""From an instruction to its place in the P4 program, for errors of the kernel's verifier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceMap:
    """Pairs of an instruction and the place that begins there, in order; empty if LLVM gave none."""

    places: tuple[tuple[int, str], ...] = ()

    def place_at(self, instruction: int) -> str | None:
        """Return the place that an instruction comes from, None if it is not known."""
        return next((name for first, name in reversed(self.places) if first <= instruction), None)


def split_place(place: str) -> tuple[str, str]:
    """Split a place into its name and its position in the P4 source, empty if unknown."""
    what, _, where = place.partition(" (")
    return what, where.removesuffix(")")
