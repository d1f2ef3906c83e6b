"""A controller that reacts to faults as late as a routing protocol would: `ecmp+controller`.

Nothing in an ECMP fabric reacts to a dead link by itself. If the transport has a ``detection_ns``, the
controller takes dead links out of the routes when hellos would have been missing for so long.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from mrclab.controller.thread import ControllerThread
from mrclab.experiments.measure.evidence import RouteChange
from mrclab.experiments.run.late_detection import LateDetection
from mrclab.hosts.transports.table import Transport
from mrclab.testbed.frr.fabric import FrrFabric
from mrclab.testbed.frr.watch import RouteWatch
from mrclab.testbed.lab import Lab
from mrclab.testbed.running import RunningFabric


class Withdrawal(NamedTuple):
    """A change of routes that was made: when it was due, and when every switch had it."""

    link: str
    up: bool
    due_ns: int
    done_ns: int


class Reaction(LateDetection):
    """The reaction of one run: ``next_ns`` returns its next due time, ``act`` carries it out.

    Without a ``detection_ns`` there is none. Routers react themselves: their reaction is only watched.
    """

    def __init__(self, running: RunningFabric, transport: Transport, seed: int) -> None:
        self._controller: ControllerThread | None = None
        if isinstance(running, Lab) and transport.detection_ns is not None:
            self._controller = running.controller
        super().__init__(running.fabric, transport.detection_ns if self._controller else None, seed)
        self._watch: RouteWatch | None = None
        if isinstance(running, FrrFabric):
            self._watch = RouteWatch(running.network.places[router.name] for router in running.routers)
        self.made: list[Withdrawal] = []

    def act(self, now_ns: int) -> None:
        """Withdraw and restore the routes that are due, and note the routers' changes."""
        if self._watch is not None:
            self._watch.note()
        for change in self.due(now_ns):
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
