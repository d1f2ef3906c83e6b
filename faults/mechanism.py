"""The protocol of a mechanism: an implementation of one kind of fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mrclab.faults.model import Fault, Moment, Transition


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
        """Write the entries that a switch lost when it ended: a link does not heal when its switch boots."""

    def forget(self) -> None:
        """Regard the place as restored: the switch that held the fault is gone."""

    def transitions(self) -> Sequence[Transition]:
        """Return each time down and up so far, if the fault comes and goes by itself."""

    def close(self) -> None:
        """Stop threads and processes of the fault; restore nothing."""


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
