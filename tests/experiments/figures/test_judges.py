"""Each judge gets a result that must pass, results that must fail, and results that show nothing."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest

from mrclab.experiments.judging.judge import judge
from mrclab.experiments.spec.claim import MODULES
from tests.experiments.figures import capacity_cases as capacity
from tests.experiments.figures import lead_cases as lead
from tests.experiments.figures import mode_cases as mode
from tests.experiments.figures import path_cases as path
from tests.experiments.figures import program_cases as program
from tests.support.made_results import Cases

CASES: dict[str, Callable[[], Cases]] = {
    "fig04": path.fig04,
    "fig05": path.fig05,
    "fig06": path.fig06,
    "fig08": path.fig08,
    "fig09a": lambda: capacity.stepwise(capacity.NIC_FAULTS, "thin", "bidirectional"),
    "fig09b": lambda: capacity.half("thin", "bidirectional", ["h0-eth2", "h0-eth3"]),
    "fig09c": lambda: capacity.lowest(1520 / 1534, capacity.T0_LINKS),
    "fig09d": lambda: capacity.lowest(1471 / 1532, capacity.T0_LINKS),
    "fig10": capacity.fig10,
    "fig11": lambda: capacity.lowest(1508 / 1533, [("p1-t1-2", 1.0, 2.0)]),
    "fig12": path.fig12,
    "fig14": path.fig14,
    "fig16": lambda: lead.collectives("fig16"),
    "fig17": lambda: lead.collectives("fig17"),
    "fig18": lead.fig18,
    "fig19a": capacity.fig19a,
    "fig19b": lambda: capacity.stepwise(capacity.SPINE_FAULTS, capacity.spines("25 Mbit/s"), "stream"),
    "fig19c": lambda: capacity.half(
        capacity.spines("25 Mbit/s"), "stream", ["p0-t0-0:p0-t1-1", "p0-t0-0:p0-t1-2"]
    ),
    "fig20": lead.fig20,
    "fig21": lead.fig21,
    "fig22": lead.fig22,
    "all_reduce": lead.all_reduce,
    "bandwidth": lead.bandwidth,
    "entropy_values": lead.entropy_values,
    "ev_modes": mode.ev_modes,
    "drain": path.drain,
    "headline": lead.headline,
    "latency": lead.latency,
    "link_kill": lead.link_kill,
    "lossless": lead.lossless,
    "program_kill": program.program_kill,
    "queue_pairs": lead.queue_pairs,
    "t1_reboot": path.t1_reboot,
    "training": path.transformer,
    "training_124m": path.training_124m,
}


ONLY_NOT_SHOWN: dict[str, tuple[str, ...]] = {
    "fig04": ("losses without EV health, in the last third",),
    "fig05": ("flaps that took packets",),
    "fig06": ("packets lost while it was down",),
    "fig12": ("paths that took packets", "EVs retired"),
    "fig14": ("EVs skipped for a mark",),
    "ev_modes": tuple(f"{mode}: faults that took packets" for mode in ("mrc", "mrc-structured", "mrc-ecmp")),
    "drain": ("packets lost to a T1 that was not drained",),
    "headline": ("faults that took packets",),
    "link_kill": ("faults that took packets",),
    "lossless": tuple(
        f"packets of {name} that waited, and then found their port free"
        for name in ("rocev2-pfc", "rocev2-credits-ecmp")
    ),
    "program_kill": ("faults that took packets",),
    "t1_reboot": ("reboots that took packets of MRC",),
    "training": ("faults that took packets of MRC",),
    "training_124m": (
        "deaths of a plane that MRC noticed",
        "jobs over RoCEv2 that failed or stalled for a second, of 6",
    ),
}
"""Checks of a claim's conditions. If a run does not fulfil a condition, the claim is "not shown"."""


@cache
def cases(figure: str) -> Cases:
    return CASES[figure]()


@cache
def good(figure: str) -> dict[str, Any]:
    """Return the verdict on the result that must pass."""
    return judge(figure, cases(figure).good)


@cache
def bad(figure: str, case: str) -> dict[str, Any]:
    """Return the verdict on a result that must fail."""
    return judge(figure, cases(figure).bad[case])


@cache
def unclear(figure: str, case: str) -> dict[str, Any]:
    """Return the verdict on a result that shows nothing."""
    return judge(figure, cases(figure).unclear[case])


@pytest.mark.parametrize("figure", CASES)
def test_a_result_with_the_papers_shape_passes(figure: str) -> None:
    found = good(figure)
    assert found["holds"] is True, found["because"]
    json.dumps(found, allow_nan=False)
    assert all(check["source"] for check in found["checks"])


@pytest.mark.parametrize(("figure", "case"), [(f, case) for f in CASES for case in cases(f).bad])
def test_a_result_without_it_fails(figure: str, case: str) -> None:
    found = bad(figure, case)
    assert found["holds"] is False, found["because"]


@pytest.mark.parametrize(("figure", "case"), [(f, case) for f in CASES for case in cases(f).unclear])
def test_a_result_that_cannot_tell_leaves_the_claim_open(figure: str, case: str) -> None:
    found = unclear(figure, case)
    assert found["holds"] is None, found["because"]


def asked(answer: bool | None, verdicts: Iterable[dict[str, Any]]) -> set[str]:
    """Return the questions in these verdicts that have this answer."""
    return {check["asked"] for found in verdicts for check in found["checks"] if check["holds"] is answer}


@pytest.mark.parametrize("figure", CASES)
def test_every_check_of_a_judge_is_failed_by_some_result(figure: str) -> None:
    made, presence = cases(figure), set(ONLY_NOT_SHOWN.get(figure, ()))
    checks = asked(True, [good(figure)])
    assert presence <= checks
    assert checks - presence <= asked(False, (bad(figure, case) for case in made.bad))
    assert presence <= asked(None, (unclear(figure, case) for case in made.unclear))


@pytest.mark.parametrize("figure", ["fig05", "link_kill"])
def test_nothing_is_shown_by_a_run_that_is_not_valid(figure: str) -> None:
    assert judge(figure, cases(figure).good | {"valid": False})["holds"] is None


@pytest.mark.parametrize("figure", CASES)
def test_a_run_that_measured_nothing_shows_nothing(figure: str) -> None:
    good = cases(figure).good
    empty = {"samples": [], "series": [], "faults": [], "links": [], "path_events": []}
    parts = {name: part | empty for name, part in good["transports"].items()}
    failed = {"failure": "a queue pair failed", "integrity": "ok", "metrics": {}}
    ended = {name: part | {"samples": [failed] * 3} for name, part in parts.items()}
    assert judge(figure, good | {"transports": parts, "trials": []})["holds"] is None
    assert judge(figure, good | {"transports": ended, "trials": []})["holds"] is not True


def test_every_judge_is_tried_here() -> None:
    assert set(MODULES) == set(CASES)
