"""Checks and verdicts. A claim holds, does not hold, or stays undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: ``asked`` is the criterion, ``found`` is the measured value in words.

    ``holds`` is None if the run does not show whether the criterion holds. ``source`` is the criterion's
    origin: paper or theory.
    """

    asked: str
    found: str
    holds: bool | None
    source: str = ""
    decided_by: float | None = None
    """If the interval includes a limit: the factor by which the number of values must grow for a decision."""

    def to_dict(self) -> dict[str, Any]:
        """Return the check in JSON types, for result.json."""
        found: dict[str, Any] = {"asked": self.asked, "found": self.found, "holds": self.holds}
        if self.decided_by is not None:
            found["decided_by"] = self.decided_by
        return found | {"source": self.source}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a claim.

    In a valid run, the claim holds if all checks hold, and does not hold if a check fails. Otherwise the
    claim is open.

    ``notes`` are reasons why the claim may fail at this scale. Notes are printed if the claim does not hold.
    """

    checks: tuple[Check, ...]
    paper: str = ""
    notes: tuple[str, ...] = field(default=())
    invalid: str = ""
    """The reason why the run proves nothing, neither for nor against the claim. Empty for a valid run."""

    @property
    def holds(self) -> bool | None:
        """True if the claim holds, False if it does not, None if the claim is open."""
        if self.invalid:
            return None
        if any(check.holds is False for check in self.checks):
            return False
        return None if not self.checks or any(check.holds is None for check in self.checks) else True

    @property
    def decided_by(self) -> float | None:
        """The factor by which the number of values must grow to decide the claim; None if it is unknown."""
        open_checks = [check for check in self.checks if check.holds is None]
        counts = [check.decided_by for check in open_checks if check.decided_by is not None]
        if self.holds is not None or self.invalid or len(counts) < len(open_checks):
            return None
        return max(counts, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict in JSON types, for result.json. ``because`` is one line with the findings."""
        failing = [c for c in self.checks if c.holds is False] or [c for c in self.checks if c.holds is None]
        found = [f"{check.asked}: {check.found}" for check in failing or self.checks]
        because = [self.invalid] if self.invalid else found
        if self.holds is False:
            because = [*because, *self.notes]
        return {
            "holds": self.holds,
            "because": "; ".join(because),
            "decided_by": self.decided_by,
            "paper": self.paper,
            "checks": [check.to_dict() for check in self.checks],
        }


def all_hold(checks: Sequence[Check], *notes: str) -> Verdict:
    """Return the verdict that has these checks and notes."""
    return Verdict(tuple(checks), notes=notes)
