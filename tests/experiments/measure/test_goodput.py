"""Goodput is computed from the completions between two times, so a warm-up before them does not count."""

import pytest

from mrclab.experiments.measure.events import Event, EventLog
from mrclab.experiments.measure.metrics import completed_mbps

SECOND = 10**9


def log(*t_ns: int, name: str = "ReceiveCompleted") -> EventLog:
    return EventLog.of_events(Event(t, name, {"length_bytes": 1000}) for t in t_ns)


def test_a_fast_warm_up_does_not_count() -> None:
    # 10,000 messages a second arrive until the measurement begins at 1 s. Then 1,000 a second arrive.
    warm_up = range(0, SECOND, 100_000)
    measured = range(SECOND, 2 * SECOND, 1_000_000)
    found = completed_mbps({"h1": log(*warm_up, *measured)}, SECOND, 3 * SECOND)
    assert found == pytest.approx(8.0)


def test_receivers_add_up_and_sends_do_not_count() -> None:
    marks = range(0, SECOND, 1_000_000)
    logs = {"h1": log(*marks), "h2": log(*marks), "h0": log(*marks, name="SendCompleted")}
    assert completed_mbps(logs, 0, SECOND) == pytest.approx(16.0, rel=0.01)


def test_too_few_marks_have_no_rate() -> None:
    assert completed_mbps({"h1": log(1, 2)}, 0, SECOND) is None
    assert completed_mbps({"h1": log(5, 5, 5)}, 0, SECOND) is None
    assert completed_mbps({}, 0, SECOND) is None
