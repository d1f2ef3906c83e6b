"""The verdict on a claim in words, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrclab.experiments.report.model import EXPECTED

NOT_VALID = "not valid"
MOST_TIMES = 100.0
"""So many times as many values nobody will measure."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict: one word or two, the colour that stands for it, and why."""

    word: str
    colour: str
    because: str


def check_word(check: Mapping[str, Any], valid: bool = True) -> tuple[str, str]:
    """Return the word for a check and its colour; of a run that is not valid none holds or fails."""
    if not valid:
        return NOT_VALID, "unknown"
    if check["holds"] is not None:
        return ("holds", "good") if check["holds"] else ("does not hold", "bad")
    return ("undecided" if check.get("decided_by") else "not shown"), "unknown"


def judged(result: Mapping[str, Any]) -> Judged | None:
    """Return the verdict of a result; None if nothing judged it."""
    verdict = result.get("verdict")
    if not verdict:
        return None
    what = "the claim" if result.get("claim") else "what was expected"
    if not result["valid"]:
        return Judged("no verdict", "unknown", "the run is not valid")
    if verdict["holds"] is not None:
        word, colour = check_word(verdict)
        return Judged(f"{what} {word}", colour, verdict["because"])
    if verdict.get("decided_by"):
        return Judged("undecided", "unknown", f"{verdict['because']}. {_more(result, verdict['decided_by'])}")
    return Judged(f"{what} is not shown", "unknown", verdict["because"])


def _more(result: Mapping[str, Any], times: float) -> str:
    """Return how many trials or repetitions decide a claim, and the option that asks for them."""
    if times >= MOST_TIMES:
        return "The value lies so close to the limit that more repetitions will hardly decide it."
    asked = result["parameters"]
    trials = [entry["trials"] for entry in asked.get("faults") or () if entry.get("trials")]
    number = math.ceil(times * max(trials, default=asked.get("repetitions", 1)))
    what = "trials" if trials else "repetitions"
    return f"About {number:,} {what} would decide it: --trials {number}."


def expected(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each of the scenario's own expectations."""
    checks = (result.get("verdict") or {}).get("checks", ())
    return [
        f"expected {check['asked']}: {check_word(check, result['valid'])[0]}, {check['found']}"
        for check in checks
        if check.get("source") == EXPECTED
    ]
