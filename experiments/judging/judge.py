"""The verdict on a result: the checks of its figure's judge, and the checks on which every claim rests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from mrclab.experiments.judging.soundness import broken_evidence, too_few
from mrclab.experiments.judging.verdict import Check, Verdict
from mrclab.experiments.spec.listing import require_figure

INVALID = "the run is not valid, so it shows nothing"
UNKNOWN = "the result does not say whether the run is valid, so it shows nothing"


def judge(figure: str, result: Mapping[str, Any], more: Sequence[Check] = ()) -> dict[str, Any]:
    """Return the verdict of a figure's judge on a result, with ``more`` checks in addition to the judge's.

    A result that contradicts itself, or has too few repetitions, gets checks that report it before all
    others. Raise InputError if there is no such judge; without a figure the checks stand alone.
    """
    valid = result.get("valid")
    invalid = UNKNOWN if valid is None else "" if valid else INVALID
    checks = (*broken_evidence(result), *more)
    if not figure:
        return Verdict(checks, invalid=invalid).to_dict()
    require_figure(figure)
    module = import_module(f"mrclab.experiments.figures.{figure}")
    verdict: Verdict = module.judge(result)
    checks = (*broken_evidence(result), *too_few(result), *verdict.checks, *more)
    return Verdict(checks, module.PAPER, verdict.notes, invalid).to_dict()
