"""NICs on a simulated fabric: endpoints whose options suit the fabric's speed.

Nothing here needs NumPy or pydantic, so a browser's Python can use it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrclab.controller.queues import QueuePolicy
from mrclab.hosts.nic.routes import answer_all, nic_addresses
from mrclab.hosts.options import fast_links, idle_rtt_ns
from mrclab.hosts.rdma.endpoint import BaseEndpoint
from mrclab.hosts.transports import Kind, endpoint_options, make_endpoint, merged, random_of
from mrclab.simulator.clock import PS_PER_NS
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
