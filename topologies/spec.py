"""The definition of a fabric: the few values from which all its nodes, links and addresses are computed.

A topology file gives a :class:`FabricSpec`, and ``mrclab.topologies.build`` makes a fabric from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Network
from typing import Literal

Tier = Literal["t0", "t1", "t2"]
LinkKind = Literal["host", "fabric"]
_SWITCH_NAME = re.compile(r"p(\d+)-(t[012])-(\d+)")


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A link's properties: rate in each direction, propagation delay, and the largest IP packet."""

    rate_bps: int
    delay_ns: int
    mtu_bytes: int


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host: its name and the number of its rack."""

    name: str
    rack: int


@dataclass(frozen=True, slots=True)
class LinkException:
    """A link that is missing, or has other properties than the other links of its kind.

    ``ends`` are the link's two nodes in any order. If a property is None, the link has
    the value that other links of its kind have.
    """

    ends: tuple[str, str]
    absent: bool = False
    rate_bps: int | None = None
    delay_ns: int | None = None
    mtu_bytes: int | None = None

    def profile(self, usual: LinkProfile) -> LinkProfile:
        """Return the profile of this link. ``usual`` is the profile of the other links of its kind."""
        return LinkProfile(
            usual.rate_bps if self.rate_bps is None else self.rate_bps,
            usual.delay_ns if self.delay_ns is None else self.delay_ns,
            usual.mtu_bytes if self.mtu_bytes is None else self.mtu_bytes,
        )


@dataclass(frozen=True, slots=True)
class FabricSpec:
    """The definition of a fabric: number of planes, T0s (racks) and T1s per plane, hosts, links.

    If ``t2s`` is not 0, the fabric has three tiers. The T0s are spread evenly over ``pods``. Each pod has
    ``t1s`` T1s per plane, and T1 number j of every pod is linked to the j-th group of ``t2s`` T2s.
    """

    name: str
    planes: int
    t0s: int
    t1s: int
    hosts: tuple[HostSpec, ...]
    block: IPv6Network
    host_links: LinkProfile
    fabric_links: LinkProfile
    exceptions: tuple[LinkException, ...] = ()
    classes: tuple[tuple[int, str], ...] = ()
    """Pairs (DSCP, traffic class) that differ from `mrclab.p4src.contract.SWITCH_MAP`."""
    pods: int = 1
    t2s: int = 0
    core_links: LinkProfile | None = None
    """The properties of links from T1 to T2. None: the same as for links from T0 to T1."""

    def pod_of(self, rack: int) -> int:
        """Return the pod of a rack."""
        return rack // (self.t0s // self.pods)

    def inner_links(self) -> Iterator[tuple[str, str]]:
        """Return the ends (lower, upper) of all links between switches, including links marked as absent."""
        for plane in range(self.planes):
            for rack in range(self.t0s):
                for t1 in range(self.pod_of(rack) * self.t1s, (self.pod_of(rack) + 1) * self.t1s):
                    yield switch_name(plane, "t0", rack), switch_name(plane, "t1", t1)
            for t1 in range(self.pods * self.t1s if self.t2s else 0):
                for t2 in self.t2s_above(t1):
                    yield switch_name(plane, "t1", t1), switch_name(plane, "t2", t2)

    def t2s_above(self, t1: int) -> range:
        """Return the numbers of the T2s to which a T1 is linked."""
        group = t1 % self.t1s
        return range(group * self.t2s, (group + 1) * self.t2s)


def switch_name(plane: int, tier: Tier, index: int) -> str:
    """Return the name of a switch, such as ``p0-t1-3``."""
    return f"p{plane}-{tier}-{index}"


def parse_switch_name(name: str) -> tuple[int, Tier, int] | None:
    """Return the plane, tier and index in a switch's name, or None if it is not a switch's name."""
    match = _SWITCH_NAME.fullmatch(name)
    if match is None:
        return None
    tier: Tier = "t0" if match[2] == "t0" else "t1" if match[2] == "t1" else "t2"
    return int(match[1]), tier, int(match[3])
