"""The score of lab 5: the time until all packets arrived, and the number of needless retransmissions."""

from __future__ import annotations

import random
from collections.abc import Mapping

from mrclab.labs.checks import Checks, Student, require
from mrclab.labs.remote_classes import RemoteDetector
from mrclab.labs.repairing import LOST, TIMEOUT_NS, WINDOW_NS, Schedule, tell

CHECKS = Checks()
SCHEDULES = 30
PACKETS = 30
NEEDLESS_US = 5
"""The microseconds that each needless retransmission adds to the score, because it delays other packets."""


def result(
    student: Student, seed: int, *, lost: float, late: float, sacks_lost: float
) -> Mapping[str, float]:
    rng = random.Random(seed)
    module = student.load("repair.py")

    def fate(loss: float) -> int | None:
        if rng.random() < loss:
            return LOST
        return rng.randrange(WINDOW_NS) if rng.random() < late else 0

    score = needless = 0.0
    for _ in range(SCHEDULES):
        schedule = Schedule(
            PACKETS,
            tuple(fate(lost) for _ in range(3 * PACKETS)),
            tuple(fate(sacks_lost) for _ in range(3 * PACKETS)),
        )
        story = tell(RemoteDetector(module, WINDOW_NS, TIMEOUT_NS), schedule)
        require(story.delivered, f"Packets {list(story.missing)} never arrived. {schedule.words()}.")
        score += story.delivered_ns / 1000 + NEEDLESS_US * len(story.needless)
        needless += len(story.needless)
    return {"us": score / SCHEDULES, "needless": needless}


@CHECKS.add("losses")
def losses(student: Student) -> Mapping[str, float]:
    return result(student, 1, lost=0.1, late=0, sacks_lost=0)


@CHECKS.add("losses, and late packets")
def late(student: Student) -> Mapping[str, float]:
    return result(student, 2, lost=0.1, late=0.5, sacks_lost=0)


@CHECKS.add("losses both ways, and late packets")
def both_ways(student: Student) -> Mapping[str, float]:
    return result(student, 3, lost=0.1, late=0.5, sacks_lost=0.3)
