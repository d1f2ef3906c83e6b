"""The findings of a run so far, live or in virtual time, and their place on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.spec.model import Scenario
from mrclab.hosts.transports.table import Transport


@dataclass
class Outcome:
    """The findings of a run so far, by the transports' names. ``run_scenario`` fills it.

    Repetitions that are in it at the start are not made again. ``began``: something was measured, or was
    about to be; from then on none of the run's files may be removed.
    """

    target: str = ""
    repetitions: dict[str, list[Repetition]] = field(default_factory=dict)
    began: bool = False

    def left(self, scenario: Scenario, transport: Transport) -> tuple[int, ...]:
        """Return the numbers of a transport's repetitions that are still to be made."""
        done = {r.number for r in self.repetitions.get(transport.name, ()) if r.interrupted is None}
        return tuple(number for number in range(scenario.repetitions) if number not in done)

    def add(self, transport: str, repetition: Repetition) -> None:
        """Add the findings of a repetition, in place of those of an interrupted attempt."""
        others = [r for r in self.repetitions.get(transport, ()) if r.number != repetition.number]
        self.repetitions[transport] = sorted([*others, repetition], key=lambda r: r.number)


def repetition_directory(out: Path, transport: str, number: int) -> Path:
    """Return the directory of a repetition's evidence, and its findings."""
    return out / f"{transport}-{number}"
