"""The numbers of uSIDs. The uSIDs of a path can be computed from a few bits.

A uSID names a node. It has 16 bits: the plane, the role of the node, and the node's index::

    15      12 11   10 9              0
    |  plane  |  role |     index      |

Senders do not store paths: they compute the four uSIDs of a path from an EV. The plane bits of the EV are
copied into all four uSIDs, and the uplink bits into the uSID of the T1 (the paper's template rule,
arXiv:2605.04333 section 2.3, Fig. 3).

In a fabric of up to 1,024 hosts, a NIC's index is the NIC's number in the fabric. In a larger fabric, the
index is the NIC's number in the rack. This number is enough, because only the rack's T0 reads a NIC's index
(like a local SID of RFC 9800). T2s have the role of T1s, and their indices follow the indices of their
plane's T1s.

A container has the format F3216: a 32-bit locator block and up to six uSIDs. Zeros end the list (RFC 9800).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv6Address, IPv6Network

PLANE_BITS = 4
ROLE_BITS = 2
INDEX_BITS = 10
MAX_PLANES = 1 << PLANE_BITS
MAX_INDEX = (1 << INDEX_BITS) - 1
MAX_HOSTS = 1 << 16
"""The largest number of hosts in a fabric. With more hosts, some addresses would be equal."""
MAX_USIDS = 6
BLOCK_PREFIX_LEN = 32
SID_PREFIX_LEN = 48


class Role(IntEnum):
    """The role of the node that a uSID names. No role is 0, because the uSID 0000 ends a container."""

    T0 = 1
    T1 = 2
    NIC = 3


@dataclass(frozen=True, slots=True)
class UsidPlan:
    """The locator block of a fabric, and functions that make and read its uSIDs and containers."""

    block: IPv6Network

    def __post_init__(self) -> None:
        if self.block.prefixlen != BLOCK_PREFIX_LEN:
            raise ValueError(f"an F3216 locator block is a /{BLOCK_PREFIX_LEN}, not {self.block}")

    @staticmethod
    def usid(plane: int, role: Role, index: int) -> int:
        """Return the 16-bit uSID of a node. Raise ValueError if a field does not fit."""
        if not 0 <= plane < MAX_PLANES:
            raise ValueError(f"plane {plane} does not fit a uSID: at most {MAX_PLANES} planes")
        if not 0 <= index <= MAX_INDEX:
            raise ValueError(f"{role.name} {index} does not fit a uSID: at most {MAX_INDEX + 1} of a kind")
        return plane << (ROLE_BITS + INDEX_BITS) | role << INDEX_BITS | index

    @staticmethod
    def fields(usid: int) -> tuple[int, Role, int]:
        """Return the plane, role and index of a uSID. Raise ValueError if its role is 0."""
        return usid >> (ROLE_BITS + INDEX_BITS), Role(usid >> INDEX_BITS & 3), usid & MAX_INDEX

    def sid(self, usid: int) -> IPv6Network:
        """Return the /48 prefix that a switch matches for this uSID."""
        return IPv6Network((int(self.block.network_address) | usid << 80, SID_PREFIX_LEN))

    def container(self, usids: Sequence[int]) -> IPv6Address:
        """Return the address of a path over these uSIDs, in order. Raise ValueError for more than six."""
        if len(usids) > MAX_USIDS:
            raise ValueError(f"a container holds {MAX_USIDS} uSIDs, not {len(usids)}")
        address = int(self.block.network_address)
        for position, usid in enumerate(usids):
            address |= usid << 80 - 16 * position
        return IPv6Address(address)

    def usids(self, container: IPv6Address) -> tuple[int, ...]:
        """Return the uSIDs that are left in a container."""
        value = int(container)
        found = []
        for position in range(MAX_USIDS):
            usid = value >> 80 - 16 * position & 0xFFFF
            if usid == 0:
                break
            found.append(usid)
        return tuple(found)

    def shift(self, container: IPv6Address) -> IPv6Address:
        """Return a container without its first uSID. A switch (uN) shifts the other uSIDs by 16 bits."""
        value = int(container)
        rest = (value << 16) & ((1 << 96) - 1)
        return IPv6Address(value >> 96 << 96 | rest)
