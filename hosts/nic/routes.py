"""A NIC's addresses and its paths to a peer, as endpoints take them, from a fabric."""

from __future__ import annotations

from hosts.rdma.paths import Path, PlanePaths, PortAddress, RemotePaths
from topologies import Fabric


def nic_addresses(fabric: Fabric, host: str) -> tuple[PortAddress, ...]:
    """Return the ports of a host's NIC, by plane."""
    return tuple(PortAddress(p.plane, p.mac, p.address.packed) for p in fabric.host(host).ports)


def remote_paths(fabric: Fabric, src: str, dst: str) -> RemotePaths:
    """Return all paths from one host's NIC to another's, over which queue pairs spray."""
    paths = fabric.paths(src, dst)
    peer = fabric.host(dst)
    return RemotePaths(
        tuple(
            PlanePaths(
                port=port.plane,
                src_mac=port.mac,
                dst_mac=port.t0_mac,
                src=port.address.packed,
                dst=peer.ports[port.plane].address.packed,
                paths=tuple(Path(p.ev, p.outer_dst.packed) for p in paths if p.plane == port.plane),
            )
            for port in fabric.host(src).ports
        )
    )
