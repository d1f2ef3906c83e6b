"""Events as dictionaries in the manner of qlog (draft-ietf-quic-qlog-main-schema): time, name, data.

Pure functions; the caller writes `header` and then one `record` per line ("JSON-SEQ" without the separator
bytes, so that every JSON-lines tool reads it). Times are ms since `reference_ns`, as qlog wants.
docs/event-log.md describes the file.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

from mrclab.hosts.mrc import events
from mrclab.hosts.rdma.events import (
    Event,
    PacketLost,
    QpError,
    ReceiveCompleted,
    Retransmitted,
    SendCompleted,
)

CATEGORY: dict[type[Event], str] = {
    SendCompleted: "application",
    ReceiveCompleted: "application",
    QpError: "connectivity",
    events.PlaneDown: "connectivity",
    events.PlaneUp: "connectivity",
    events.PortStatusUnanswered: "connectivity",
    events.EndpointAnswered: "connectivity",
    events.EvRetired: "path",
    events.EvReplaced: "path",
    events.EvRestored: "path",
    events.EvSkipped: "path",
    events.EvProbed: "path",
    events.ProbeSent: "recovery",
    events.ProbeAnswered: "recovery",
    PacketLost: "recovery",
    Retransmitted: "recovery",
    events.SpuriousLoss: "recovery",
    events.WindowChanged: "congestion",
}


def header(title: str, vantage_point: str, reference_ns: int) -> dict[str, Any]:
    """Return a log's first record. `vantage_point` names the NIC; `reference_ns` is the time called 0."""
    return {
        "qlog_version": "0.4",
        "qlog_format": "JSON-SEQ",
        "title": title,
        "trace": {
            "vantage_point": {"name": vantage_point},
            "common_fields": {"time_format": "relative", "reference_time_ns": reference_ns},
        },
    }


def record(event: Event, reference_ns: int = 0) -> dict[str, Any]:
    """Return one event: `time` in ms, `name` as `mrc:category:event_class`, its other fields as `data`."""
    name, keys = _SHAPES[type(event)]
    data: dict[str, Any] = {}
    for key in keys:
        value = getattr(event, key)
        data[key] = value.name.lower() if isinstance(value, Enum) else value
    return {"time": (event.t_ns - reference_ns) / 1e6, "name": name, "data": data}


def lost_record(count: int) -> dict[str, Any]:
    """Return the last line of a log that misses `count` events because nobody could write them in time."""
    return {"name": "mrc:log:events_lost", "data": {"count": count}}


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


_SHAPES = {
    kind: (
        f"mrc:{category}:{_snake(kind.__name__)}",
        tuple(field.name for field in fields(kind) if field.name != "t_ns"),
    )
    for kind, category in CATEGORY.items()
}
