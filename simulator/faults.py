"""Breaking a simulated fabric and mending it: what each kind of fault does to ports, switches and NICs.

The kinds are those of `docs/faults.md`. A fault takes effect at once and exactly: frames that reach the far
end of a broken link from then on are lost, and its moment has no width.
"""

from __future__ import annotations

from typing import Final

from mrclab.p4src.contract import QUEUE_MIN_FRAMES
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.network import Network
from mrclab.simulator.port import Port
from mrclab.simulator.served import ServedPort

BOTH: Final = "both"


class NetworkFaults:
    """The faults of a network, by the broken part. Each method breaks a part, or mends it again.

    A part that two faults of different kinds broke works again when both have ended.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._causes: dict[tuple[str, ...], set[str]] = {}

    def _note_cause(self, place: tuple[str, ...], cause: str, broken: bool) -> bool:
        """Note that a cause breaks a place, or no longer does; return whether any still does."""
        causes = self._causes.setdefault(place, set())
        if broken:
            causes.add(cause)
        else:
            causes.discard(cause)
        return bool(causes)

    def _ends(self, link: str, direction: str) -> list[tuple[str, str]]:
        """Return sender and receiver of each direction of a link; `up` is away from the hosts."""
        lower, upper = link.split(":")
        ways = {"up": [(lower, upper)], "down": [(upper, lower)]}
        return ways.get(direction, ways["up"] + ways["down"])

    def _ports(self, link: str, direction: str = BOTH) -> list[Port]:
        """Return the sending ends of a link."""
        return [self._network.links[ends] for ends in self._ends(link, direction)]

    def blackhole(self, link: str, direction: str, broken: bool) -> None:
        """Lose every frame on a link, silently."""
        self._cut(link, direction, "blackhole", broken)

    def _cut(self, link: str, direction: str, cause: str, broken: bool) -> None:
        for ends in self._ends(link, direction):
            self._network.links[ends].set_dead(self._note_cause(ends, cause, broken))

    def loss(self, link: str, direction: str, ratio: float) -> None:
        """Lose a share of the frames; 0 ends it."""
        for port in self._ports(link, direction):
            port.set_loss(ratio)

    def corruption(self, link: str, direction: str, ratio: float) -> None:
        """Flip a bit of a share of the frames; 0 ends it."""
        for port in self._ports(link, direction):
            port.set_corruption(ratio)

    def rate(self, link: str, direction: str, ratio: float) -> None:
        """Leave a share of a link's rate, and drop the excess; 0 ends it."""
        mtu = self._network.fabric.link(*link.split(":")).profile.mtu_bytes
        for port in self._ports(link, direction):
            rate_bps = max(round(port.rate_bps * ratio), 1) if ratio else 0
            burst_ps = QUEUE_MIN_FRAMES * mtu * 8 * 10**12 // rate_bps if rate_bps else 0
            port.set_slow(rate_bps, burst_ps)

    def delay(self, link: str, delay_ns: int) -> None:
        """Make a link longer, each way; a negative delay makes it shorter again."""
        for port in self._ports(link):
            port.delay_ps += delay_ns * PS_PER_NS

    def carrier(self, link: str, broken: bool) -> None:
        """Take the carrier of a link away, which a NIC at its end notices."""
        self._take_carrier(link, "carrier", broken)

    def _take_carrier(self, link: str, cause: str, broken: bool) -> None:
        self._cut(link, BOTH, cause, broken)
        gone = self._note_cause((link,), cause, broken)
        nic = self._network.nics.get(link.split(":")[0])
        if nic is not None:
            upper = link.split(":")[1]
            nic.set_port_state(self._network.fabric.switch(upper).plane, not gone)

    def port_down(self, port: str, broken: bool) -> None:
        """Take a NIC's port down, as in `h0-eth1`."""
        for host in self._network.fabric.hosts:
            for plan in host.ports:
                if plan.ifname == port:
                    self._take_carrier(self._network.fabric.link(host.name, plan.t0).name, "port", broken)

    def pause_storm(self, port: str, broken: bool) -> None:
        """Have a NIC's port, as in `h0-eth1`, let no data come: pauses without end, or no more credits.

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
        """End a switch, or start it again with its tables."""
        self._end_switch(name, "switch", broken)

    def _end_switch(self, name: str, cause: str, broken: bool) -> None:
        self._network.switches[name].dead = self._note_cause((name,), cause, broken)

    def plane(self, plane: int, broken: bool) -> None:
        """End all switches of a plane, or start them again."""
        for plan in self._network.fabric.switches:
            if plan.plane == plane:
                self._end_switch(plan.name, "plane", broken)
