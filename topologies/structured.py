"""Structured EVs: bits of an EV say which way up a frame takes, and each tier on the way up reads its own.

::

    31      28 27            18 17                  0
    |  plane  |  T0's uplink   |  the same in all   |

The plane is the NIC's port, and no switch reads it. The T0 reads the next ten bits: the number of the T1.
Nothing else varies in a fabric of two tiers, and the way down is ordinary routing. The low half of an EV
travels as the UDP source port; the bits that are the same in all EVs keep it in the range of RoCE's senders.
"""

from __future__ import annotations

from dataclasses import replace

from mrclab.topologies.model import EV_PORT_BASE, Fabric, Path
from mrclab.topologies.usid import INDEX_BITS, PLANE_BITS

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
