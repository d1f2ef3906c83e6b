"""A NIC's addresses and its paths to a peer, as endpoints take them, from a fabric."""

from __future__ import annotations

import random
from collections.abc import Callable

from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.evs.ev_modes import EvField, EvMode, EvRecipe
from mrclab.hosts.rdma.paths import Path, PlanePaths, PortAddress, RemotePaths
from mrclab.topologies import Fabric, NicPort
from mrclab.topologies.hashed import FREE_EV_BITS, hashed_ev
from mrclab.topologies.structured import FIXED, FIXED_BITS, UPLINK_BITS
from mrclab.topologies.usid import PLANE_BITS


def nic_addresses(fabric: Fabric, host: str) -> tuple[PortAddress, ...]:
    """Return the ports of a host's NIC, by plane."""
    return tuple(PortAddress(p.plane, p.mac, p.address.packed) for p in fabric.host(host).ports)


def remote_paths(fabric: Fabric, src: str, dst: str) -> RemotePaths:
    """Return all paths from one host's NIC to another's, over which queue pairs spray, as segment lists."""
    paths = fabric.paths(src, dst)
    return _remote(
        fabric,
        src,
        dst,
        lambda port: tuple(Path(p.ev, p.outer_dst.packed) for p in paths if p.plane == port.plane),
    )


def hashed_paths(fabric: Fabric, src: str, dst: str, config: MrcConfig, rng: random.Random) -> RemotePaths:
    """Return as many random EVs as the options ask for: switches choose their paths by a hash.

    Several may come to one path; which, the sender does not know.
    """
    planes = len(fabric.host(src).ports)
    count = -(-config.active_evs() // planes) + config.spare_evs_per_plane
    recipe = EvRecipe(EvMode.AUTO, count=count, bits=FREE_EV_BITS)
    return _remote(
        fabric,
        src,
        dst,
        lambda port: tuple(Path(hashed_ev(port.plane, value), None) for value in recipe.evs(port.plane, rng)),
    )


def structured_recipe(fabric: Fabric, src: str, dst: str, plane: int) -> EvRecipe:
    """Return how a port's structured EVs are made: one for each uplink that leads to the peer."""
    uplinks = {path.t1 or 0 for path in fabric.paths(src, dst) if path.plane == plane}
    last = max(uplinks)
    fields = (
        EvField(PLANE_BITS, init=plane),
        EvField.counter(UPLINK_BITS, last, denied=frozenset(range(last)) - uplinks),
        EvField(FIXED_BITS, init=FIXED),
    )
    return EvRecipe(EvMode.GENERATED, fields=fields)


def structured_remote_paths(fabric: Fabric, src: str, dst: str, rng: random.Random) -> RemotePaths:
    """Return a structured EV for each path: switches read the path from its bits."""

    def paths(port: NicPort) -> tuple[Path, ...]:
        values = structured_recipe(fabric, src, dst, port.plane).values(port.plane, rng)
        return tuple(Path(value, None) for value in values)

    return _remote(fabric, src, dst, paths)


def paths_for(endpoint: Endpoint, fabric: Fabric, src: str, dst: str) -> RemotePaths:
    """Return the paths for an endpoint of ``src``, as its option ``ev_mode`` asks for."""
    if isinstance(endpoint, MrcEndpoint):
        if endpoint.config.ev_mode == "ecmp":
            return hashed_paths(fabric, src, dst, endpoint.config, endpoint.rng)
        if endpoint.config.ev_mode == "structured":
            return structured_remote_paths(fabric, src, dst, endpoint.rng)
    return remote_paths(fabric, src, dst)


def _remote(fabric: Fabric, src: str, dst: str, paths: Callable[[NicPort], tuple[Path, ...]]) -> RemotePaths:
    peer = fabric.host(dst)
    return RemotePaths(
        tuple(
            PlanePaths(
                port=port.plane,
                src_mac=port.mac,
                dst_mac=port.t0_mac,
                src=port.address.packed,
                dst=peer.ports[port.plane].address.packed,
                paths=paths(port),
            )
            for port in fabric.host(src).ports
        )
    )
