"""The size of fabric that one machine can carry; virtual time has no such limit."""

from __future__ import annotations

from mrclab.linux.errors import InputError
from mrclab.topologies.model import Fabric

MAX_LIVE_LINKS = 1000
"""The largest shipped topology for one machine (wide) has 544, the smallest for virtual time alone 1,280."""


STRUCTURED_MEND = "structured EVs name the uplink of a T0 alone: use mrc or mrc-ecmp"


def require_live(fabric: Fabric) -> None:
    """Raise InputError if a fabric has more links than one machine can carry, or a third tier."""
    require_two_tiers(fabric, "live switches forward over T0s and T1s: use --target sim")
    if len(fabric.links) > MAX_LIVE_LINKS:
        raise InputError(
            f"topology {fabric.name} has {len(fabric.links):,} links, and one machine carries "
            f"{MAX_LIVE_LINKS:,} at most: use --target sim"
        )


def require_two_tiers(fabric: Fabric, mend: str) -> None:
    """Raise InputError, with the reason and the mend, for a fabric of three tiers."""
    if fabric.pods > 1:
        raise InputError(f"topology {fabric.name} has three tiers, and {mend}")
