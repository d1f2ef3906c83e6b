"""Events as dictionaries in the manner of qlog (draft-ietf-quic-qlog-main-schema): time, name, data.

Pure functions; whoever keeps the file writes `header` and then one `record` per line ("JSON-SEQ" without the
separator bytes, so that every JSON-lines tool reads it). Times are ms since `reference_ns`, as qlog wants.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

from hosts.mrc import events
from hosts.mrc.events import Event

_CATEGORY: dict[type[Event], str] = {
    events.SendCompleted: "application",
    events.ReceiveCompleted: "application",
    events.QpError: "connectivity",
    events.PlaneDown: "connectivity",
    events.PlaneUp: "connectivity",
    events.PortStatusUnanswered: "connectivity",
    events.EvRetired: "path",
    events.EvReplaced: "path",
    events.EvRestored: "path",
    events.EvSkipped: "path",
    events.EvProbed: "path",
    events.ProbeSent: "recovery",
    events.ProbeAnswered: "recovery",
    events.PacketLost: "recovery",
    events.Retransmitted: "recovery",
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
    data: dict[str, Any] = {}
    for field in fields(event):
        if field.name != "t_ns":
            value = getattr(event, field.name)
            data[field.name] = value.name.lower() if isinstance(value, Enum) else value
    kind = type(event)
    return {
        "time": (event.t_ns - reference_ns) / 1e6,
        "name": f"mrc:{_CATEGORY[kind]}:{_snake(kind.__name__)}",
        "data": data,
    }


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
