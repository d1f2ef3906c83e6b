"""The NIC of a worker process on a host. Requests open the NIC, connect it and measure its RTT."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mrclab.hosts.clustermapper.denylist import apply_denylist
from mrclab.hosts.nic.base_rtt import calibrate
from mrclab.hosts.nic.device import Device
from mrclab.hosts.nic.routes import paths_for
from mrclab.hosts.profile_socket import HostProfiles
from mrclab.hosts.transports import DEFAULT, make_config, random_of
from mrclab.hosts.transports.kinds import attributes_from_dict, attributes_to_dict
from mrclab.linux.requests import Request
from mrclab.topologies import Fabric, fabric_from_text


class HostNic:
    """A host's NIC with its queue pairs and profiles, and the fabric that it is connected to."""

    def __init__(self, fabric: Fabric, host: str, device: Device) -> None:
        self.fabric = fabric
        self.host = host
        self.device = device
        self.profiles = HostProfiles(device, host)
        self.qpns: list[int] = []
        self.peers: dict[int, str] = {}
        """The host that each connected queue pair leads to, by queue pair number."""

    @classmethod
    def open(cls, request: Request, linger_ns: int = 0) -> HostNic:
        """Open the NIC that an `open` request describes. See `Device` for ``linger_ns``."""
        fabric, host = fabric_from_text(request["topology_yaml"]), request["host"]
        config = make_config(request.get("transport", DEFAULT), fabric, host, request["config"])
        device = Device.open(fabric, host, config, random_of(request["seed"], host), linger_ns=linger_ns)
        return cls(fabric, host, device)

    def create_qps(self, count: int) -> list[dict[str, Any]]:
        """Create queue pairs. Return their attributes, in the form for a peer's `connect`."""
        endpoint = self.device.endpoint
        self.qpns = [endpoint.create_qp() for _ in range(count)]
        return [attributes_to_dict(endpoint.local_attributes(qpn)) for qpn in self.qpns]

    def connect(
        self,
        qpn: int,
        peer: str,
        attributes: Mapping[str, Any],
        ev_profile: int | None = None,
        cc_profile: int | None = None,
    ) -> None:
        """Connect to the queue pair of ``peer`` that has these attributes. See `HostProfiles.connect`."""
        paths = paths_for(self.device.endpoint, self.fabric, self.host, peer)
        self.profiles.connect(qpn, attributes_from_dict(attributes), paths, ev_profile, cc_profile)
        self.peers[qpn] = peer

    def deny(self, qpn: int, links: Collection[str]) -> tuple[int, ...]:
        """Make a connected queue pair avoid these links and no others. Return the denied EVs."""
        device = self.device
        peer = self.peers[qpn]
        return apply_denylist(device.endpoint, qpn, self.fabric, self.host, peer, links, device.now())

    def calibrate(self, qpn: int) -> int:
        """Measure the RTT of the idle network for NSCC and return it (ns). See `mrclab.hosts.nic.base_rtt`.

        Raise RuntimeError if the queue pair is not connected.
        """
        if qpn not in self.peers:
            raise RuntimeError("'connect' comes first")
        return calibrate(self.device, qpn, self.fabric, self.host, self.peers[qpn])
