"""The path of a frame if switches choose it by a hash (ECMP), as p4src/ecmp.p4 computes it.

A T0 hashes the flow of a frame for another rack and takes one of its uplinks; the rest of the path has no
choice. An EV's low half travels as the UDP source port, its high half in the flow label, and both are of the
flow. A plane is the NIC's port and never hashed: the top bits of an EV name it, so that the EVs of a host's
ports differ, and the rest is free.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from mrclab.topologies.model import Fabric, Path

UDP = 17
PLANE_BITS = 4
FREE_EV_BITS = 32 - PLANE_BITS


def hashed_ev(plane: int, free: int) -> int:
    """Return the EV of a plane with these free bits."""
    return plane << FREE_EV_BITS | free


def flow_hash(src: bytes, dst: bytes, flow_label: int, protocol: int, src_port: int, dst_port: int) -> int:
    """Return the switches' hash of a flow, CRC-32 over its fields in this order; addresses have 16 bytes."""
    rest = flow_label << 40 | protocol << 32 | src_port << 16 | dst_port
    # 60 bits: the last byte is filled up with zeros, as BMv2 does it.
    return zlib.crc32(src + dst + (rest << 4).to_bytes(8, "big"))


def hashed_path(fabric: Fabric, src: str, dst: str, ev: int, udp_port: int) -> Path:
    """Return the path that frames with this EV take from one host to another while no route is withdrawn.

    Its ``ev`` is the given one. Raise KeyError if there is no such plane.
    """
    plane = ev >> FREE_EV_BITS
    ways = [path for path in fabric.paths(src, dst) if path.plane == plane]
    if not ways:
        raise KeyError(f"EV {ev:#010x} names plane {plane}, which {fabric.name} does not have")
    near, far = fabric.host(src).ports[plane].address, fabric.host(dst).ports[plane].address
    chosen = flow_hash(near.packed, far.packed, ev >> 16, UDP, ev & 0xFFFF, udp_port)
    return replace(_way(ways, chosen), ev=ev)


def _way(ways: Sequence[Path], value: int) -> Path:
    """Return the path of a hash: its rest chooses the T1, and in three tiers its quotient the T2."""
    t1s = list(dict.fromkeys(path.t1 for path in ways))
    over = [path for path in ways if path.t1 == t1s[value % len(t1s)]]
    return over[value // len(t1s) % len(over)]


def hashed_uplinks(
    fabric: Fabric, src: str, dst: str, plane: int, evs: Sequence[int], udp_port: int
) -> list[int | None]:
    """Return the number of the T1 that each EV's path takes in a plane; None inside a rack."""
    ways = list(dict.fromkeys(path.t1 for path in fabric.paths(src, dst) if path.plane == plane))
    near, far = fabric.host(src).ports[plane].address, fabric.host(dst).ports[plane].address
    hashes = (flow_hash(near.packed, far.packed, ev >> 16, UDP, ev & 0xFFFF, udp_port) for ev in evs)
    return [ways[value % len(ways)] for value in hashes]
