"""Checks of lab 7: the functions of steps.py on small examples, and the measured values."""

from __future__ import annotations

from math import isclose
from typing import Any

import numpy as np

from mrclab.labs.checks import Checks, Student, require
from mrclab.labs.measuring import all_reduce_ms
from mrclab.labs.student import Variant, skeleton_text

CHECKS = Checks()
MS = 1_000_000
OURS = {
    "all_reduce_before": 13.40,
    "all_reduce_with_three_planes": 17.22,
    "all_reduce_with_a_port_less": 14.80,
}
"""Median all-reduce times (ms) of plane.yaml and port.yaml in virtual time, equal on all machines."""
WITHIN = 0.05
RUN_LIMIT_S = 140.0
START = np.array([[0, 30, 60, 90, 130, 170], [1, 30, 60, 90, 130, 171]]) * MS
COMPUTED = START + 10 * MS
REDUCED = np.array([[25, 52, 85, 120, 160, 205], [27, 58, 80, 129, 155, 208]]) * MS
END = np.array([[30, 60, 89, 130, 168, 209], [28, 59, 90, 130, 170, 210]]) * MS


def found_by(student: Student, name: str, *args: Any) -> Any:
    """Return the result of a function of steps.py for these arguments, with lists as arrays."""
    lists = [arg.tolist() if isinstance(arg, np.ndarray) else arg for arg in args]
    return student.load("steps.py").with_arrays(name, *lists)


@CHECKS.add("how long a step takes the job")
def times(student: Student) -> None:
    found = np.asarray(found_by(student, "step_times", START, END)) / MS
    expected = (END.max(axis=0) - START.min(axis=0)) / MS
    require(
        found.shape == expected.shape and np.allclose(found, expected),
        f"For two ranks that start at {(START[:, 0] // MS).tolist()} ms and end at {(END[:, 0] // MS).tolist()} ms the first step takes "
        f"{expected[0]:g} ms, not {found.flat[0]:g}. A synchronous job waits for its slowest rank: from the first start to the last end.",
    )


@CHECKS.add("the slowest rank of a step")
def slowest(student: Student) -> None:
    found = np.asarray(found_by(student, "slowest", COMPUTED, REDUCED))
    expected = (REDUCED - COMPUTED).argmax(axis=0)
    require(
        found.shape == expected.shape and (found == expected).all(),
        f"The slowest ranks of six steps are {expected.tolist()}, not {found.tolist()}. Compare how long each rank's all-reduce took, "
        "step by step.",
    )


@CHECKS.add("what a fault costs")
def cost(student: Student) -> None:
    begin, took = np.arange(10) * 30.0 * MS, np.array([20, 21, 22, 20, 90, 30, 33, 31, 32, 30.0]) * MS
    fault_ns = begin[4] + 5 * MS
    found = float(found_by(student, "cost", took, begin, float(fault_ns)))
    expected = 31 / 20.5
    require(
        isclose(found, expected, rel_tol=1e-6),
        f"Steps of 20 to 22 ms before a fault, one of 90 ms with the fault in it, then 30 to 33 ms: the factor between the medians is "
        f"{expected:.3f}, not {found:.3f}. The step in which the fault comes belongs to neither side.",
    )


@CHECKS.add("what theory says")
def theory(student: Student) -> None:
    for planes, compute, communicate in ((4, 0.0, 10.0), (4, 10.0, 10.0), (8, 30.0, 10.0), (2, 10.0, 5.0)):
        found = float(found_by(student, "predicted", planes, compute, communicate))
        expected = (compute + communicate * planes / (planes - 1)) / (compute + communicate)
        require(
            isclose(found, expected, rel_tol=1e-6),
            f"{planes} planes, {compute:g} ms of computing and {communicate:g} ms of communication: a step takes {expected:.3f} times as "
            f"long with a plane less, not {found:.3f}. What is sent has {planes - 1} planes instead of {planes}. Computing does not get "
            "slower.",
        )


def right_ms(variant: Variant) -> dict[str, float]:
    """Return the median all-reduce times (ms) in a run of the variant's scenarios."""
    if not variant.student:
        return OURS
    plane, port = (
        all_reduce_ms(skeleton_text(7, name, variant), name, RUN_LIMIT_S)
        for name in ("plane.yaml", "port.yaml")
    )
    return dict(zip(OURS, (plane[0], plane[1], port[1]), strict=True))


@CHECKS.add("what was measured")
def measured(student: Student) -> None:
    values = student.values("measured.yaml")
    names = (
        "all_reduce_before",
        "all_reduce_with_three_planes",
        "all_reduce_with_a_port_less",
        "step_factor",
    )
    for name in names:
        require(
            isinstance(values.get(name), int | float) and values[name] > 0,
            f"measured.yaml has no {name} yet: python steps.py prints it.",
        )
    before, plane, port, factor = (float(values[name]) for name in names)
    for name, value, least in (("three planes", plane, 1.15), ("a port less", port, 1.03)):
        require(
            least < value / before < 1.6,
            f"With {name} the all-reduce took {value / before:.2f} times as long as before. The slowest rank has a quarter less bandwidth: "
            "expect a factor of up to 4/3. Did you take medians of the steps before and after the fault?",
        )
    require(
        port < 1.1 * plane,
        f"{port:g} ms with a port less, {plane:g} ms with three planes: who has lost more? Is port.npz of the run with port.yaml?",
    )
    for name, expected in right_ms(student.variant).items():
        require(
            abs(values[name] / expected - 1) < WITHIN,
            f"measured.yaml: {name} is {values[name]:g}, and a run of the same scenario gives another time. Run plane.yaml and port.yaml as "
            "they are, with --target sim, and copy what python steps.py prints.",
        )
    expected = (10 + plane) / (10 + before)
    require(
        abs(factor / expected - 1) < 0.08,
        f"A step of 10 ms of computing and {before:g} ms (then {plane:g} ms) of all-reduce takes about {expected:.2f} times as long, and "
        f"step_factor is {factor:g}. It is a factor of whole steps.",
    )


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
    values = student.values("measured.yaml")
    for name in OURS:
        if isinstance(values.get(name), int | float):
            student.told(1, f"{name} of your measured.yaml, in ms", float(values[name]), 0.1)
