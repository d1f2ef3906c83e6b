"""Checks and verdicts: a claim holds, it does not hold, or the run does not show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from mrclab.experiments.figures.listing import require_figure

WORDS = {True: "holds", False: "does not hold", None: "not shown"}
INVALID = "the machine did not keep up, so the run shows nothing"


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: what is asked, what was found, whether it holds (None: this run does not show it).

    ``source`` says where the criterion comes from: the paper's number, or theory at this scale.
    """

    asked: str
    found: str
    holds: bool | None
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as it goes into result.json."""
        return {"asked": self.asked, "found": self.found, "holds": self.holds, "source": self.source}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds: all checks must. One that is not shown leaves the claim open.

    ``notes`` say why a claim may not hold at this scale; the verdict has them where it does not hold.
    """

    checks: tuple[Check, ...]
    paper: str = ""
    notes: tuple[str, ...] = field(default=())
    valid: bool = True
    """False: the run was not valid. Then nothing is shown, for or against the claim."""

    @property
    def holds(self) -> bool | None:
        """The verdict: True, False, or None where it is not shown."""
        if not self.valid:
            return None
        if any(check.holds is False for check in self.checks):
            return False
        return None if not self.checks or any(check.holds is None for check in self.checks) else True

    def to_dict(self) -> dict[str, Any]:
        """Return it as it goes into result.json: ``because`` is one line of all that was found."""
        failing = [c for c in self.checks if c.holds is False] or [c for c in self.checks if c.holds is None]
        found = [f"{check.asked}: {check.found}" for check in failing or self.checks]
        because = [*([] if self.valid else [INVALID]), *found, *(self.notes if self.holds is False else ())]
        return {
            "holds": self.holds,
            "because": "; ".join(because),
            "paper": self.paper,
            "checks": [check.to_dict() for check in self.checks],
        }


def all_hold(checks: Sequence[Check], *notes: str) -> Verdict:
    """Return a verdict of these checks."""
    return Verdict(tuple(checks), notes=notes)


def judge(figure: str, result: Mapping[str, Any], more: Sequence[Check] = ()) -> dict[str, Any]:
    """Return the verdict of a figure's judge on a result, with ``more`` checks beside those of the judge.

    Raises InputError where there is no such judge; without a figure the checks stand alone.
    """
    valid = bool(result.get("valid", True))
    if not figure:
        return Verdict(tuple(more), valid=valid).to_dict()
    require_figure(figure)
    module = import_module(f"mrclab.experiments.figures.{figure}")
    verdict: Verdict = module.judge(result)
    return Verdict((*verdict.checks, *more), module.PAPER, verdict.notes, valid).to_dict()
