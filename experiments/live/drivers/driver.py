"""The driver of a workload, as the engine sees it: one protocol for agents and rank processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from mrclab.experiments.measure.evidence import Collected
from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.machine import Beats
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import Placement
from mrclab.hosts.remote import RemoteAgent
from mrclab.hosts.transports.table import Transport

if TYPE_CHECKING:
    from mrclab.testbed.running import RunningFabric


@dataclass(frozen=True, slots=True)
class Setting:
    """A driver's context: the repetition's fabric, workload, seed and directories.

    ``directory`` is the repetition's own; ``log`` takes the processes' output.
    """

    running: RunningFabric
    scenario: Scenario
    transport: Transport
    placement: Placement
    seed: int
    directory: Path
    log: Path
    say: Callable[[str], None]


class Steady:
    """The part of a driver whose workload keeps its rate, and whose processes do not beat."""

    rehearses = False

    def beats(self) -> Beats | None:
        """Return None: the processes do not report about themselves."""
        return None

    def adapt(self, load: Load) -> bool:
        """Return True: there is nothing to adapt."""
        return True


class Driver(Protocol):
    """The processes that carry out a workload. A context manager: leaving it ends them."""

    @property
    def pids(self) -> Mapping[str, int]:
        """Return the processes whose waiting for a CPU counts, by name."""

    @property
    def processes(self) -> int:
        """Return how many processes work at a time."""

    @property
    def over(self) -> bool:
        """Return True when all is done, or something that must not happen did."""

    @property
    def next_ns(self) -> int | None:
        """Return the time of the next call of ``act``; None: never."""

    def __enter__(self) -> Self:
        """Start the processes and connect them."""

    def __exit__(self, *error: Any) -> None:
        """End the processes."""

    def priority(self) -> AbstractContextManager[None]:
        """Return a context in which the engine's thread gets a CPU in time."""

    def start(self) -> int:
        """Begin; return when the measurement begins (ns), which may be later than now."""

    def descriptors(self) -> Collection[RemoteAgent | int]:
        """Return the processes that may send something, or descriptors that are readable once they end."""

    def receive(self, ready: Sequence[object]) -> None:
        """Receive from the processes that have sent something."""

    def act(self, clock: Callable[[], int]) -> None:
        """Do what is due."""

    @property
    def rehearses(self) -> bool:
        """Return True if a trial that does not count is to come before the others, to settle the rate."""

    def beats(self) -> Beats | None:
        """Return the processes' reports about themselves; None if there are none now."""

    def adapt(self, load: Load) -> bool:
        """Adapt the rate after a trial of this load; return True if that trial's rate was right."""

    def ask_restored(self, timeout_s: float) -> None:
        """Begin to wait until no path is considered broken, at most ``timeout_s``."""

    @property
    def restored(self) -> bool | None:
        """Return the answer: None while there is none yet."""

    def stop(self) -> None:
        """Send no more, and wait until all sent packets have arrived."""

    def collect(self) -> Collected:
        """Return what came out."""
