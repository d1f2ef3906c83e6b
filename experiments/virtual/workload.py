"""The interface of a workload in virtual time, as the repetition uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mrclab.experiments.measure.evidence import Collected
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import Placement
from mrclab.experiments.virtual.fabric import VirtualFabric


@dataclass(frozen=True, slots=True)
class VirtualSetting:
    """A workload's context: the repetition's fabric, seed and directory."""

    fabric: VirtualFabric
    scenario: Scenario
    placement: Placement
    seed: int
    directory: Path


class VirtualWorkload(Protocol):
    """A workload on the NICs of a simulated fabric."""

    @property
    def over(self) -> bool:
        """Return True when all is done, or something that must not happen did."""

    def start(self) -> int:
        """Begin; return when the measurement begins, ns."""

    def ask_restored(self, timeout_s: float) -> None:
        """Begin to wait until no path is considered broken, at most ``timeout_s``."""

    @property
    def restored(self) -> bool | None:
        """Return the answer: None while there is none yet."""

    def stop(self) -> None:
        """Send no more, and let the sent packets arrive."""

    def collect(self) -> Collected:
        """Return what came out."""


MakeWorkload = Callable[[VirtualSetting], VirtualWorkload]
