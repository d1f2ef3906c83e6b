"""Faults on a fabric in one plane: the same places, in plane 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from experiments.spec.fault_schedule import FaultSpec


def place_in_one_plane(place: str) -> str:
    """The name of a place, or a pattern, with every plane read as plane 0."""
    place = re.sub(r"\bp(\d+|\*|\?|\[[^\]]*\])-t", "p0-t", place)
    place = re.sub(r"^p(\d+|\*|\?|\[[^\]]*\])$", "p0", place)
    return re.sub(r"^(h[^:]*)-eth.*$", r"\1-eth0", place)


def specs_in_one_plane(specs: Sequence[FaultSpec]) -> tuple[FaultSpec, ...]:
    """The same faults for a fabric of one plane; places that are then the same strike once."""
    return tuple(
        replace(spec, where=tuple(dict.fromkeys(place_in_one_plane(w) for w in spec.where))) for spec in specs
    )
