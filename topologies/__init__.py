"""What a fabric is: planes, T0 and T1 switches, NICs, links, uSIDs and paths.

A pure model: a short YAML file becomes an immutable :class:`Fabric`, and everything else in the testbed
(table entries, the Mininet network, the paths a sender may spray over) is derived from it.
"""

from topologies.build import build_fabric
from topologies.model import Fabric, Host, Link, LinkProfile, NicPort, Path, PortRef, Switch, SwitchPort
from topologies.shipped import load_fabric, shipped_topologies
from topologies.usid import UsidPlan

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
    "UsidPlan",
    "build_fabric",
    "load_fabric",
    "shipped_topologies",
]
