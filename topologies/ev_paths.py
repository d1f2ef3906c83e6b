"""The path of a frame by its EV, where switches choose: by a hash (ECMP), or by bits of the EV.

By a hash, as p4src/ecmp.p4 computes it: a T0 hashes the flow of a frame for another rack and takes one of its
uplinks; the rest of the path has no choice. An EV's low half travels as the UDP source port, its high half in
the flow label, and both are of the flow. A plane is the NIC's port and never hashed: the top bits of an EV
name it, so that the EVs of a host's ports differ, and the rest is free.

By structured EVs: bits of an EV say which way up a frame takes, and each tier on the way up reads its own.

::

    31      28 27            18 17                  0
    |  plane  |  T0's uplink   |  the same in all   |

The plane is the NIC's port, and no switch reads it. The T0 reads the next ten bits: the number of the T1.
Nothing else varies in a fabric of two tiers, and the way down is ordinary routing. The low half of an EV
travels as the UDP source port; the bits that are the same in all EVs keep it in the range of RoCE's senders.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from mrclab.topologies.model import EV_PORT_BASE, Fabric, Path
from mrclab.topologies.usid import INDEX_BITS, PLANE_BITS

UDP = 17
HASHED_PLANE_BITS = 4
FREE_EV_BITS = 32 - HASHED_PLANE_BITS


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


UPLINK_BITS = INDEX_BITS
FIXED_BITS = 32 - PLANE_BITS - UPLINK_BITS
FIXED = EV_PORT_BASE
"""The lowest bits of every structured EV."""


def structured_ev(plane: int, uplink: int) -> int:
    """Return the EV of the path over a plane's T1 of this number; 0 for one inside a rack."""
    return (plane << UPLINK_BITS | uplink) << FIXED_BITS | FIXED


def structured_paths(fabric: Fabric, src: str, dst: str) -> tuple[Path, ...]:
    """Return the paths of `Fabric.paths`, each with its structured EV."""
    return tuple(replace(p, ev=structured_ev(p.plane, p.t1 or 0)) for p in fabric.paths(src, dst))
