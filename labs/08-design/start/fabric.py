"""The size and parts of any folded Clos, and the bandwidth that NICs lose through failures.

Each plane is a folded Clos of `tiers` tiers of switches with `radix` ports each. In the top tier all ports
lead down. In every other tier, half of the ports lead down and half lead up. A NIC has a port in every plane.
"""


def radix(chip_gbps, nic_gbps, planes):
    """Return the number of ports of a switch: the chip's capacity divided by the rate of a port.

    A NIC has a port in every plane. The ports share the NIC's rate equally.
    """
    # TODO 1: replace this line.
    return 0


def most_nics(radix, tiers):
    """Return the number of NICs for which the fabric has room."""
    # TODO 2: replace this line. One tier has room for radix NICs. Each further tier multiplies the room by
    # radix / 2.
    return 0


def switches(nics, radix, tiers, planes):
    """Return the number of switches in all planes of a full fabric, which has room for `nics` NICs."""
    # TODO 3: replace this line. Count tier by tier. How many ports of a switch in the top tier lead down?
    return 0


def paths(radix, tiers, planes):
    """Return the number of paths in all planes between two NICs that are as far apart as possible."""
    # TODO 4: replace this line. The plane and the switch at the top determine a path.
    return 0


def lost_with_port(planes):
    """Return the share of its bandwidth that a NIC loses if one of its ports fails."""
    # TODO 5: replace this line.
    return 0


def lost_with_uplink(radix):
    """Return the share of its bandwidth that each NIC below a T0 loses if one of the T0's uplinks fails.

    The sender loads all planes equally, so the plane with the failed uplink slows the others down.
    """
    # TODO 6: replace this line.
    return 0
