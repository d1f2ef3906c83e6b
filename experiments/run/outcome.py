"""What a run has found so far, live or in virtual time, and where it lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.transports import Transport


@dataclass
class Outcome:
    """What a run has found so far, by the transports' names. ``run_scenario`` fills it.

    Repetitions that are in it at the start are not made again. ``began``: something was measured, or was
    about to be; from then on nothing that the run wrote may be removed.
    """

    target: str = ""
    repetitions: dict[str, list[Repetition]] = field(default_factory=dict)
    began: bool = False

    def left(self, scenario: Scenario, transport: Transport) -> tuple[int, ...]:
        """Return the numbers of a transport's repetitions that are still to be made."""
        done = {r.number for r in self.repetitions.get(transport.name, ()) if r.interrupted is None}
        return tuple(number for number in range(scenario.repetitions) if number not in done)

    def add(self, transport: str, repetition: Repetition) -> None:
        """Add what a repetition found, in place of what an interrupted attempt at it did."""
        others = [r for r in self.repetitions.get(transport, ()) if r.number != repetition.number]
        self.repetitions[transport] = sorted([*others, repetition], key=lambda r: r.number)


def repetition_directory(out: Path, transport: str, number: int) -> Path:
    """Return where a repetition's evidence is, and what it found."""
    return out / f"{transport}-{number}"
