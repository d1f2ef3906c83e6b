"""The kernel's own IPv6 on the hosts of a running testbed, for as long as TCP is sent over it."""

from __future__ import annotations

from mrclab.control import call
from mrclab.testbed import kernel_ip
from mrclab.testbed.network import FabricNetwork


class KernelStack:
    """Addresses on the hosts' ports, and routes in the switches. Off at first.

    While it is on, the kernel refuses other transports' packets too, with an ICMPv6 message a second to each
    host at most (net.ipv6.icmp.ratelimit). The transports do not read these.
    """

    def __init__(self, network: FabricNetwork) -> None:
        self._network = network
        self._on = False

    def up(self) -> None:
        """Turn it on. Raise OSError if the kernel refuses, and what `call` raises."""
        if self._on:
            return
        call(self._network.names, "ecmp")  # these routes stay: no other transport uses them
        self._on = True
        kernel_ip.address_hosts(self._network.fabric, self._network.places)

    def down(self) -> None:
        """Turn it off, if it is on."""
        if self._on:
            self._on = False
            kernel_ip.silence_hosts(self._network.fabric, self._network.places)
