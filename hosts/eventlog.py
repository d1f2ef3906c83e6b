"""The event log: what an endpoint did and when, one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from hosts.mrc.events import Event


def event_to_dict(event: Event) -> dict[str, Any]:
    """An event as it stands in the log: ``event`` is its class, then its fields; enums by their values."""
    entry: dict[str, Any] = {"t_ns": event.t_ns, "event": type(event).__name__}
    for field in fields(event):
        value = getattr(event, field.name)
        entry[field.name] = value.value if isinstance(value, Enum) else value
    return entry


def write_log(events: Iterable[Event], path: Path) -> None:
    """Writes a whole log."""
    with path.open("w", encoding="utf-8") as log:
        for event in events:
            log.write(json.dumps(event_to_dict(event), separators=(",", ":")) + "\n")
