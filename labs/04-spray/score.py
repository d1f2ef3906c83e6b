"""The score of lab 4: the student's policy on five fabrics, some of which measure.py does not have."""

from __future__ import annotations

from collections.abc import Mapping

from mrclab.labs.checks import Checks, Student, require
from mrclab.labs.remote_classes import policy_class
from mrclab.labs.spraying import Fault, spray

CHECKS = Checks()
PACKETS = 3200


def result(
    student: Student, *, fault: Fault | None = None, cross_traffic: bool = False
) -> Mapping[str, float]:
    module = student.load("spray.py")
    seen = spray(
        policy_class(module, "Best"),
        packets=PACKETS,
        fault=fault,
        cross_traffic=cross_traffic,
        ev_health=False,
        seed=11,
    )
    require(seen.finished, "The stream did not end: not everything could be delivered.")
    return {"us": seen.took_us, "lost": sum(seen.lost.values())}


@CHECKS.add("other traffic")
def cross(student: Student) -> Mapping[str, float]:
    return result(student, cross_traffic=True)


@CHECKS.add("one slow link")
def slow(student: Student) -> Mapping[str, float]:
    return result(student, fault=Fault("p2-t0-0:p2-t1-1", ratio=0.25))


@CHECKS.add("a link dies")
def dies(student: Student) -> Mapping[str, float]:
    return result(student, fault=Fault("p3-t0-0:p3-t1-2", at_us=80))


@CHECKS.add("a link is dead for a while")
def mended(student: Student) -> Mapping[str, float]:
    return result(student, fault=Fault("p1-t0-0:p1-t1-3", at_us=30, until_us=150))


@CHECKS.add("a slow link and other traffic")
def both(student: Student) -> Mapping[str, float]:
    return result(student, fault=Fault("p0-t0-0:p0-t1-2", ratio=0.1), cross_traffic=True)
