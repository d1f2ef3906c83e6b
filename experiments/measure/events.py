"""Events of endpoints, and the detection of faults.

This module reads agents' logs (docs/event-log.md) and converts their times to CLOCK_MONOTONIC nanoseconds.
Senders' events about paths come from logs or, for ranks, from columns of their samples. A fault is detected
by a sender or by the routing. If a fault is not detected, the result has the reason.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mrclab.experiments.measure.evidence import Evidence, RouteChange, Sample
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.recovery import EVENT_STAMP_NS, Measured, Retirements, Span
from mrclab.hosts.transports.table import Transport
from mrclab.linux.errors import DAMAGE, InputError
from mrclab.topologies import Fabric
from mrclab.topologies import Path as FabricPath
from mrclab.topologies.ev_paths import structured_paths

EVENTS_LOST = "mrc:log:events_lost"
"""The name of the last line of a log from which events are missing."""
KINDS = ("lost", "retired", "replaced", "restored")
MOST_EVENTS = 5000
"""The most events of a kind that a result has for a repetition; ``left_out`` counts the others."""
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
    """A line of a log: ``name`` is a class of `mrclab.hosts.mrc.events`, ``fields`` are its other values."""

    t_ns: int
    name: str
    fields: Mapping[str, Any]

    def int_field(self, key: str) -> int | None:
        """Return the value of an integer field, or None if it is missing or not an integer."""
        value = self.fields.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class EventLog:
    """A log's events in order of time. Events with unknown names are kept."""

    events: tuple[Event, ...]

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[Event, ...]]:
        groups: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            groups[event.name].append(event)
        return {name: tuple(group) for name, group in groups.items()}

    def of(self, name: str) -> tuple[Event, ...]:
        """Return all events with this name, in order of time."""
        return self._by_name.get(name, ())

    def between(self, name: str, start_ns: int, end_ns: int) -> tuple[Event, ...]:
        """Return the events with this name and with start <= t < end."""
        return tuple(event for event in self.of(name) if start_ns <= event.t_ns < end_ns)

    @classmethod
    def of_events(cls, events: Iterable[Event]) -> EventLog:
        """Return a log with these events, sorted by time."""
        return cls(tuple(sorted(events, key=lambda event: event.t_ns)))


def load_events(path: Path | str) -> EventLog:
    """Read a log. If a killed agent left an incomplete last line, this line is left out.

    Raise InputError with the number of the line if another line is not an event.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the event log: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("not an event log: it is not UTF-8 text", where=str(path)) from None
    lines = text.split("\n")
    lines.pop()  # the incomplete line, or empty if the last line is complete
    return parse_events(lines, str(path))


def parse_events(lines: Sequence[str], where: str) -> EventLog:
    """Return the events of these lines, of which the first is the header. Errors name the file ``where``."""
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
    """Return the rows of the events of each kind, in order of time.

    A row has the time since the measurement's start (us), rank, queue pair and EV, and for ``replaced`` the
    new EV. Trimmed packets are not in ``lost``, because a trim is a sign of congestion. ``skipped`` has only
    a count for each EV, because EVs are skipped often.
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
    """Add the events of a rank's sample to ``rows``. The names of their columns begin with ``event_``."""
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


OBLIVIOUS = "not applicable: it retires no path and goes on using broken ones"
NO_ROUTING = "not applicable: it leaves the path to a fabric whose routes never change"
NONE_RETIRED = "no path that the fault broke was retired while it lasted"
NO_CHANGE = "no route changed while the fault lasted"


def retires_paths(transport: Transport) -> bool:
    """Return True if the senders of a transport retire broken paths themselves."""
    return transport.core.sprays and bool(transport.options.get("ev_health", True))


def retirements_of_log(log: EventLog) -> Retirements:
    """Return the retirements in an agent's log."""
    found = [(event.t_ns, ev) for event in log.of("EvRetired") if (ev := event.int_field("ev")) is not None]
    columns = np.array(found, np.int64).reshape(-1, 2)
    return Retirements(columns[:, 0], columns[:, 1])


def retirements_of_ranks(hosts: Sequence[str], samples: Sequence[Sample]) -> dict[str, Retirements]:
    """Return each host's retirements, from the columns of its ranks (`Channel.event_columns`)."""
    parts: dict[str, list[Sample]] = {}
    for host, sample in zip(hosts, samples, strict=False):
        if "event_retired_ns" in sample:
            parts.setdefault(host, []).append(sample)
    found = {}
    for host, ours in parts.items():
        t_ns = np.concatenate([sample["event_retired_ns"] for sample in ours])
        ev = np.concatenate([sample["event_retired_ev"] for sample in ours])
        order = np.argsort(t_ns, kind="stable")
        found[host] = Retirements(t_ns[order], ev[order])
    return found


Ways = Mapping[tuple[str, str], Sequence[FabricPath]]
"""The paths from one host to another, by the names of the two hosts. Each path has its EV."""


def ways_between(fabric: Fabric, pairs: Sequence[tuple[str, str]], routing: str = "srv6") -> Ways:
    """Return the paths between pairs of hosts. Their EVs are structured if the routing is structured."""
    paths = structured_paths if routing == "structured" else Fabric.paths
    return {(src, dst): paths(fabric, src, dst) for src, dst in pairs}


def detected(
    transport: Transport,
    ways: Ways,
    retired: Mapping[str, Retirements],
    changes: Sequence[RouteChange],
    fault: FaultRecord,
    span: Span,
) -> Measured:
    """Return when a fault was detected.

    ``ways`` are the paths between the hosts that send. ``retired`` has the retirements of the senders (MRC).
    ``changes`` has the changes of routes (routed fabrics). The times were read by endpoints or switches.
    """
    if transport.core.sprays:
        return (
            _by_retirements(ways, retired, fault, span)
            if retires_paths(transport)
            else Measured(None, reason=OBLIVIOUS)
        )
    if transport.detection_ns is None:
        return Measured(None, reason=NO_ROUTING)
    during = [c.noticed_ns for c in changes if fault.t_before_ns <= c.noticed_ns < span.repair_before]
    return _first(during, fault, NO_CHANGE)


def _by_retirements(
    ways: Ways,
    retired: Mapping[str, Retirements],
    fault: FaultRecord,
    span: Span,
) -> Measured:
    found: list[int] = []
    for (src, _), paths in ways.items():
        if src not in retired:
            continue
        broken = [path.ev for path in paths if fault.breaks(path)]
        during = retired[src].between(fault.t_before_ns, span.repair_after)
        found += during.t_ns[np.isin(during.ev, broken)].tolist()
    return _first(found, fault, NONE_RETIRED)


def _first(moments_ns: Sequence[int], fault: FaultRecord, reason: str) -> Measured:
    if not moments_ns:
        return Measured(None, reason=reason)
    return Measured(max(0, min(moments_ns) - fault.middle_ns), fault.half_width_ns + EVENT_STAMP_NS)
