"""A NIC's addresses and its paths to a peer, computed from a fabric for an endpoint."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.evs.ev_modes import EvField, EvMode, EvRecipe
from mrclab.hosts.mrc.wire import EndpointOp
from mrclab.hosts.rdma.paths import Path, PlanePaths, PortAddress, RemotePaths
from mrclab.topologies import Fabric, NicPort
from mrclab.topologies.ev_paths import FIXED, FIXED_BITS, FREE_EV_BITS, UPLINK_BITS, hashed_ev, hashed_uplinks
from mrclab.topologies.usid import PLANE_BITS


def nic_addresses(fabric: Fabric, host: str) -> tuple[PortAddress, ...]:
    """Return the addresses of a host's NIC, one for each port, in the order of planes."""
    return tuple(PortAddress(p.plane, p.mac, p.address.packed) for p in fabric.host(host).ports)


def remote_paths(fabric: Fabric, src: str, dst: str) -> RemotePaths:
    """Return all paths from the NIC of ``src`` to the NIC of ``dst``, with their segment lists."""
    paths = fabric.paths(src, dst)
    return _remote(
        fabric,
        src,
        dst,
        lambda port: tuple(Path(p.ev, p.outer_dst.packed, p.t1) for p in paths if p.plane == port.plane),
    )


def hashed_paths(fabric: Fabric, src: str, dst: str, config: MrcConfig, rng: random.Random) -> RemotePaths:
    """Return as many random EVs as the options require. Switches choose the paths by a hash of the EV.

    Several EVs may have the same path, and the sender does not know which EVs these are. A stratified
    rotation also needs the uplink of each EV. For this rotation, the function computes the uplinks with the
    switches' hash, as a controller could do.
    """
    planes = len(fabric.host(src).ports)
    count = -(-config.active_evs() // planes) + config.spare_evs_per_plane
    recipe = EvRecipe(EvMode.AUTO, count=count, bits=FREE_EV_BITS)
    known = config.rotation == "stratified"

    def paths(port: NicPort) -> tuple[Path, ...]:
        evs = [hashed_ev(port.plane, value) for value in recipe.evs(port.plane, rng)]
        if not known:
            return tuple(Path(ev, None) for ev in evs)
        uplinks = hashed_uplinks(fabric, src, dst, port.plane, evs, config.reading.udp_port)
        return tuple(Path(ev, None, uplink) for ev, uplink in zip(evs, uplinks, strict=True))

    return _remote(fabric, src, dst, paths)


def structured_recipe(fabric: Fabric, src: str, dst: str, plane: int) -> EvRecipe:
    """Return the recipe of a port's structured EVs: one for each uplink that leads to the peer."""
    uplinks = {path.t1 or 0 for path in fabric.paths(src, dst) if path.plane == plane}
    last = max(uplinks)
    fields = (
        EvField(PLANE_BITS, init=plane),
        EvField.counter(UPLINK_BITS, last, denied=frozenset(range(last)) - uplinks),
        EvField(FIXED_BITS, init=FIXED),
    )
    return EvRecipe(EvMode.GENERATED, fields=fields)


def structured_remote_paths(fabric: Fabric, src: str, dst: str, rng: random.Random) -> RemotePaths:
    """Return all paths with structured EVs: switches read the path from the bits of the EV."""

    def paths(port: NicPort) -> tuple[Path, ...]:
        values = structured_recipe(fabric, src, dst, port.plane).values(port.plane, rng)
        return tuple(Path(v, None, v >> FIXED_BITS & (1 << UPLINK_BITS) - 1) for v in values)

    return _remote(fabric, src, dst, paths)


def paths_for(endpoint: Endpoint, fabric: Fabric, src: str, dst: str) -> RemotePaths:
    """Return the paths for an endpoint of host ``src``, according to its option ``ev_mode``."""
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


def answer_all(endpoint: Endpoint, fabric: Fabric, host: str) -> None:
    """Let an MRC endpoint answer requests of any NIC of the fabric, even without a queue pair [SPEC §6.5]."""
    if not isinstance(endpoint, MrcEndpoint):
        return
    owners = {port.address.packed: other.name for other in fabric.hosts for port in other.ports}
    known: dict[str, RemotePaths] = {}

    def way_back(address: bytes, port: int, ev: int) -> tuple[PlanePaths, Path] | None:
        peer = owners.get(address)
        if peer is None or peer == host:
            return None
        if peer not in known:
            known[peer] = paths_for(endpoint, fabric, host, peer)
        return next(((p, path_in(p, ev)) for p in known[peer].planes if p.port == port), None)

    endpoint.answer_strangers(way_back)


def path_in(plane: PlanePaths, ev: int) -> Path:
    """Return the path of an EV.

    With ECMP, every EV is valid, and its path is created here. Otherwise, if no path of the plane has this
    EV, return the first path.
    """
    first = plane.paths[0]
    if first.outer_dst is None:
        return Path(ev, None)
    return next((path for path in plane.paths if path.ev == ev), first)


def ask_endpoints(
    endpoint: Endpoint,
    fabric: Fabric,
    host: str,
    op: EndpointOp,
    targets: Iterable[tuple[str, int, int]],
    now_ns: int,
    dscp: int | None = None,
    port_status: int | None = None,
) -> list[int]:
    """Send a request to each target; return the IDs of the requests.

    A target is a host, an EV to this host, and the number of the EV's port (the first port is 1).

    If a target does not exist or the transport has no such requests, send nothing and raise ValueError.
    """
    if not isinstance(endpoint, MrcEndpoint):
        raise ValueError("only MRC has endpoint requests")
    names = {other.name for other in fabric.hosts} - {host}
    found = []
    for peer, ev, port in targets:
        if peer not in names:
            raise ValueError(f"no other host '{peer}' in topology {fabric.name}")
        planes = paths_for(endpoint, fabric, host, peer).planes
        plane = next((plane for plane in planes if plane.port == port - 1), None)
        if plane is None or (path := path_in(plane, ev)).ev != ev:
            raise ValueError(f"there is no EV {ev:#x} to {peer} on port {port}")
        found.append((plane, path))
    return [endpoint.request_endpoint(op, *way, now_ns, dscp, port_status) for way in found]
