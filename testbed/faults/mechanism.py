"""What every mechanism of a fault offers to the registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mrclab.controller.fault_kinds import Fault, Moment


@dataclass(frozen=True, slots=True)
class Transition:
    """Once down and, unless that is still to come, up again."""

    down: Moment
    up: Moment | None = None


class Mechanism(Protocol):
    """Breaks one place once and restores it. One object serves one fault."""

    def prepare(self, fault: Fault) -> None:
        """Begin to get ready what ``apply`` will need, without waiting long. Raise as ``apply`` does."""

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until what ``prepare`` began is ready. Raise as ``apply`` does."""

    def apply(self, fault: Fault) -> Moment:
        """Break the place. Raise and leave nothing broken, or break all of it."""

    def undo(self, fault: Fault) -> Moment:
        """Restore the place."""

    def renew(self, switch: str) -> None:
        """Write again what a switch lost when it ended: a link does not heal when its switch boots."""

    def forget(self) -> None:
        """Take the place as restored: what made the fault is gone."""

    def transitions(self) -> Sequence[Transition]:
        """Return how often it went down and came up so far, where it does so by itself."""

    def close(self) -> None:
        """Stop what goes on by itself; restore nothing."""


class SimpleMechanism:
    """Base of mechanisms that need no preparation and do nothing by themselves."""

    def prepare(self, fault: Fault) -> None:
        """Do nothing."""

    def wait_prepared(self, fault: Fault) -> None:
        """Do nothing: it is ready."""

    def renew(self, switch: str) -> None:
        """Do nothing: no switch holds a part of the fault."""

    def forget(self) -> None:
        """Do nothing."""

    def transitions(self) -> Sequence[Transition]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""
