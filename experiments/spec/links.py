"""The links that match a pattern of a scenario. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric


def metered(fabric: Fabric, pattern: str) -> tuple[str, ...]:
    """Return the T0-T1 links whose names fit a pattern; none for no pattern.

    Raise InputError if none fits.
    """
    if not pattern:
        return ()
    fabric_links = [link.name for link in fabric.links if link.kind == "fabric"]
    found = tuple(name for name in fabric_links if fnmatchcase(name, pattern))
    if not found:
        raise InputError(
            f"measure.links: '{pattern}' matches none of {fabric.name}, as {fabric_links[0]} would"
        )
    return found
