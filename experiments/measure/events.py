"""Events of endpoints: agents' logs (docs/event-log.md) read back into CLOCK_MONOTONIC nanoseconds, and the
senders' events of paths, from logs or from the columns of ranks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.evidence import Evidence, Sample
from mrclab.linux.errors import DAMAGE, InputError

EVENTS_LOST = "mrc:log:events_lost"
"""The name of a log's last line if events are missing."""
KINDS = ("lost", "retired", "replaced", "restored")
MOST_EVENTS = 5000
"""Of a kind in one repetition that a result holds; ``left_out`` counts those beyond."""
_EVENTS = {
    "PacketLost": "lost",
    "EvRetired": "retired",
    "EvReplaced": "replaced",
    "EvRestored": "restored",
    "EvSkipped": "skipped",
}

Row = list[int | float]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a log: ``name`` is the class of `mrclab.hosts.mrc.events`, ``fields`` its other values."""

    t_ns: int
    name: str
    fields: Mapping[str, Any]

    def int_field(self, key: str) -> int | None:
        """Return a whole-number field, or None if it is missing or something else."""
        value = self.fields.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class EventLog:
    """Events in order of time. Unknown names are kept."""

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

    Raise InputError, with the line, on anything else that is not an event.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the event log: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("not an event log: it is not UTF-8 text", where=str(path)) from None
    lines = text.split("\n")
    lines.pop()  # empty if the last line is whole, else the broken one
    return parse_events(lines, str(path))


def parse_events(lines: Sequence[str], where: str) -> EventLog:
    """Return the events of these lines, the first of which is the header; ``where`` names them in errors."""
    if not lines:
        return EventLog(())
    try:
        reference_ns = json.loads(lines[0])["trace"]["common_fields"]["reference_time_ns"]
    except DAMAGE:
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
        except DAMAGE:
            raise InputError(
                "not an event: a JSON object with time, name and data", where=where, line=number
            ) from None
    return EventLog.of_events(events)


def path_events(e: Evidence, logs: Mapping[str, EventLog]) -> dict[str, Any]:
    """Return, by kind, a row for each event in order of time: time since the measurement's start (us), rank,
    queue pair, EV; for ``replaced`` also the new EV.

    Packets that a switch trimmed are not among the lost: a trim is a sign of congestion, and no loss.
    ``skipped`` has a count for each EV, since marks are many.
    """
    rows: dict[str, list[Row]] = {kind: [] for kind in (*KINDS, "skipped")}
    for rank, sample in enumerate(e.samples):
        _of_sample(rows, rank, sample, e.measure_ns)
    for rank, host in enumerate(e.hosts if not e.samples else ()):
        if host in logs and host not in e.hosts[:rank]:
            _of_log(rows, rank, logs[host], e.measure_ns)
    for kind in KINDS:
        rows[kind].sort(key=lambda row: row[0])
    skipped = Counter(f"{int(row[3]):#x}" for row in rows.pop("skipped"))
    left_out = sum(max(0, len(found) - MOST_EVENTS) for found in rows.values())
    return {
        **{kind: found[:MOST_EVENTS] for kind, found in rows.items()},
        "skipped": dict(sorted(skipped.items())),
        "left_out": left_out,
    }


def _of_sample(rows: dict[str, list[Row]], rank: int, sample: Sample, measure_ns: int) -> None:
    """Take the columns of a rank (``Channel.event_columns``, each with ``event_`` before its name)."""
    for kind, found in rows.items():
        if f"event_{kind}_qpn" not in sample:
            continue
        columns: list[Sequence[int]] = [sample[f"event_{kind}_{name}"].tolist() for name in ("qpn", "ev")]
        if kind == "replaced":
            columns.append(sample["event_replaced_new_ev"].tolist())
        trimmed = sample["event_lost_trimmed"].tolist() if kind == "lost" else None
        for number, t_ns in enumerate(sample[f"event_{kind}_ns"].tolist()):
            if trimmed is None or not trimmed[number]:
                found.append([_us(t_ns, measure_ns), rank, *(column[number] for column in columns)])


def _of_log(rows: dict[str, list[Row]], rank: int, log: EventLog, measure_ns: int) -> None:
    for name, kind in _EVENTS.items():
        for event in log.of(name):
            if "trimmed" in str(event.fields.get("reason", "")):
                continue
            keys = ("qpn", "ev", "new_ev") if kind == "replaced" else ("qpn", "ev")
            values = [event.int_field(key) for key in keys]
            if None not in values:
                rows[kind].append([_us(event.t_ns, measure_ns), rank, *(v for v in values if v is not None)])


def _us(t_ns: int, measure_ns: int) -> float:
    return round((t_ns - measure_ns) / 1e3, 3)
