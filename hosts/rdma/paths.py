"""The network as an endpoint sees it: for each destination, the planes and the paths in each plane.

The caller computes the paths from the fabric. The endpoint only chooses among the EVs of these paths.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """One path through one plane."""

    ev: int
    """Entropy value, 32 bits. With SRv6, its bits name switches of the path [P1 §2.3]."""
    outer_dst: bytes | None
    """Destination of the outer IPv6 header: the uSID container, 16 bytes. None: there is no outer header, and
    switches choose the path by a hash over fields that contain the EV."""
    uplink: int | None = None
    """Number of the uplink by which the path leaves the rack; None: unknown. Paths of a plane with the same
    number share the uplink."""


@dataclass(frozen=True, slots=True)
class PlanePaths:
    """One plane: its local port, the addresses of both ends, and its paths."""

    port: int
    """NIC port. Its number is the plane's number (SPEC §11.5: port = plane)."""
    src_mac: bytes
    dst_mac: bytes
    """MAC address of the T0 that the port is linked to."""
    src: bytes
    """Source address of both IPv6 headers: the local address in this plane, 16 bytes."""
    dst: bytes
    """Inner destination: the peer's address in this plane, 16 bytes."""
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class RemotePaths:
    """All paths to one peer."""

    planes: tuple[PlanePaths, ...]

    def __post_init__(self) -> None:
        ports = [plane.port for plane in self.planes]
        if len(set(ports)) != len(ports) or not ports:
            raise ValueError("each plane needs a port of its own, and there must be one plane at least")
        # A path may be in `paths` several times; `set` keeps each path once.
        evs = [path.ev for plane in self.planes for path in set(plane.paths)]
        if len(set(evs)) != len(evs) or not evs:
            raise ValueError("EVs must be unique over all planes, and there must be one at least")
        for plane in self.planes:
            if len(plane.src_mac) != 6 or len(plane.dst_mac) != 6:
                raise ValueError(f"port {plane.port}: a MAC address has 6 bytes")
            if len(plane.src) != 16 or len(plane.dst) != 16:
                raise ValueError(f"port {plane.port}: an IPv6 address has 16 bytes")
            for path in plane.paths:
                if not 0 <= path.ev < 1 << 32 or (path.outer_dst is not None and len(path.outer_dst) != 16):
                    raise ValueError(f"port {plane.port}: bad path {path}")


@dataclass(frozen=True, slots=True)
class PortAddress:
    """One port of a NIC."""

    port: int
    mac: bytes
    address: bytes
    """IPv6 address, 16 bytes."""
