"""The mechanism of each kind of fault on a simulated fabric, for the registry that live runs use too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from mrclab.faults.kinds import ALL_KINDS, phase_fault
from mrclab.faults.mechanism import SimpleMechanism
from mrclab.faults.model import Fault, Moment, Phase
from mrclab.faults.registry import Faults
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.faults import NetworkFaults
from mrclab.simulator.network import Network

CHANGES: Mapping[str, Callable[[NetworkFaults, Fault, bool], None]] = {
    "blackhole": lambda net, fault, on: net.blackhole(fault.where, fault.direction, on),
    "loss": lambda net, fault, on: net.loss(fault.where, fault.direction, fault.ratio if on else 0.0),
    "corruption": lambda net, fault, on: net.corruption(
        fault.where, fault.direction, fault.ratio if on else 0.0
    ),
    "rate": lambda net, fault, on: net.rate(fault.where, fault.direction, fault.ratio if on else 0.0),
    "delay": lambda net, fault, on: net.delay(fault.where, fault.delay_ns if on else -fault.delay_ns),
    "carrier": lambda net, fault, on: net.carrier(fault.where, on),
    "port-down": lambda net, fault, on: net.port_down(fault.where, on),
    "pause-storm": lambda net, fault, on: net.pause_storm(fault.where, on),
    "switch-death": lambda net, fault, on: net.switch(fault.where, on),
    "plane-death": lambda net, fault, on: net.plane(int(fault.where[1:]), on),
}
"""What each kind changes: True breaks the place, False mends it. Kinds with phases are made of these."""


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
        phases = ALL_KINDS[fault.kind].phases
        if phases is None:
            self._change(fault, True)
        else:
            period_ns = fault.period_ns if "period_ns" in ALL_KINDS[fault.kind].takes else 0
            self._end = self._repeat(fault, phases(fault), period_ns)
        return self._now()

    def undo(self, fault: Fault) -> Moment:
        """Mend the place."""
        if self._end is not None:
            self._end()
        else:
            self._change(fault, False)
        return self._now()

    def _change(self, fault: Fault, on: bool) -> None:
        CHANGES[fault.kind](self._faults, fault, on)

    def _repeat(self, fault: Fault, phases: tuple[Phase, ...], period_ns: int) -> Callable[[], None]:
        """Make the phases now and in every period; return the function that ends this, with the place mended.

        A period of 0 makes each phase once.
        """
        clock = self._network.clock
        broken: list[Fault] = []
        going = [True]

        def begin(inner: Fault) -> None:
            if going[0]:
                self._change(inner, True)
                broken.append(inner)

        def finish(inner: Fault) -> None:
            if going[0] and inner in broken:
                broken.remove(inner)
                self._change(inner, False)

        def cycle() -> None:
            if not going[0]:
                return
            start_ps = clock.now_ps
            for phase in phases:
                inner = phase_fault(fault, phase)
                if phase.start_ns:
                    clock.call_at(start_ps + phase.start_ns * PS_PER_NS, partial(begin, inner))
                else:
                    begin(inner)
                end_ps = start_ps + (phase.start_ns + phase.length_ns) * PS_PER_NS
                clock.call_at(end_ps, partial(finish, inner))
            if period_ns:
                clock.call_at(start_ps + period_ns * PS_PER_NS, cycle)

        def end() -> None:
            going[0] = False
            while broken:
                self._change(broken.pop(), False)

        cycle()
        return end


def registry_of(network: Network) -> Faults:
    """Return the faults of a simulated fabric: every kind, including those of lossless links."""
    kinds = [
        name for name, kind in ALL_KINDS.items() if network.lossless is not None or not kind.lossless_only
    ]
    faults = NetworkFaults(network)
    return Faults(network.fabric, dict.fromkeys(kinds, lambda: VirtualMechanism(network, faults)))
