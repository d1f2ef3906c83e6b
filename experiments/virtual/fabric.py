"""The simulated fabric of a transport, and the interface of the workloads that run on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mrclab.controller.queues import ETHERNET_HEADER, QueuePolicy, queue_setting
from mrclab.experiments.measure.evidence import Collected
from mrclab.experiments.measure.recovery import IN_FLIGHT_NS
from mrclab.experiments.spec.model import USUAL_VIRTUAL, Scenario, Virtual
from mrclab.experiments.spec.placement import Placement
from mrclab.experiments.spec.transports import require_simulated_transport
from mrclab.experiments.virtual.nics import attach_nic, queue_policy
from mrclab.hosts.nic.ports import send_buffer_bytes
from mrclab.hosts.options import fast_links, idle_rtt_ns
from mrclab.hosts.transports.table import Transport
from mrclab.p4src.contract import TICKS_PER_US
from mrclab.simulator.faults import registry_of
from mrclab.simulator.lossless import Lossless
from mrclab.simulator.network import Choice, Marking, Network
from mrclab.simulator.nic import Nic
from mrclab.topologies import Fabric
from mrclab.topologies.spec import LinkKind

CHOICES: Mapping[str, Choice] = {
    "ecmp": "hash",
    "structured": "ev",
    "destination": "destination",
    "adaptive": "adaptive",
    "flowlet": "flowlet",
}
"""How switches choose a path, for each routing without segment lists."""


def longest_flight_ns(fabric: Fabric, policy: QueuePolicy) -> int:
    """Return the longest time, ns, that a packet needs on a path through full queues without being dropped.

    A queue accepts data up to its drop threshold. In a queue that trims, trimmed frames may use half of the
    link's rate. So data may wait twice as long as the link needs for the bytes of the trim threshold.
    """

    def hop_ns(kind: LinkKind, queued: bool) -> int:
        times = [0]
        for profile in {link.profile for link in fabric.links if link.kind == kind}:
            frame_ns = (profile.mtu_bytes + ETHERNET_HEADER) * 8 * 10**9 // profile.rate_bps
            setting = queue_setting(profile, last_hop=kind == "host", policy=policy)
            wait = max(setting.limit, 2 * setting.trim_from) if queued else 0
            times.append(profile.delay_ns + frame_ns + wait * 1000 // TICKS_PER_US)
        return max(times)

    # A NIC's own queue adds no wait, because a NIC sends no faster than its ports.
    inner = 4 if fabric.pods > 1 else 2
    return hop_ns("host", False) + inner * hop_ns("fabric", True) + hop_ns("host", True)


class VirtualFabric:
    """A simulated network with its faults, for one transport."""

    def __init__(
        self,
        fabric: Fabric,
        transport: Transport,
        seed: int,
        propagation_ns: int = 0,
        virtual: Virtual = USUAL_VIRTUAL,
        *,
        captured: bool = True,
    ) -> None:
        """Build the fabric. ``propagation_ns`` is added to the delay of every link from a T0 to a NIC.

        ``virtual`` describes hosts and links. If ``captured`` is False, packets are sent as Python objects
        instead of bytes, if the transport and the links allow this. The results are the same, and the run
        takes less time. Raise InputError for a transport that needs the Linux kernel.
        """
        require_simulated_transport(transport)
        self._processing_ns = virtual.processing_ns
        self.fabric = fabric
        self.transport = transport
        self.seed = seed
        self._propagation_ns = propagation_ns
        self.fast = fast_links(fabric)
        policy = queue_policy(fabric, propagation_ns)
        self.in_flight_ns = longest_flight_ns(fabric, policy) + propagation_ns
        """The longest time of a packet in the network, if no fault delays it."""
        if transport.lossless or virtual.links == "buckets":
            # Packets may need longer: pauses have no limit, and with token buckets packets wait in hosts.
            self.in_flight_ns = max(self.in_flight_ns, IN_FLIGHT_NS)
        lossless = Lossless(transport.lossless, transport.buffer_bytes) if transport.lossless else None
        buffers = send_buffer_bytes if virtual.links == "buckets" else None
        marking = Marking(transport.marks or "uec", transport.last_hop_marks)
        self.network = Network(fabric, policy, seed, lossless, buffers, marking)
        wires = lossless is None and buffers is None
        follows_segments = transport.routing == "srv6" and transport.core.objects is not None
        self.objects = not captured and wires and follows_segments
        """If True, packets are sent as Python objects, not as bytes."""
        ends = (fabric.hosts[0].name, fabric.hosts[-1].name)
        self.network.flowlet_ns = max(idle_rtt_ns(fabric, host) for host in ends)
        if transport.routing in CHOICES:
            self.network.route(choice=CHOICES[transport.routing])
        self.faults = registry_of(self.network)

    def nic(self, host: str, options: Mapping[str, Any]) -> Nic:
        """Return a new NIC of a host with the transport's endpoint. ``options`` replace default options."""
        core = self.transport.core
        assert core.config is not None, "refused when this fabric was made"
        return attach_nic(
            self.network,
            core,
            host,
            {**options, **self.transport.channel_options},
            self.seed,
            processing_ns=self._processing_ns,
            propagation_ns=self._propagation_ns,
            objects=self.objects,
        )


@dataclass(frozen=True, slots=True)
class VirtualSetting:
    """The input of a workload: fabric, scenario, placement, and the repetition's seed and directory."""

    fabric: VirtualFabric
    scenario: Scenario
    placement: Placement
    seed: int
    directory: Path


class VirtualWorkload(Protocol):
    """A workload on the NICs of a simulated fabric."""

    @property
    def over(self) -> bool:
        """Return True when the workload is done, or when an error was found."""

    def start(self) -> int:
        """Start the workload; return the time at which the measurement begins, ns."""

    def ask_restored(self, timeout_s: float) -> None:
        """Start a wait that ends after ``timeout_s``, or when the senders have no path marked as broken."""

    @property
    def restored(self) -> bool | None:
        """Return whether all paths are in use again; None while `ask_restored` still waits."""

    def stop(self) -> None:
        """Stop sending, and wait until the sent packets have arrived."""

    def collect(self) -> Collected:
        """Return the workload's results and counters."""


MakeWorkload = Callable[[VirtualSetting], VirtualWorkload]
