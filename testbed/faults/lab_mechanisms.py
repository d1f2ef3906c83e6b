"""Which mechanism makes which kind of fault where our switches run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from mrclab.controller.fault_tables import FaultTables
from mrclab.switches.target import SwitchTarget
from mrclab.testbed.faults.link_mechanisms import Carrier, Delay, NicPort, TableEntries
from mrclab.testbed.faults.registry import Faults, MakeMechanism
from mrclab.testbed.faults.repeated import Flap, Reboot
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

    def entries() -> TableEntries:
        return TableEntries(tables)

    def carrier() -> Carrier:
        return Carrier(fabric, names, target.capabilities)

    def power() -> Power:
        # The registry exists by the time that a fault is made.
        return Power(fabric, target, revive, lambda switch: faults.renew(switch))

    mechanisms: Mapping[str, MakeMechanism] = {
        "blackhole": entries,
        "loss": entries,
        "corruption": entries,
        "rate": entries,
        "carrier": carrier,
        "port-down": lambda: NicPort(fabric, names),
        "delay": lambda: Delay(fabric, names, target.capabilities),
        "flap": lambda: Flap({"blackhole": entries, "carrier": carrier}, lock),
        "switch-death": power,
        "switch-reboot": lambda: Reboot(power(), lock),
        "plane-death": power,
    }
    faults = Faults(fabric, mechanisms, lock)
    return faults
