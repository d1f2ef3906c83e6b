"""Join equal reasons and notes of many repetitions into one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NUMBER = re.compile(r"(?<![\w-])\d[\d,]*(?:\.\d+)?")
"""Numbers in a text, but not digits in names such as p0-t0-1."""
_REPETITION = re.compile(r"repetition (\d+): ")


@dataclass(slots=True)
class _Group:
    worst: str
    size: float
    where: dict[str, list[str]] = field(default_factory=dict)
    """The numbers of the repetitions that have this line, by the transport's name."""
    count: int = 0


def grouped(lines: Sequence[str], result: Mapping[str, Any]) -> list[str]:
    """Join lines that differ only in numbers: keep the worst line, and name all transports and repetitions.

    ``lines`` are a result's reasons or notes. If there are several transports or repetitions, a line begins
    with their names: ``mrc: repetition 1: in 1 of 1 trials the CPUs were 99% busy``.
    """
    groups: dict[str, _Group] = {}
    for line in lines:
        transport, text = _transport_of(line, result["transports"])
        repetition = ""
        if found := _REPETITION.match(text):
            repetition, text = found[1], text[found.end() :]
        size = max(
            (float(n.replace(",", "")) for n in _NUMBER.findall(text.partition(" (limit")[0])), default=0
        )
        alike = _NUMBER.sub("#", text) if transport or repetition else text
        group = groups.setdefault(alike, _Group(text, size))
        if size > group.size:
            group.worst, group.size = text, size
        group.count += 1
        group.where.setdefault(transport, [])
        if repetition:
            group.where[transport].append(repetition)
    return [_line(group) for group in groups.values()]


def _transport_of(line: str, transports: Mapping[str, Any]) -> tuple[str, str]:
    """Return the transport at the beginning of a line ("" if there is none), and the rest of the line."""
    for name in transports:
        if line.startswith(f"{name}: "):
            return name, line[len(name) + 2 :]
    return "", line


def _line(group: _Group) -> str:
    places = []
    for transport, repetitions in group.where.items():
        numbers = (
            f"repetition{'s' if len(repetitions) > 1 else ''} {', '.join(repetitions)}" if repetitions else ""
        )
        places.append(" ".join(part for part in (transport, numbers) if part))
    where = "; ".join(place for place in places if place)
    if not where:
        return group.worst
    worst = "at worst, " if group.count > 1 else ""
    return f"{worst}{group.worst} [{where}]"
