"""Each judge is given a result that must pass, one that must fail, and one that shows nothing."""

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import pytest

from experiments.judging.verdict import judge
from tests.experiments.figures import capacity_cases as capacity
from tests.experiments.figures import lead_cases as lead
from tests.experiments.figures import mode_cases as mode
from tests.experiments.figures import path_cases as path
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
    "queue_pairs": lead.queue_pairs,
    "t1_reboot": path.t1_reboot,
    "training": path.transformer,
}


@cache
def cases(figure: str) -> Cases:
    return CASES[figure]()


@pytest.mark.parametrize("figure", CASES)
def test_a_result_with_the_papers_shape_passes(figure: str) -> None:
    good = cases(figure).good
    found = judge(figure, good)
    assert found["holds"] is True, found["because"]
    json.dumps(found, allow_nan=False)
    assert all(check["source"] for check in found["checks"])


@pytest.mark.parametrize(("figure", "case"), [(f, case) for f in CASES for case in cases(f).bad])
def test_a_result_without_it_fails(figure: str, case: str) -> None:
    found = judge(figure, cases(figure).bad[case])
    assert found["holds"] is False, found["because"]


@pytest.mark.parametrize(("figure", "case"), [(f, case) for f in CASES for case in cases(f).unclear])
def test_a_result_that_cannot_tell_leaves_the_claim_open(figure: str, case: str) -> None:
    found = judge(figure, cases(figure).unclear[case])
    assert found["holds"] is None, found["because"]


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
    modules = {
        f.name.removesuffix(".py") for f in files("experiments.figures").iterdir() if f.name.endswith(".py")
    }
    assert modules - {"__init__", "listing"} == set(CASES)
