"""Whether a conventional fabric stalls a synchronous job for as long as reported of such fabrics."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import none_of
from mrclab.experiments.judging.readings import Result, by_repetition, failures, transport_of
from mrclab.experiments.judging.verdict import Check

STALL_US = 1e6
STALL_SOURCE = "OpenAI's post: conventional fabrics take seconds or even tens of seconds"


def stalls_or_fails(result: Result, name: str) -> Check:
    """Check that in every run of a transport a step stalls for a second at least, or the job fails."""
    stalls = by_repetition(result, name, "stalled_us", max)
    failed, ran = failures(result, name), len(transport_of(result, name).get("samples", ()))
    neither = ran - failed - sum(stall >= STALL_US for stall in stalls) if ran else None
    asked = f"runs of {name} without a stall of 1 s or a failed job, of {ran}"
    return none_of(asked, neither, STALL_SOURCE)
