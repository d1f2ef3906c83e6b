"""The map of multicast groups and clone sessions, which the server writes and the program reads."""

from __future__ import annotations

from mrclab.linux.bpf_types import NO_PREALLOC, MapSpec, MapType

COPIES = 256  # of one group or session
HEADER, COPY = 16, 8
VALUE_SIZE = HEADER + COPIES * COPY
GROUPS = SESSIONS = 1 << 15  # numbers from 1 up to, but not with, this one, as in BMv2
SESSION = 1 << 31
CLASSES = 8  # of service


def replication_map(name: str) -> MapSpec:
    """Return the map of groups and sessions."""
    return MapSpec(name, MapType.HASH, 4, VALUE_SIZE, GROUPS + SESSIONS, NO_PREALLOC)
