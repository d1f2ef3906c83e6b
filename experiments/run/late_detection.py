"""Compute when a routing protocol would notice, by its hellos, that a link is dead or restored."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from mrclab.controller.detection import Change, Detection, DetectionSchedule
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.faults.kinds import ALL_KINDS
from mrclab.topologies import Fabric

SILENCING = tuple(kind.name for kind in ALL_KINDS.values() if kind.silences)
"""The kinds of faults under which hellos are lost. A fault in one direction is enough, because both ends must
receive hellos. A dead switch leaves the carriers up, so it is noticed only by missing hellos."""


class LateDetection:
    """The links to remove from the routes or to restore, and when a routing protocol would do so.

    If ``detection_ns`` is None, there are no such links.
    """

    def __init__(self, fabric: Fabric, detection_ns: int | None, seed: int) -> None:
        self._fabric = fabric
        self._schedule: DetectionSchedule | None = None
        if detection_ns is not None:
            self._schedule = DetectionSchedule(Detection.within(detection_ns), random.Random(seed))

    def note(self, fault: PlannedFault, t_ns: int, mended: bool) -> None:
        """Note that a fault was made or undone."""
        if self._schedule is None or fault.kind not in SILENCING:
            return
        for link in fabric_links(self._fabric, fault.place):
            if mended:
                self._schedule.mended(link, t_ns)
            else:
                self._schedule.cut(link, t_ns, carrier=fault.kind != "carrier")

    @property
    def next_ns(self) -> int | None:
        """Return when the next change of routes is due, or None."""
        return None if self._schedule is None else self._schedule.next_ns()

    def due(self, now_ns: int) -> Iterable[Change]:
        """Return the changes of routes that are due, and remove them from the schedule."""
        return () if self._schedule is None else self._schedule.due(now_ns)


def fabric_links(fabric: Fabric, place: str) -> Iterator[str]:
    """Yield the T0-T1 links of a place: the link itself, or all T0-T1 links of a switch or a plane."""
    for link in fabric.links:
        if link.kind == "fabric" and place in (link.name, link.a.node, link.b.node, f"p{link.plane}"):
            yield link.name
