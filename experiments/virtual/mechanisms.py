"""The mechanism of each kind of fault on a simulated fabric, for the registry that live runs use too."""

from __future__ import annotations

from collections.abc import Callable

from mrclab.controller.fault_kinds import ALL_KINDS, SIMULATED_KINDS, Fault, Moment
from mrclab.simulator.faults import NetworkFaults
from mrclab.simulator.network import Network
from mrclab.testbed.faults.mechanism import SimpleMechanism
from mrclab.testbed.faults.registry import Faults


class VirtualMechanism(SimpleMechanism):
    """Makes a fault of any kind at the present moment of a network's clock."""

    def __init__(self, network: Network, faults: NetworkFaults) -> None:
        self._network = network
        self._faults = faults
        self._end: Callable[[], None] | None = None

    def _now(self) -> Moment:
        now_ns = self._network.clock.now_ns
        return Moment(now_ns, now_ns, "testbed")

    def apply(self, fault: Fault) -> Moment:
        """Break the place."""
        if fault.kind in ("flap", "switch-reboot"):
            period_ns = fault.period_ns if fault.kind == "flap" else 0
            self._end = self._faults.repeat(fault.down_ns, period_ns, lambda on: self._change(fault, on))
        else:
            self._change(fault, True)
        return self._now()

    def undo(self, fault: Fault) -> Moment:
        """Mend the place."""
        if self._end is not None:
            self._end()
        else:
            self._change(fault, False)
        return self._now()

    def _change(self, fault: Fault, on: bool) -> None:
        faults, where, way = self._faults, fault.where, fault.direction
        kind = fault.of if fault.kind == "flap" else fault.kind
        if kind == "blackhole":
            faults.blackhole(where, way, on)
        elif kind == "loss":
            faults.loss(where, way, fault.ratio if on else 0.0)
        elif kind == "corruption":
            faults.corruption(where, way, fault.ratio if on else 0.0)
        elif kind == "rate":
            faults.rate(where, way, fault.ratio if on else 0.0)
        elif kind == "delay":
            faults.delay(where, fault.delay_ns if on else -fault.delay_ns)
        elif kind == "carrier":
            faults.carrier(where, on)
        elif kind == "port-down":
            faults.port_down(where, on)
        elif kind == "pause-storm":
            faults.pause_storm(where, on)
        elif kind == "plane-death":
            faults.plane(int(where[1:]), on)
        else:
            faults.switch(where, on)


def registry_of(network: Network) -> Faults:
    """Return the faults of a simulated fabric: every kind, also those that only lossless links have."""
    kinds = [kind for kind in ALL_KINDS if kind not in SIMULATED_KINDS or network.lossless is not None]
    faults = NetworkFaults(network)
    return Faults(network.fabric, dict.fromkeys(kinds, lambda: VirtualMechanism(network, faults)))
