"""The addresses of hosts that programs see: on the management network, and the GIDs of the device `mrc0`.

Hosts are numbered from 1 in the order of the fabric. Host n has 10.99.x.y and fd99::n on the management
network. A host has four GIDs. GID 0 is link-local (RoCE v1). GID 1 is the IPv6 address of the NIC's first
port (RoCE v2). GIDs 2 and 3 are the IPv4 address on the management network (RoCE v1 and v2). A GID only
names the host: data always uses all planes.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from mrclab.topologies import Fabric

IPV4_BITS = 16
IPV6_BITS = 64
FIRST_IPV4 = IPv4Address("10.99.0.0")
FIRST_IPV6 = IPv6Address("fd99::")
MOST_HOSTS = (1 << 32 - IPV4_BITS) - 2
ROCE_V1, ROCE_V2 = 1, 2
"""The types of GIDs. Each number is one more than in libibverbs."""
GID_TYPES = (ROCE_V1, ROCE_V2, ROCE_V1, ROCE_V2)
_MAPPED = bytes(10) + b"\xff\xff"


def host_number(fabric: Fabric, host: str) -> int:
    """Return a host's number, from 1. Raise KeyError for a host that is not in the fabric."""
    return fabric.hosts.index(fabric.host(host)) + 1


def ipv4(fabric: Fabric, host: str) -> IPv4Address:
    """Return a host's IPv4 address on the management network."""
    return FIRST_IPV4 + host_number(fabric, host)


def ipv6(fabric: Fabric, host: str) -> IPv6Address:
    """Return a host's IPv6 address on the management network."""
    return FIRST_IPV6 + host_number(fabric, host)


def guid(fabric: Fabric, host: str) -> bytes:
    """Return the GUID of a host's NIC. It is made from the MAC of the first port (EUI-64)."""
    mac = fabric.host(host).ports[0].mac
    return bytes([mac[0] ^ 2, *mac[1:3], 0xFF, 0xFE, *mac[3:6]])


def gids(fabric: Fabric, host: str) -> tuple[bytes, ...]:
    """Return the GIDs of a host's NIC, by index."""
    link_local = bytes.fromhex("fe80000000000000") + guid(fabric, host)
    mapped = _MAPPED + ipv4(fabric, host).packed
    return link_local, fabric.host(host).ports[0].address.packed, mapped, mapped


def host_of_gid(fabric: Fabric, gid: bytes) -> str | None:
    """Return the host that has this GID, or None."""
    return next((host.name for host in fabric.hosts if gid in gids(fabric, host.name)), None)
