"""From the evidence of a repetition to all that it found: metrics, series, trials, validity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.measure.evidence import Evidence
from experiments.measure.faults import FaultRecord
from experiments.measure.metrics import Metrics
from experiments.measure.validity import Validity, taken_away


@dataclass(frozen=True)
class Repetition:
    """What one repetition found. It can be pickled, and all but the named types are JSON's.

    ``trials`` has an entry for each fault that counts, as it goes into result.json, ``trials_aside`` those in
    which the machine did not keep up. ``problem`` is what was wrong with the data, ``failure`` why it did not
    come to its end. ``set_aside`` has what an attempt before this one found (``metrics``) and why that does
    not count (``reasons``).
    """

    number: int
    measure_ns: int
    end_ns: int
    metrics: Metrics
    series: Mapping[str, Any]
    links: Mapping[str, Any]
    faults: tuple[FaultRecord, ...]
    trials: tuple[Mapping[str, Any], ...]
    trials_aside: tuple[Mapping[str, Any], ...]
    validity: Validity
    problem: str | None
    failure: str | None
    counters: Mapping[str, int]
    bytes_delivered: int
    data: str | None
    details: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, Any] = field(default_factory=dict)
    """What the plots draw besides: packets of one recovery, paths in use, distributions."""
    set_aside: tuple[Mapping[str, Any], ...] = ()


def measure(evidence: Evidence) -> Repetition:
    """Measure a repetition. Raises InputError on a file of it that is missing or not what it should be."""
    raise NotImplementedError


def disturbed(repetition: Repetition) -> bool:
    """Return True if the repetition ended well, but others took CPUs away meanwhile."""
    ended = repetition.problem is None and repetition.failure is None
    return ended and any(taken_away(load) for load in repetition.validity.loads)


def in_place_of(first: Repetition, second: Repetition) -> Repetition:
    """Return the second attempt at a repetition, with what the first found and why that does not count."""
    aside = {"reasons": first.validity.reasons, "metrics": first.metrics}
    note = f"repetition {first.number} was made again: {'; '.join(first.validity.reasons)}"
    validity = replace(second.validity, notes=(*second.validity.notes, note))
    return replace(second, validity=validity, set_aside=(aside,))
