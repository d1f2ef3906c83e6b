"""Checks and verdicts: a claim holds, it does not hold, or the run leaves it undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: its criterion, the finding, whether it holds (None: this run does not show it).

    ``source`` is the criterion's origin: the paper's number, or theory at this scale.
    """

    asked: str
    found: str
    holds: bool | None
    source: str = ""
    decided_by: float | None = None
    """An estimate of how many times as many values would decide it, if its interval straddles the limit."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as it goes into result.json."""
        found: dict[str, Any] = {"asked": self.asked, "found": self.found, "holds": self.holds}
        if self.decided_by is not None:
            found["decided_by"] = self.decided_by
        return found | {"source": self.source}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds: all checks must. One that is not shown leaves the claim open.

    ``notes`` give reasons why a claim may not hold at this scale; the verdict has them if it does not hold.
    """

    checks: tuple[Check, ...]
    paper: str = ""
    notes: tuple[str, ...] = field(default=())
    invalid: str = ""
    """Why the run shows nothing, for or against the claim; empty: it is valid."""

    @property
    def holds(self) -> bool | None:
        """The verdict: True, False, or None if it is open."""
        if self.invalid:
            return None
        if any(check.holds is False for check in self.checks):
            return False
        return None if not self.checks or any(check.holds is None for check in self.checks) else True

    @property
    def decided_by(self) -> float | None:
        """How many times as many values would decide the claim; None if it is decided, or lacks evidence of
        another kind."""
        open_checks = [check for check in self.checks if check.holds is None]
        counts = [check.decided_by for check in open_checks if check.decided_by is not None]
        if self.holds is not None or self.invalid or len(counts) < len(open_checks):
            return None
        return max(counts, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as it goes into result.json: ``because`` is one line with all findings."""
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
    """Return a verdict of these checks."""
    return Verdict(tuple(checks), notes=notes)
