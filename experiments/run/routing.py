"""A controller that reacts to faults as late as a routing protocol would: `ecmp+controller`.

Nothing in an ECMP fabric reacts to a dead link by itself. Where the transport has a ``detection_ns`` the
controller takes dead links out of the routes when hellos would have been missing for so long.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import NamedTuple

from controller.detection import Detection, DetectionSchedule
from controller.thread import ControllerThread
from experiments.measure.evidence import RouteChange
from experiments.spec.fault_schedule import PlannedFault
from experiments.spec.transports import Transport
from testbed.frr.fabric import FrrFabric
from testbed.frr.watch import RouteWatch
from testbed.lab import Lab
from testbed.running import RunningFabric
from topologies import Fabric

SILENCING = ("blackhole", "carrier", "switch-death", "switch-reboot", "plane-death")
"""Faults that no hello gets through. It takes hellos from both ends, so one direction is enough.

A carrier that is lost is noticed without any hello. A switch that dies takes none from its neighbours here:
its ports stay lit."""


class Withdrawal(NamedTuple):
    """A change of routes that was made: when it was due, and when every switch had it."""

    link: str
    up: bool
    due_ns: int
    done_ns: int


class Reaction:
    """The reaction of one run: ``next_ns`` says when it is to act, ``act`` has it do so.

    Without a ``detection_ns`` there is none. Routers react themselves: their reaction is only watched.
    """

    def __init__(self, running: RunningFabric, transport: Transport, seed: int) -> None:
        self._fabric = running.fabric
        self._controller: ControllerThread | None = None
        self._schedule: DetectionSchedule | None = None
        if isinstance(running, Lab) and transport.detection_ns is not None:
            self._controller = running.controller
            self._schedule = DetectionSchedule(Detection.within(transport.detection_ns), random.Random(seed))
        self._watch: RouteWatch | None = None
        if isinstance(running, FrrFabric):
            self._watch = RouteWatch(running.network.places[router.name] for router in running.routers)
        self.made: list[Withdrawal] = []

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
        """When there is something to do; None while there is nothing to notice."""
        return None if self._schedule is None else self._schedule.next_ns()

    def act(self, now_ns: int) -> None:
        """Withdraw and restore what is due, and note what routers did."""
        if self._watch is not None:
            self._watch.note()
        if self._schedule is None:
            return
        for change in self._schedule.due(now_ns):
            self._route(change.link, up=change.up)
            self.made.append(Withdrawal(change.link, change.up, change.at_ns, time.monotonic_ns()))

    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when ``act`` has something to note."""
        return self._watch.descriptors() if self._watch is not None else []

    def changes(self) -> list[RouteChange]:
        """Return which routes changed when, repairs included."""
        made = [RouteChange(change.due_ns, change.done_ns) for change in self.made]
        seen = self._watch.changes_ns if self._watch is not None else []
        return [*made, *(RouteChange(t_ns, t_ns) for t_ns in seen)]

    def undo_all(self) -> None:
        """Let the routes use every link again, and stop watching them."""
        if self._watch is not None:
            self._watch.close()
        last = {made.link: made.up for made in self.made}
        for link in (link for link, up in last.items() if not up):
            self._route(link, up=True)

    def _route(self, link: str, *, up: bool) -> None:
        if self._controller is not None:
            change = self._controller.restore if up else self._controller.withdraw
            change(*link.split(":"))


def fabric_links(fabric: Fabric, place: str) -> Iterator[str]:
    """Yield the links between T0 and T1 of a place: the link itself, or those of a switch or a plane."""
    for link in fabric.links:
        if link.kind == "fabric" and place in (link.name, link.a.node, link.b.node, f"p{link.plane}"):
            yield link.name
