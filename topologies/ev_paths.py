"""The path of a frame from its EV, if switches choose the path: by a hash (ECMP), or by bits of the EV.

ECMP: for a frame to another rack, a T0 chooses the uplink by a hash of the flow, as in p4src/ecmp.p4. The
rest of the path is fixed. The low half of the EV is the UDP source port, and the high half is in the flow
label. The hash includes both halves. The NIC's port determines the plane. The EV's top bits are the number of
the plane, so that the EVs of different planes differ. The other bits can have any value.

Structured EVs: the T0 reads the number of its uplink from bits of the EV.

::

    31      28 27            18 17                  0
    |  plane  |  T0's uplink   |  the same in all   |

The NIC's port determines the plane, so no switch reads the plane's bits. The T0 reads the next ten bits: the
number of the T1. The rest of the path is fixed. The low half of the EV is the UDP source port. The bits that
all EVs have in common keep this port in the range that RoCEv2 senders use.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from mrclab.topologies.model import EV_PORT_BASE, Fabric, Path
from mrclab.topologies.usid import INDEX_BITS, PLANE_BITS

UDP = 17
FREE_EV_BITS = 32 - PLANE_BITS


def hashed_ev(plane: int, free: int) -> int:
    """Return the EV with this plane in the top bits and ``free`` in the other bits."""
    return plane << FREE_EV_BITS | free


def flow_hash(src: bytes, dst: bytes, flow_label: int, protocol: int, src_port: int, dst_port: int) -> int:
    """Return the hash that switches compute for a flow: CRC-32 over these fields. Addresses have 16 bytes."""
    rest = flow_label << 40 | protocol << 32 | src_port << 16 | dst_port
    # The fields in `rest` have 60 bits. As in BMv2, four zero bits fill the last byte.
    return zlib.crc32(src + dst + (rest << 4).to_bytes(8, "big"))


def hashed_path(fabric: Fabric, src: str, dst: str, ev: int, udp_port: int) -> Path:
    """Return the path of frames with this EV, if switches hash the EV and no link is down.

    Raise KeyError if the fabric does not have the EV's plane.
    """
    plane = ev >> FREE_EV_BITS
    ways = [path for path in fabric.paths(src, dst) if path.plane == plane]
    if not ways:
        raise KeyError(f"EV {ev:#010x} names plane {plane}, which {fabric.name} does not have")
    near, far = fabric.host(src).ports[plane].address, fabric.host(dst).ports[plane].address
    chosen = flow_hash(near.packed, far.packed, ev >> 16, UDP, ev & 0xFFFF, udp_port)
    return replace(_way(ways, chosen), ev=ev)


def _way(ways: Sequence[Path], value: int) -> Path:
    """Return the path that a hash value chooses.

    The value is divided by the number of T1s. The remainder chooses the T1, the quotient the T2 (if any).
    """
    t1s = list(dict.fromkeys(path.t1 for path in ways))
    over = [path for path in ways if path.t1 == t1s[value % len(t1s)]]
    return over[value // len(t1s) % len(over)]


def hashed_uplinks(
    fabric: Fabric, src: str, dst: str, plane: int, evs: Sequence[int], udp_port: int
) -> list[int | None]:
    """Return for each EV the number of the T1 on its path in a plane; None if both hosts are in one rack."""
    ways = list(dict.fromkeys(path.t1 for path in fabric.paths(src, dst) if path.plane == plane))
    near, far = fabric.host(src).ports[plane].address, fabric.host(dst).ports[plane].address
    hashes = (flow_hash(near.packed, far.packed, ev >> 16, UDP, ev & 0xFFFF, udp_port) for ev in evs)
    return [ways[value % len(ways)] for value in hashes]


UPLINK_BITS = INDEX_BITS
FIXED_BITS = 32 - PLANE_BITS - UPLINK_BITS
FIXED = EV_PORT_BASE
"""The lowest bits of every structured EV."""


def structured_ev(plane: int, uplink: int) -> int:
    """Return the structured EV of the path over the T1 ``uplink``. Inside a rack, ``uplink`` is 0."""
    return (plane << UPLINK_BITS | uplink) << FIXED_BITS | FIXED


def structured_paths(fabric: Fabric, src: str, dst: str) -> tuple[Path, ...]:
    """Return all paths between two hosts (see `Fabric.paths`) with structured EVs."""
    return tuple(replace(p, ev=structured_ev(p.plane, p.t1 or 0)) for p in fabric.paths(src, dst))
