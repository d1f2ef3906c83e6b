"""The steps of a training, and the course of the job under a watchdog over its collectives. Pure.

PyTorch over NCCL, for instance, ends a job in which a collective takes longer than a limit. The job is then
started again from its last checkpoint, and all steps since are lost. This module computes that from the
measured steps: training is deterministic, so repeated steps have the same losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.metrics import Ints, Metrics, RankSamples

LOSS_SCALE = 1e9
"""Ranks note losses in 1e-9 nats."""
DIGEST_WORDS = 4
KEYS = ("start_ns", "computed_ns", "reduced_ns", "end_ns")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of all ranks together. Times are in us since the measurement's start."""

    start_us: Floats
    """When the last rank began it. The first may have left the barrier of the step before long ago, which
    belongs to that step."""
    computed_us: Floats
    """When the last rank had its gradient."""
    end_us: Floats
    losses: Floats
    """The mean over the ranks, nats a character."""

    @property
    def collective_us(self) -> Floats:
        """How long each step's communication took."""
        return self.end_us - self.computed_us


@dataclass(frozen=True, slots=True)
class Crash:
    """The end of a job: in which step, when, and how many steps it lost, the one under way included."""

    step: int
    at_us: float
    lost_steps: int


@dataclass(frozen=True, slots=True)
class Course:
    """A job's course under a watchdog: each step that ended, those done again as well."""

    end_us: list[float]
    losses: list[float]
    crashes: list[Crash]


def steps_of(ranks: RankSamples, measure_ns: int) -> Steps:
    """Return the steps that every rank has finished."""
    count = min((len(rank["end_ns"]) for rank in ranks), default=0)
    times = {key: np.array([rank[key][:count] for rank in ranks], np.int64) - measure_ns for key in KEYS}
    if not count:
        nothing = np.zeros(0)
        return Steps(nothing, nothing, nothing, nothing)
    losses = np.mean([rank["loss_e9"][:count] for rank in ranks], axis=0) / LOSS_SCALE
    return Steps(
        times["start_ns"].max(axis=0) / 1e3,
        times["computed_ns"].max(axis=0) / 1e3,
        times["end_ns"].max(axis=0) / 1e3,
        losses,
    )


def course_under(
    steps: Steps, timeout_us: float, checkpoint_steps: int, restart_us: float, *, failed: bool = False
) -> Course:
    """Return the course of the same job under a watchdog that ends it ``timeout_us`` into a collective.

    The job is back ``restart_us`` later, and does the steps since the checkpoint again, each in the median
    time: it assumes that nothing is broken any more. ``failed`` is true if the job did end, in the step after
    the last, as its transport gave up: that is a crash as well.
    """
    usual_us = float(np.median(steps.end_us - steps.start_us)) if len(steps.end_us) else 0.0
    course = Course([], [], [])
    later_us = 0.0
    for step, took_us in enumerate(steps.collective_us.tolist()):
        end_us = float(steps.end_us[step])
        if took_us > timeout_us:
            again = step % checkpoint_steps
            at_us = later_us + float(steps.computed_us[step]) + timeout_us
            course.crashes.append(Crash(step, at_us, again + 1))
            for number in range(again):
                course.end_us.append(at_us + restart_us + (number + 1) * usual_us)
                course.losses.append(float(steps.losses[step - again + number]))
            later_us = at_us + restart_us + (again + 1) * usual_us - end_us
        course.end_us.append(later_us + end_us)
        course.losses.append(float(steps.losses[step]))
    if failed:
        step, at_us = len(steps.end_us), course.end_us[-1] if course.end_us else 0.0
        course.crashes.append(Crash(step, at_us, step % checkpoint_steps + 1))
    return course


def transformer_metrics(steps: Steps, course: Course) -> Metrics:
    """Return the times of each step (``step_us``, ``comm_us`` of its communication, ``stalled_us`` by which
    that exceeds the median), and ``stalled_share``, ``crashes`` and ``lost_steps`` of the repetition."""
    if not len(steps.end_us):
        return {}
    took, comm = steps.end_us - steps.start_us, steps.collective_us
    stalled = np.maximum(0, comm - np.median(comm))
    return {
        "step_us": took.tolist(),
        "comm_us": comm.tolist(),
        "stalled_us": stalled.tolist(),
        "stalled_share": [float(stalled.sum() / took.sum())],
        "crashes": [float(len(course.crashes))],
        "lost_steps": [float(sum(crash.lost_steps for crash in course.crashes))],
    }


def account_of(
    steps: Steps, course: Course, ranks: RankSamples, alone: Sequence[str], workload: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the result's entry for the training of a repetition, in JSON types.

    ``alone`` are the digests of one process, before the first step and after each; empty if they are unknown.
    ``parameters_differ_at`` is the first step after which a rank had other parameters than that process, or,
    if that is unknown, than rank 0; null: none did.
    """
    count = len(steps.end_us)
    digests = [_digests(rank["digests"]) for rank in ranks]
    wanted = list(alone) or (digests[0] if digests else [])
    known = min([len(wanted), *(len(found) for found in digests)], default=0)
    differ = [at for at in range(known) if any(found[at] != wanted[at] for found in digests)]
    return {
        "steps": count,
        "wanted_steps": workload["steps"],
        "losses": [round(loss, 6) for loss in steps.losses.tolist()],
        "start_us": np.round(steps.start_us, 1).tolist(),
        "computed_us": np.round(steps.computed_us, 1).tolist(),
        "end_us": np.round(steps.end_us, 1).tolist(),
        "parameters_sha256": digests[0][count] if digests and len(digests[0]) > count else None,
        "alone_sha256": alone[count] if len(alone) > count else None,
        "parameters_differ_at": differ[0] if differ else None,
        "under_watchdog": {
            "end_us": [round(at, 1) for at in course.end_us],
            "losses": [round(loss, 6) for loss in course.losses],
            "crashes": [asdict(crash) for crash in course.crashes],
        },
    }


def _digests(words: Ints) -> list[str]:
    """Return the digests (hexadecimal) that a rank noted as numbers, four each."""
    table = words.reshape(-1, DIGEST_WORDS)
    return [row.tobytes().hex() for row in table]
