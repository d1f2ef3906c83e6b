"""The mechanism of each kind of fault on a fabric of our switches."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mrclab.controller.fault_tables import TABLE_KINDS, FaultTables
from mrclab.faults.kinds import KINDS
from mrclab.faults.registry import Faults, MakeMechanism
from mrclab.switches.target import SwitchTarget
from mrclab.testbed.faults.link_mechanisms import Carrier, Delay, NicPort, TableEntries
from mrclab.testbed.faults.repeated import Cycle
from mrclab.testbed.faults.switch_mechanisms import Power
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric


def lab_faults(
    fabric: Fabric,
    names: Names,
    target: SwitchTarget,
    tables: FaultTables,
    revive: Callable[..., None],
) -> Faults:
    """Return the registry of a lab's faults. ``revive`` boots switches and waits until they are ready."""
    lock = threading.RLock()

    def power() -> Power:
        # The registry exists by the time that a fault is made.
        return Power(fabric, target, revive, lambda switch: faults.renew(switch))

    mechanisms: dict[str, MakeMechanism] = {
        **dict.fromkeys(TABLE_KINDS, lambda: TableEntries(tables)),
        "carrier": lambda: Carrier(fabric, names, target.capabilities),
        "port-down": lambda: NicPort(fabric, names),
        "delay": lambda: Delay(fabric, names, target.capabilities),
        "switch-death": power,
        "plane-death": power,
    }
    cyclic = [kind.name for kind in KINDS.values() if kind.phases is not None]
    simple = dict(mechanisms)
    mechanisms |= dict.fromkeys(cyclic, lambda: Cycle(simple, lock))
    faults = Faults(fabric, mechanisms, lock)
    return faults
