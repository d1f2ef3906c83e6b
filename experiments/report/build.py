"""The contents of result.json (form ``mrclab.result/2``) from what all repetitions found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from experiments.measure.repetition import Repetition
from experiments.spec.transports import Transport


@dataclass(frozen=True)
class Run:
    """What was asked for and where it ran.

    ``parameters`` is the scenario in JSON types (``description``, ``topology``, ``topology_where``,
    ``workload``, ``faults``, ``repetitions``, ...; times in ns, rates in bps, units in the names); ``figure``
    names the judge of its claim; ``command`` does the same again.
    """

    scenario: str
    parameters: Mapping[str, Any]
    target: str
    topology: str
    seed: int
    transports: tuple[Transport, ...]
    system: Mapping[str, Any]
    claim: str = ""
    figure: str | None = None
    command: tuple[str, ...] = ()


def build(
    run: Run, repetitions: Mapping[str, Sequence[Repetition]], finished: datetime | None = None
) -> dict[str, Any]:
    """Return the contents of result.json. ``repetitions`` are by the transport's name; the claim is judged
    where the run has a ``figure``; ``finished`` defaults to now."""
    raise NotImplementedError
