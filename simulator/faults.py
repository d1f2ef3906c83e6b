"""The faults of a simulated fabric: the effect of each kind of fault, and its mechanism.

`docs/faults.md` describes the kinds. A fault takes effect at one exact time: frames that reach the far end of
a broken link from then on are lost. The registry that holds the mechanisms is the same as in live runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from mrclab.faults.kinds import ALL_KINDS, Fault, Moment, Phase, phase_fault
from mrclab.faults.registry import Faults, SimpleMechanism
from mrclab.p4src.contract import QUEUE_MIN_FRAMES
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.network import Network
from mrclab.simulator.port import Port
from mrclab.simulator.served import ServedPort

BOTH: Final = "both"


class NetworkFaults:
    """The faults of a network. Each method breaks a part, or repairs it.

    If faults of two kinds broke a part, this part works again when both faults have ended.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._causes: dict[tuple[str, ...], set[str]] = {}

    def _note_cause(self, place: tuple[str, ...], cause: str, broken: bool) -> bool:
        """Record whether a cause breaks a place. Return True if any cause breaks the place now."""
        causes = self._causes.setdefault(place, set())
        if broken:
            causes.add(cause)
        else:
            causes.discard(cause)
        return bool(causes)

    def _ends(self, link: str, direction: str) -> list[tuple[str, str]]:
        """Return sender and receiver for each chosen direction of a link. `up` is away from the hosts."""
        lower, upper = link.split(":")
        ways = {"up": [(lower, upper)], "down": [(upper, lower)]}
        return ways.get(direction, ways["up"] + ways["down"])

    def _ports(self, link: str, direction: str = BOTH) -> list[Port]:
        """Return the sending ends of a link."""
        return [self._network.links[ends] for ends in self._ends(link, direction)]

    def blackhole(self, link: str, direction: str, broken: bool) -> None:
        """Lose every frame on a link. No device notices the loss."""
        self._cut(link, direction, "blackhole", broken)

    def _cut(self, link: str, direction: str, cause: str, broken: bool) -> None:
        for ends in self._ends(link, direction):
            self._network.links[ends].set_dead(self._note_cause(ends, cause, broken))

    def loss(self, link: str, direction: str, ratio: float) -> None:
        """Lose a share of the frames. A share of 0 ends the fault."""
        for port in self._ports(link, direction):
            port.set_loss(ratio)

    def corruption(self, link: str, direction: str, ratio: float) -> None:
        """Flip a bit in a share of the frames. A share of 0 ends the fault."""
        for port in self._ports(link, direction):
            port.set_corruption(ratio)

    def rate(self, link: str, direction: str, ratio: float) -> None:
        """Reduce a link to a share of its rate, and drop the excess. A share of 0 ends the fault."""
        mtu = self._network.fabric.link(*link.split(":")).profile.mtu_bytes
        for port in self._ports(link, direction):
            rate_bps = max(round(port.rate_bps * ratio), 1) if ratio else 0
            burst_ps = QUEUE_MIN_FRAMES * mtu * 8 * 10**12 // rate_bps if rate_bps else 0
            port.set_slow(rate_bps, burst_ps)

    def delay(self, link: str, delay_ns: int) -> None:
        """Increase the delay of a link in each direction. A negative value reduces it again."""
        for port in self._ports(link):
            port.delay_ps += delay_ns * PS_PER_NS

    def carrier(self, link: str, broken: bool) -> None:
        """Take down the carrier of a link. A NIC at an end of the link notices the change."""
        self._take_carrier(link, "carrier", broken)

    def _take_carrier(self, link: str, cause: str, broken: bool) -> None:
        self._cut(link, BOTH, cause, broken)
        gone = self._note_cause((link,), cause, broken)
        nic = self._network.nics.get(link.split(":")[0])
        if nic is not None:
            upper = link.split(":")[1]
            nic.set_port_state(self._network.fabric.switch(upper).plane, not gone)

    def port_down(self, port: str, broken: bool) -> None:
        """Take down a port of a NIC, for instance `h0-eth1`."""
        for host in self._network.fabric.hosts:
            for plan in host.ports:
                if plan.ifname == port:
                    self._take_carrier(self._network.fabric.link(host.name, plan.t0).name, "port", broken)

    def pause_storm(self, port: str, broken: bool) -> None:
        """Let a NIC's port, such as `h0-eth1`, accept no data: the port pauses without end, or gives no
        credits.

        Raise ValueError if links are not lossless.
        """
        for host in self._network.fabric.hosts:
            for plan in host.ports:
                if plan.ifname == port:
                    link = self._network.links[plan.t0, host.name]
                    if not isinstance(link, ServedPort) or link.inlet is None:
                        raise ValueError("no NIC can pause what comes over links that are not lossless")
                    link.inlet.refuse(broken)

    def switch(self, name: str, broken: bool) -> None:
        """Stop a switch, or start it again with its tables."""
        self._end_switch(name, "switch", broken)

    def _end_switch(self, name: str, cause: str, broken: bool) -> None:
        self._network.switches[name].dead = self._note_cause((name,), cause, broken)

    def plane(self, plane: int, broken: bool) -> None:
        """Stop all switches of a plane, or start them again."""
        for plan in self._network.fabric.switches:
            if plan.plane == plane:
                self._end_switch(plan.name, "plane", broken)


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
"""The change for each kind of fault: True breaks the place, False repairs it."""


class VirtualMechanism(SimpleMechanism):
    """A mechanism for faults of any kind. A fault takes effect at the present time of the network's clock."""

    def __init__(self, network: Network, faults: NetworkFaults) -> None:
        self._network = network
        self._faults = faults
        self._end: Callable[[], None] | None = None

    def _now(self) -> Moment:
        now_ns = self._network.clock.now_ns
        return Moment(now_ns, now_ns, "testbed")

    def apply(self, fault: Fault) -> Moment:
        """Break the place of a fault."""
        phases = ALL_KINDS[fault.kind].phases
        if phases is None:
            self._change(fault, True)
        else:
            period_ns = fault.period_ns if "period_ns" in ALL_KINDS[fault.kind].takes else 0
            self._end = self._repeat(fault, phases(fault), period_ns)
        return self._now()

    def undo(self, fault: Fault) -> Moment:
        """Repair the place of a fault."""
        if self._end is not None:
            self._end()
        else:
            self._change(fault, False)
        return self._now()

    def _change(self, fault: Fault, on: bool) -> None:
        CHANGES[fault.kind](self._faults, fault, on)

    def _repeat(self, fault: Fault, phases: tuple[Phase, ...], period_ns: int) -> Callable[[], None]:
        """Run a fault's phases once in every period. Return a function that ends this and repairs the place.

        If the period is 0, each phase runs once.
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
    """Return the faults of a simulated fabric: all kinds that its links allow."""
    kinds = [
        name for name, kind in ALL_KINDS.items() if network.lossless is not None or not kind.lossless_only
    ]
    faults = NetworkFaults(network)
    return Faults(network.fabric, dict.fromkeys(kinds, lambda: VirtualMechanism(network, faults)))
