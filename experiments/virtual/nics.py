"""NICs on a simulated fabric: endpoint options that fit the links' rates, and the interface of a device.

`VirtualDevice` has the interface of `mrclab.hosts.nic.device.Device`. This module does not need NumPy or
pydantic, so Python in a browser can use it as well.
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
"""On fast links, an endpoint's timers are checked this number of times in an RTT of the idle network."""
PROCESSING_NS = 200
"""The default time from the arrival of a frame at an idle host until the host answers."""


def queue_policy(fabric: Fabric, propagation_ns: int = 0) -> QueuePolicy:
    """Return the depths of the switches' queues. If the links are fast, the fabric's RTT sets the depths."""
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
    """Attach a NIC with an endpoint to a host. ``options`` replace the default options.

    ``propagation_ns`` is added to the delay of every link from a T0 to the NIC. With ``objects``, all NICs
    send packets as Python objects instead of bytes. Raise ValueError for a bad value, or if the endpoint
    needs the Linux kernel. Raise TypeError for a bad option.
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
    """A simulated NIC. It works while the network's clock runs; no method waits."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        endpoint: Any = nic.endpoint
        self.endpoint: Endpoint = endpoint

    def now(self) -> int:
        """Return the virtual time, ns."""
        return self._nic.clock.now_ns

    def events(self) -> list[Event]:
        """Return an empty list, because the NIC passes each event directly to its programs."""
        return []

    def flush(self) -> None:
        """Let the NIC send the posted messages."""
        self._nic.wake_now()

    def drops(self) -> int:
        """Return 0, because no frame is ever read too late."""
        return 0

    def turn(self, until_ns: int | None = None, others: Collection[int] = ()) -> Collection[int]:
        """Raise RuntimeError: a simulated NIC cannot wait, because only the simulator advances its time."""
        raise RuntimeError("a simulated NIC cannot wait")

    def descriptors(self) -> Collection[int]:
        """Return no descriptors, because a simulated NIC does not wait for descriptors."""
        return ()

    def blocked(self) -> Collection[int]:
        """Return no ports, because no port waits for a descriptor."""
        return ()

    def due_ns(self) -> int | None:
        """Return the time of the NIC's next turn; None if nothing is due."""
        due_ps = self._nic.turn_ps
        return None if due_ps >= NEVER_PS else due_ps // PS_PER_NS

    def close(self) -> None:
        """Do nothing, because a simulated NIC holds no resources."""
