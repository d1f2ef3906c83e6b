"""The findings of a run up to now, where they are stored, and when a repetition is made again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.measure.validity import by_chance
from mrclab.experiments.spec.model import Scenario
from mrclab.hosts.transports.table import Transport


@dataclass
class Outcome:
    """The findings of a run up to now, by the transports' names. ``run_scenario`` adds to it.

    Repetitions that the outcome contains before the run are not made again. ``began`` becomes True when a
    measurement begins. From then on no file of the run may be removed.
    """

    target: str = ""
    repetitions: dict[str, list[Repetition]] = field(default_factory=dict)
    began: bool = False

    def left(self, scenario: Scenario, transport: Transport) -> tuple[int, ...]:
        """Return the numbers of the repetitions that a transport still needs."""
        done = {r.number for r in self.repetitions.get(transport.name, ()) if r.interrupted is None}
        return tuple(number for number in range(scenario.repetitions) if number not in done)

    def add(self, transport: str, repetition: Repetition) -> None:
        """Add the findings of a repetition. These findings replace those of an interrupted attempt."""
        others = [r for r in self.repetitions.get(transport, ()) if r.number != repetition.number]
        self.repetitions[transport] = sorted([*others, repetition], key=lambda r: r.number)


def repetition_directory(out: Path, transport: str, number: int) -> Path:
    """Return the directory of a repetition's evidence and findings."""
    return out / f"{transport}-{number}"


def disturbed(repetition: Repetition) -> bool:
    """Return True if the repetition ended well, but other programs took CPU time or a process was stopped."""
    ended = repetition.problem is None and repetition.failure is None and repetition.interrupted is None
    return ended and any(by_chance(load) for load in repetition.validity.loads)


def in_place_of(first: Repetition, second: Repetition) -> Repetition:
    """Return the second attempt, with the first attempt's findings and the reasons to set these aside."""
    aside = {"reasons": first.validity.reasons, "metrics": first.metrics}
    note = f"repetition {first.number} was made again: {'; '.join(first.validity.reasons)}"
    validity = replace(second.validity, notes=(*second.validity.notes, note))
    return replace(second, validity=validity, set_aside=(aside,))
