"""A queue pair's route: the hashes that give it its flow label, UDP source port, plane and path.

A queue pair keeps one path. The NIC draws label and port from the two QP numbers; in an ECMP fabric
the switches hash these, in ours with SRv6 the sender does it in their place, once.
"""

from __future__ import annotations

from zlib import crc32

from mrclab.hosts.rdma.paths import Path, PlanePaths, RemotePaths


def flow_label(local_qpn: int, remote_qpn: int) -> int:
    """Return the IPv6 flow label of a connection, 20 bits, as Linux draws it for RoCEv2.

    Both ends get the same one. Source: rdma_calc_flow_label of the kernel's ib_verbs.h.
    """
    value = local_qpn * remote_qpn
    value ^= value >> 20
    value ^= value >> 40
    return value & 0xFFFFF


def udp_source(label: int) -> int:
    """Return the UDP source port, 0xC000 or above, that carries a flow label's entropy [IBTA A17.9.2].

    Source: rdma_flow_label_to_udp_sport of the kernel's ib_verbs.h.
    """
    return 0xC000 | (label & 0x3FFF) ^ (label >> 14)


def choose_plane(paths: RemotePaths, label: int) -> PlanePaths:
    """Return the plane of a connection: the same at both ends, as a bonded NIC's hash would have it."""
    planes = paths.planes
    return planes[crc32(label.to_bytes(3, "big")) % len(planes)]


def choose_path(plane: PlanePaths, label: int, source: int, udp_port: int) -> Path:
    """Return a connection's one path within its plane, by a hash of what an ECMP switch hashes."""
    key = plane.src + plane.dst + b"".join(v.to_bytes(4, "big") for v in (label, source, udp_port))
    return plane.paths[crc32(key) % len(plane.paths)]
