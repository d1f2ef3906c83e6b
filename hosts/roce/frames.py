"""Frames around RoCEv2 packets: what all frames of a queue pair have in common.

A frame may have an outer IPv6 header with a uSID container or none; `mrclab.hosts.rdma.frames` builds both.
"""

from __future__ import annotations

from typing import NamedTuple

from mrclab.hosts.rdma.frames import build_prefix
from mrclab.hosts.rdma.paths import PlanePaths


class Route(NamedTuple):
    """The headers before the BTH that all frames of a queue pair have in common."""

    plane: PlanePaths
    outer_dst: bytes | None
    """uSID container; None for frames without an outer header."""
    label: int
    """IPv6 flow label."""
    source: int
    """UDP source port."""
    udp_port: int
    hop_limit: int


def prefix(route: Route, tclass: int, udp_length: int) -> tuple[bytes, int]:
    """Return the bytes before the BTH and the value that the ICRC starts with.

    `udp_length` is the UDP header's own length field: 8, BTH, extension headers, payload, pad and ICRC.
    """
    return build_prefix(
        route.plane,
        route.outer_dst,
        tclass=tclass,
        flow_label=route.label,
        source=route.source,
        udp_port=route.udp_port,
        hop_limit=route.hop_limit,
        udp_length=udp_length,
    )
