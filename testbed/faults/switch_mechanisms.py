"""Faults of switches: their end, and their start."""

from __future__ import annotations

import time
from collections.abc import Callable

from mrclab.faults.mechanism import SimpleMechanism
from mrclab.faults.model import Fault, Moment, switches_at
from mrclab.switches.target import SwitchTarget
from mrclab.topologies import Fabric


class Power(SimpleMechanism):
    """The end of switches: their frames drop; their tables, counters and queues are lost."""

    def __init__(
        self,
        fabric: Fabric,
        target: SwitchTarget,
        revive: Callable[..., None],
        renew: Callable[[str], None],
    ) -> None:
        """Take what boots and programs switches, and what then writes the active faults to one of them."""
        self._fabric = fabric
        self._target = target
        self._revive = revive
        self._renew = renew

    def apply(self, fault: Fault) -> Moment:
        """End them, all in one call."""
        before, after = self._target.kill(*switches_at(self._fabric, fault.where))
        return Moment(before, after, "switch" if self._target.capabilities.stamps_kill else "testbed")

    def undo(self, fault: Fault) -> Moment:
        """Boot them, wait until they hold their entries, and break their broken links again."""
        before = time.monotonic_ns()
        names = switches_at(self._fabric, fault.where)
        self._revive(*names)
        for name in names:
            self._renew(name)
        return Moment(before, time.monotonic_ns(), "testbed")
