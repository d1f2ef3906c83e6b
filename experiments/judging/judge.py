"""The verdict on a result: the checks of its figure's judge, and the checks on which every claim rests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from mrclab.experiments.judging.soundness import broken_evidence, too_few
from mrclab.experiments.judging.verdict import Check, Verdict
from mrclab.experiments.spec.listing import own_judge, require_figure

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
    if own := own_judge(figure):
        verdict, paper = _judged_by(own, figure, result), ""
    else:
        module = import_module(f"mrclab.experiments.figures.{figure}")
        verdict, paper = module.judge(result), module.PAPER
    checks = (*broken_evidence(result), *too_few(result), *verdict.checks, *more)
    return Verdict(checks, paper or verdict.paper, verdict.notes, invalid).to_dict()


def _judged_by(own: Callable[[Mapping[str, Any]], Any], figure: str, result: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a judge outside of the tree, whose errors are a check that is not shown."""
    try:
        verdict = own(result)
    except Exception as error:  # a stranger's code: the measurements are kept even if it fails
        return Verdict((Check(f"{figure} judges the result", f"{type(error).__name__}: {error}", None),))
    if not isinstance(verdict, Verdict):
        return Verdict((Check(f"{figure} returns a Verdict", f"it returned {type(verdict).__name__}", None),))
    return verdict
