"""NICs on a simulated fabric: options that suit the fabric's speed, and the interface of a device.

`VirtualDevice` has the interface of `mrclab.hosts.nic.device.Device`, for every user of one.
Nothing here needs NumPy or pydantic, so a browser's Python can use it as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mrclab.controller.queues import QueuePolicy
from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.nic.routes import answer_all, nic_addresses
from mrclab.hosts.options import fast_links, idle_rtt_ns
from mrclab.hosts.rdma.endpoint import BaseEndpoint
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.transports import Kind, endpoint_options, make_endpoint, merged, random_of
from mrclab.simulator.clock import NEVER_PS, PS_PER_NS
from mrclab.simulator.network import Network
from mrclab.simulator.nic import Nic
from mrclab.topologies import Fabric

TIMERS_IN_RTT = 8
"""How often in an idle RTT an endpoint is polled for its next timer, on fast links."""
PROCESSING_NS = 200
"""From a frame's arrival at an idle host to its answer, if nothing else is asked for."""


def queue_policy(fabric: Fabric, propagation_ns: int = 0) -> QueuePolicy:
    """Return the depths of the switches' queues: those for the fabric's RTT if its links are fast."""
    if not fast_links(fabric):
        return QueuePolicy()
    longest_ns = max(idle_rtt_ns(fabric, host.name) for host in (fabric.hosts[0], fabric.hosts[-1]))
    return QueuePolicy.of_rtt(longest_ns + 2 * propagation_ns)


def attach_nic(
    network: Network,
    core: Kind,
    host: str,
    options: Mapping[str, Any],
    seed: int,
    *,
    processing_ns: int = PROCESSING_NS,
    propagation_ns: int = 0,
    objects: bool = False,
) -> Nic:
    """Attach a NIC with an endpoint of a kind to a host; ``options`` go on top of those for fast links.

    Every frame to the NIC is ``propagation_ns`` longer on its way. With ``objects`` packets cross as objects
    rather than as frames, on this NIC and on all others. Raise ValueError for a kind that only a
    kernel has, and for a bad value; TypeError for an unknown option.
    """
    if core.config is None:
        raise ValueError(f"{core.name} uses the kernel's sockets: it has no endpoint")
    fabric = network.fabric
    fast = fast_links(fabric)
    options = endpoint_options(core.name, options)
    if fast:
        options = merged(core.fast(fabric, host, 2 * propagation_ns), options)
    config = core.longer(core.config(fabric, host, options), options, propagation_ns)
    make = core.objects if objects and core.objects is not None else make_endpoint
    endpoint: Any = make(nic_addresses(fabric, host), config, random_of(seed, host))
    answer_all(endpoint, fabric, host)
    assert isinstance(endpoint, BaseEndpoint)
    for port in fabric.host(host).ports:
        network.links[port.t0, host].delay_ps += propagation_ns * PS_PER_NS
    grain_ns = idle_rtt_ns(fabric, host) // TIMERS_IN_RTT if fast else 0
    return network.attach(host, endpoint, processing_ns, grain_ns, objects=objects)


class VirtualDevice:
    """One NIC. It works when the network's clock runs; nothing here waits."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        endpoint: Any = nic.endpoint
        self.endpoint: Endpoint = endpoint

    def now(self) -> int:
        """Return the virtual time, ns."""
        return self._nic.clock.now_ns

    def events(self) -> list[Event]:
        """Return nothing: the NIC hands each event to its programs."""
        return []

    def flush(self) -> None:
        """Have the NIC send the posted messages."""
        self._nic.wake_now()

    def drops(self) -> int:
        """Return how many frames were read too late: none ever is."""
        return 0

    def turn(self, until_ns: int | None = None, others: Collection[int] = ()) -> Collection[int]:
        """Refuse: only the clock can let time pass."""
        raise RuntimeError("a simulated NIC cannot wait")

    def descriptors(self) -> Collection[int]:
        """Return nothing: no descriptor wakes a simulated NIC."""
        return ()

    def blocked(self) -> Collection[int]:
        """Return nothing: no port waits for a descriptor."""
        return ()

    def due_ns(self) -> int | None:
        """Return when the NIC has its next turn; None while nothing is due."""
        due_ps = self._nic.turn_ps
        return None if due_ps >= NEVER_PS else due_ps // PS_PER_NS

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
