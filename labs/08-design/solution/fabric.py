"""The size and parts of any folded Clos, and the bandwidth that NICs lose through failures.

Each plane is a folded Clos of `tiers` tiers of switches with `radix` ports each. In the top tier all ports
lead down. In every other tier, half of the ports lead down and half lead up. A NIC has a port in every plane.
"""


def radix(chip_gbps, nic_gbps, planes):
    """Return the number of ports of a switch: the chip's capacity divided by the rate of a port.

    A NIC has a port in every plane. The ports share the NIC's rate equally.
    """
    return chip_gbps * planes // nic_gbps


def most_nics(radix, tiers):
    """Return the number of NICs for which the fabric has room."""
    return 2 * (radix // 2) ** tiers


def switches(nics, radix, tiers, planes):
    """Return the number of switches in all planes of a full fabric, which has room for `nics` NICs."""
    if tiers == 1:
        return planes
    lower = nics // (radix // 2)
    top = nics // radix
    return planes * ((tiers - 1) * lower + top)


def paths(radix, tiers, planes):
    """Return the number of paths in all planes between two NICs that are as far apart as possible."""
    return planes * (radix // 2) ** (tiers - 1)


def lost_with_port(planes):
    """Return the share of its bandwidth that a NIC loses if one of its ports fails."""
    return 1 / planes


def lost_with_uplink(radix):
    """Return the share of its bandwidth that each NIC below a T0 loses if one of the T0's uplinks fails.

    The sender loads all planes equally, so the plane with the failed uplink slows the others down.
    """
    return 2 / radix
