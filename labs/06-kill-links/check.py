"""Checks of lab 6: equal faults for all transports, a run that matches the scenario, and right arithmetic."""

from __future__ import annotations

import json
from math import isclose
from statistics import median
from typing import Any

from mrclab.experiments.spec.faults import TimedFault
from mrclab.experiments.spec.model import Scenario
from mrclab.labs.checks import Checks, Student, require
from mrclab.labs.measuring import run_again, student_scenario

CHECKS = Checks()
MS = 1_000_000
NAMES = ("mrc", "bfd", "bgp")
TIMES = ("first_loss_us", "detected_us", "recovered_us")
REPETITIONS = 3
RUN_LIMIT_S = 280.0
SIMULATED = 1.02
"""The allowed factor between a student's and our times in virtual time. Equal versions give equal times."""
LIVE = 30.0
"""As `SIMULATED`, but for a run on real switches: links are cut at other moments, and hosts are slower."""
EXAMPLE: list[dict[str, Any]] = [
    {"transport": "mrc", "first_loss_us": 100.0, "detected_us": 400.0, "recovered_us": 500.0},
    {"transport": "mrc", "first_loss_us": 10.0, "detected_us": 300.0, "recovered_us": 400.0},
    {"transport": "mrc", "first_loss_us": 9000.0, "detected_us": 9300.0, "recovered_us": 9400.0},
    {"transport": "bgp", "first_loss_us": 10.0, "detected_us": 2e6, "recovered_us": 3e6},
    {"transport": "bgp", "first_loss_us": 10.0, "detected_us": 1e6, "recovered_us": 2e6},
    {"transport": "bgp", "first_loss_us": 10.0, "detected_us": None, "recovered_us": None},
]


def scenario_of(student: Student) -> Scenario:
    return student_scenario(student.text("cuts.yaml"))


@CHECKS.add("cuts.yaml has MRC and two routed fabrics")
def transports(student: Student) -> None:
    found = {transport.name: transport for transport in scenario_of(student).transports}
    missing = [name for name in NAMES if name not in found]
    require(not missing, f"cuts.yaml has no transport {', '.join(missing)}: what do you compare MRC with?")
    for name, low_ms, high_ms in (("bfd", 50, 500), ("bgp", 1000, 10_000)):
        detection_ns = found[name].detection_ns
        require(
            detection_ns is not None and low_ms * MS <= detection_ns <= high_ms * MS,
            f"{name}: a dead link should be withdrawn after the time that {name.upper()} takes to notice it, which is from "
            f"{low_ms} ms to {high_ms} ms ('detection').",
        )


@CHECKS.add("all meet the same cuts, and these last long enough")
def fair(student: Student) -> None:
    scenario = scenario_of(student)
    seed = student.variant.seed("cuts", scenario.seed)
    require(
        scenario.seed == seed,
        f"cuts.yaml has the seed {scenario.seed}, and yours is {seed} (yours.md): run it with your own.",
    )
    spared = [transport.name for transport in scenario.transports if not transport.faults]
    require(not spared, f"{', '.join(spared)} meets no faults. A factor compares the same cuts.")
    slowest_ns = max(transport.detection_ns or 0 for transport in scenario.transports)
    timed = [fault for fault in scenario.faults if isinstance(fault, TimedFault)]
    require(timed, "There is no fault at a given time in cuts.yaml.")
    for fault in timed:
        require(
            fault.duration_ns == 0 or fault.duration_ns > slowest_ns,
            f"A cut of {fault.duration_ns / 1e9:g} s is mended before anyone has noticed who needs {slowest_ns / 1e9:g} s. What "
            "would you measure then?",
        )
    last_ns = max(fault.at_ns + fault.duration_ns for fault in timed)
    length_ns = getattr(scenario.workload, "duration_ns", 0)
    require(
        length_ns > last_ns, "The stream ends before the last cut is over, so it cannot show the recovery."
    )


@CHECKS.add("cuts.json has the trials of that scenario, all recovered")
def trials(student: Student) -> None:
    found = trials_of(student)
    for name in NAMES:
        mine = [trial for trial in found if trial["transport"] == name]
        require(
            len(mine) >= 3,
            f"cuts.json has {len(mine)} trials of {name}, and fewer than three say nothing: mrclab run cuts.yaml --target sim "
            "--out run, then python collect.py run.",
        )
        failed = [trial for trial in mine if trial["recovered_us"] is None]
        require(
            not failed,
            f"{len(failed)} trials of {name} never recovered. Was the cut long enough, or did a connection give up?",
        )


def trials_of(student: Student) -> list[dict[str, Any]]:
    try:
        found = json.loads(student.text("cuts.json")).get("trials", [])
    except (ValueError, AttributeError, RecursionError):
        found = None
    good = isinstance(found, list) and all(
        isinstance(trial, dict) and isinstance(trial.get("transport"), str) and {*TIMES} <= trial.keys()
        for trial in found
    )
    require(good, "cuts.json cannot be read: python collect.py run writes it.")
    assert isinstance(found, list)
    return found


@CHECKS.add("cuts.json is what a run of cuts.yaml gives")
def again(student: Student) -> None:
    found = trials_of(student)
    names = {trial["transport"] for trial in found}
    scenario = scenario_of(student)
    require(
        {*NAMES} <= names <= {transport.name for transport in scenario.transports},
        "cuts.json has trials of other transports than cuts.yaml: run it, and collect from that run.",
    )
    simulated = json.loads(student.text("cuts.json")).get("target") == "sim"
    ours = run_again(student.text("cuts.yaml"), REPETITIONS, RUN_LIMIT_S)
    for name in NAMES:
        theirs = [trial for trial in found if trial["transport"] == name][:REPETITIONS]
        expected = [trial for trial in ours if trial["transport"] == name]
        require(
            not any(trial["recovered_us"] is None for trial in expected),
            f"{name} does not recover when cuts.yaml is run: its connection gives up before the routes change.",
        )
        for number, (mine, right) in enumerate(zip(theirs, expected, strict=False)):
            for time in TIMES:
                require(
                    close(mine[time], right[time], SIMULATED if simulated else LIVE),
                    f"{name}, trial {number + 1}: {time} is {mine[time]} in cuts.json, and a run of your cuts.yaml gives another time. "
                    "Run it into a new directory, and collect from there.",
                )


def close(found: Any, right: float | None, within: float) -> bool:
    """Return whether a found time is at most ``within`` times longer or shorter than the right time."""
    if right is None or not isinstance(found, int | float):
        return found is None and right is None
    return right / within <= found <= right * within


@CHECKS.add("median and factor")
def factors(student: Student) -> None:
    module = student.load("factor.py")
    for values in ([3.0, 1.0, 2.0], [4.0, 1.0, 2.0, 10.0], [5.0]):
        found = module.median(list(values))
        require(
            found == median(values),
            f"median({values}) is {found}, not {median(values)}. Sort first; of an even number, take the middle two.",
        )
    found = module.factor(EXAMPLE, "bgp", "mrc")
    expected = 2.5e6 / 500
    require(
        not isclose(found, 1 / expected),
        f"The factor between 2.5 s and 500 us is {found:.3g}. How many times as long does the slow one take?",
    )
    mean = 2.5e6 / (10_300 / 3)
    require(
        not isclose(found, mean),
        "That is the factor between means. One late trial moves a mean: take medians.",
    )
    require(
        isclose(found, expected),
        f"The factor between the medians of 2.5 s and 500 us is {expected:g}, not {found:g}.",
    )


@CHECKS.add("the three parts of a recovery")
def three_parts(student: Student) -> None:
    module = student.load("factor.py")
    for trial in [trial for trial in EXAMPLE if trial["recovered_us"]]:
        found = tuple(module.parts(trial))
        lost, noticed, recovered = trial["first_loss_us"], trial["detected_us"], trial["recovered_us"]
        require(
            len(found) == 3 and isclose(sum(found), recovered),
            f"parts of a trial with first loss {lost:g}, detected {noticed:g}, recovered {recovered:g} are {found}. They should "
            "add up to the whole: all three times count from the cut, and each begins where the one before ends.",
        )
        require(
            all(map(isclose, found, (lost, noticed - lost, recovered - noticed))),
            f"parts of a trial with first loss {lost:g}, detected {noticed:g}, recovered {recovered:g} are {found}. In order: until "
            "the first loss, from there until it was noticed, from there until all was repaired.",
        )


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
    found = [
        [t["recovered_us"] for t in trials_of(student) if t["transport"] == name and t["recovered_us"]]
        for name in ("bgp", "mrc")
    ]
    require(all(found), "Question 1: cuts.json has no trials of BGP and MRC that recovered yet.")
    bgp, mrc = map(median, found)
    student.told(1, "the factor between BGP and MRC by your factor.py", bgp / mrc, 0.02 * bgp / mrc)
