"""The event logs of the agents: JSON lines, one object an event, stamped in CLOCK_MONOTONIC nanoseconds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from topologies import InputError


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a log: ``fields`` holds all of it but time and name."""

    t_ns: int
    name: str
    fields: Mapping[str, Any]

    def int_field(self, key: str) -> int | None:
        """A whole-number field, or None where it is missing or something else."""
        value = self.fields.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class EventLog:
    """Events in order of time. Names that the analysis does not know are kept and do no harm."""

    events: tuple[Event, ...]

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[Event, ...]]:
        groups: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            groups[event.name].append(event)
        return {name: tuple(group) for name, group in groups.items()}

    def of(self, name: str) -> tuple[Event, ...]:
        """All events of that name, in order of time."""
        return self._by_name.get(name, ())

    def between(self, name: str, start_ns: int, end_ns: int) -> tuple[Event, ...]:
        """The events of that name with start <= t < end."""
        return tuple(event for event in self.of(name) if start_ns <= event.t_ns < end_ns)

    @classmethod
    def of_events(cls, events: Iterable[Event]) -> EventLog:
        """A log of these events, put in order."""
        return cls(tuple(sorted(events, key=lambda event: event.t_ns)))


def load_events(path: Path | str) -> EventLog:
    """Reads a log. A last line without its end (an agent that was killed) is left out.

    Raises InputError, with the line, on anything else that is not an event.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the event log: {error.strerror}", where=str(path)) from None
    lines = text.split("\n")
    lines.pop()  # empty where the last line is whole, else the broken one
    return parse_events(lines, str(path))


def parse_events(lines: Sequence[str], where: str) -> EventLog:
    """The events of these lines; ``where`` names them in errors."""
    events = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            t_ns, name = fields.pop("t_ns"), fields.pop("event")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise InputError(
                "not an event: a JSON object with t_ns and event", where=where, line=number
            ) from None
        if not isinstance(t_ns, int) or not isinstance(name, str):
            raise InputError("t_ns must be whole nanoseconds and event a name", where=where, line=number)
        events.append(Event(t_ns, name, fields))
    return EventLog.of_events(events)
