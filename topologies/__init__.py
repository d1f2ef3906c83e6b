"""The model of a fabric: planes, T0 and T1 switches, NICs, links, uSIDs and paths.

A short YAML file becomes an immutable :class:`Fabric`. Table entries, the Mininet network and the paths of
packets are computed from it.
"""

from mrclab.topologies.build import build_fabric, fabric_from_text, fabric_text, one_plane
from mrclab.topologies.model import Fabric, Host, Link, NicPort, Path, PortRef, Switch, SwitchPort
from mrclab.topologies.shipped import load_fabric, shipped_topologies
from mrclab.topologies.spec import LinkProfile, Tier
from mrclab.topologies.usid import UsidPlan

__all__ = [
    "Fabric",
    "Host",
    "Link",
    "LinkProfile",
    "NicPort",
    "Path",
    "PortRef",
    "Switch",
    "SwitchPort",
    "Tier",
    "UsidPlan",
    "build_fabric",
    "fabric_from_text",
    "fabric_text",
    "load_fabric",
    "one_plane",
    "shipped_topologies",
]
