"""The event logs of the agents (docs/event-log.md): read back into CLOCK_MONOTONIC nanoseconds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from linux.errors import InputError

EVENTS_LOST = "mrc:log:events_lost"
"""The name of a log's last line where events are missing."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a log: ``name`` is the class of `hosts.mrc.events`, ``fields`` its other values."""

    t_ns: int
    name: str
    fields: Mapping[str, Any]

    def int_field(self, key: str) -> int | None:
        """Return a whole-number field, or None where it is missing or something else."""
        value = self.fields.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class EventLog:
    """Events in order of time. Names that the analysis does not know are kept."""

    events: tuple[Event, ...]

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[Event, ...]]:
        groups: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            groups[event.name].append(event)
        return {name: tuple(group) for name, group in groups.items()}

    def of(self, name: str) -> tuple[Event, ...]:
        """Return all events of that name, in order of time."""
        return self._by_name.get(name, ())

    def between(self, name: str, start_ns: int, end_ns: int) -> tuple[Event, ...]:
        """Return the events of that name with start <= t < end."""
        return tuple(event for event in self.of(name) if start_ns <= event.t_ns < end_ns)

    @classmethod
    def of_events(cls, events: Iterable[Event]) -> EventLog:
        """Return a log of these events, put in order."""
        return cls(tuple(sorted(events, key=lambda event: event.t_ns)))


def load_events(path: Path | str) -> EventLog:
    """Read a log. A last line without its end (an agent that was killed) is left out.

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
    """Return the events of these lines, the first of which is the header; ``where`` names them in errors."""
    if not lines:
        return EventLog(())
    try:
        reference_ns = json.loads(lines[0])["trace"]["common_fields"]["reference_time_ns"]
    except (ValueError, KeyError, TypeError):
        raise InputError("not the header of an event log", where=where, line=1) from None
    events = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            name, data = record["name"], record["data"]
            if name == EVENTS_LOST:
                continue
            t_ns = reference_ns + round(record["time"] * 1e6)
            kind = "".join(word.capitalize() for word in name.rsplit(":", 1)[1].split("_"))
            events.append(Event(t_ns, kind, dict(data)))
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):
            raise InputError(
                "not an event: a JSON object with time, name and data", where=where, line=number
            ) from None
    return EventLog.of_events(events)
