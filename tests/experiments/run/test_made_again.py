"""A repetition that the machine disturbed is made again, and the second attempt counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.measure.validity import judge
from mrclab.experiments.run.outcome import disturbed, in_place_of

QUIET = Load(10**10, 0.6, 0.01, 0.01, 10**6, "rank 0", 0, 0.1)
STOLEN = replace(QUIET, steal=0.09)
BUSY = replace(QUIET, busy=0.99)
THROTTLED = replace(QUIET, throttled_us=5)
STOOD = replace(QUIET, stopped_ns=900_000, stopped="the process that makes faults")


def repetition(load: Load, latency_us: float = 1.0) -> Repetition:
    return Repetition(
        number=2,
        metrics={"latency_us": [latency_us]},
        series={},
        links={},
        faults=(),
        trials=(),
        trials_aside=(),
        measure_ns=0,
        end_ns=1,
        problem=None,
        failure=None,
        counters={},
        bytes_delivered=0,
        validity=judge([load]),
        data="",
    )


@pytest.mark.parametrize(
    ("load", "again"), [(QUIET, False), (STOLEN, True), (THROTTLED, True), (STOOD, True), (BUSY, False)]
)
def test_only_what_came_by_chance_is_worth_another_attempt(load: Load, again: bool) -> None:
    """If the ranks saturate the CPUs, a second run of the repetition would have the same result."""
    assert disturbed(repetition(load)) is again


@pytest.mark.parametrize("key", ["problem", "failure"])
def test_what_went_wrong_is_not_tried_again(key: str) -> None:
    found = repetition(STOLEN)
    assert not disturbed(replace(found, **{key: "byte 3 of message 7"}))


def test_the_second_attempt_counts_and_tells_of_the_first() -> None:
    found = in_place_of(repetition(STOLEN, 900.0), repetition(QUIET, 5.0))
    assert found.metrics == {"latency_us": [5.0]}
    assert found.validity.valid
    assert ["repetition 2 was made again" in note and "9%" in note for note in found.validity.notes] == [True]
    (aside,) = found.set_aside
    assert aside["metrics"] == {"latency_us": [900.0]}
    assert "hypervisor" in aside["reasons"][0]
