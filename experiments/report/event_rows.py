"""The event browser: faults and repairs, losses, and EVs retired and restored, in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mrclab.experiments.report.ev_map import STATES, ev_words

KINDS = {
    "fault": "faults",
    "repair": "repairs",
    "lost": "losses",
    "retired": "EVs retired",
    "restored": "EVs restored",
}
"""The kinds of events, with the words of the filter."""
TOGETHER_US = 1000.0
"""Losses of one EV that follow one another within this time share a row."""
MOST_ROWS = 400
PICTURES = {
    "fault": ("recovery", "delivered", "training-loss"),
    "repair": ("delivered", "training-loss"),
    "lost": ("recovery", "delivered-rate", "delivered"),
    "retired": ("ev-map", "ev-activity"),
    "restored": ("ev-map", "ev-activity"),
}
"""Pictures that may show an event, the best first."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the browser."""

    at_us: float
    kind: str
    transport: str
    repetition: int
    text: str


def event_rows(result: Mapping[str, Any]) -> tuple[list[EventRow], int]:
    """Return the rows of all transports in order of repetition and time, and how many more there are."""
    found = [
        row
        for name, part in result["transports"].items()
        for row in (*_faults(name, part), *_losses(name, part), *_states(name, part))
    ]
    found.sort(key=lambda row: (row.repetition, row.at_us))
    return found[:MOST_ROWS], max(0, len(found) - MOST_ROWS)


def _faults(name: str, part: Mapping[str, Any]) -> Iterator[EventRow]:
    for fault in part.get("faults", ()):
        words = f"{fault['kind']} at {fault['where']}"
        yield EventRow(fault["at_us"], "fault", name, fault["repetition"], words)
        until_ns = fault.get("restore_before_ns")
        if until_ns is not None:
            middle_ns = (fault["t_before_ns"] + fault["t_after_ns"]) / 2
            until_us = fault["at_us"] + (until_ns - middle_ns) / 1e3
            yield EventRow(until_us, "repair", name, fault["repetition"], f"{words}, undone")


def _losses(name: str, part: Mapping[str, Any]) -> Iterator[EventRow]:
    place = partial(ev_words, routing=part["routing"])
    for events in part.get("path_events", ()):
        groups: dict[int, list[float]] = {}
        for row in events["lost"]:
            at_us, ev = row[0], int(row[3])
            if ev in groups and at_us - groups[ev][-1] > TOGETHER_US:
                yield _lost(name, events["repetition"], place(ev), groups.pop(ev))
            groups.setdefault(ev, []).append(at_us)
        for ev, times_us in groups.items():
            yield _lost(name, events["repetition"], place(ev), times_us)


def _lost(name: str, repetition: int, place: str, times_us: list[float]) -> EventRow:
    count = len(times_us)
    words = "1 packet" if count == 1 else f"{count:,} packets in {times_us[-1] - times_us[0]:,.0f} us"
    return EventRow(times_us[0], "lost", name, repetition, f"{words}, {place}")


def _states(name: str, part: Mapping[str, Any]) -> Iterator[EventRow]:
    place = partial(ev_words, routing=part["routing"])
    for events in part.get("path_events", ()):
        for kind in STATES:
            for row in events[kind]:
                words = f"{place(int(row[3]))}, rank {int(row[1])}, queue pair {int(row[2])}"
                yield EventRow(row[0], kind, name, events["repetition"], words)
