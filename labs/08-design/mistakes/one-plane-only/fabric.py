"""A folded Clos of any size in numbers: its room, its parts, and its loss to one failure.

A plane is a folded Clos of `tiers` tiers of switches with `radix` ports each. In all tiers but the top one,
half of the ports lead down and half lead up; in the top tier all lead down. A NIC has a port in every plane.
"""


def radix(chip_gbps, nic_gbps, planes):
    """Return how many ports a switch has: its chip's capacity over the rate of a port.

    A NIC has a port in every plane, and these share the NIC's rate.
    """
    return chip_gbps * planes // nic_gbps


def most_nics(radix, tiers):
    """Return how many NICs there is room for."""
    return 2 * (radix // 2) ** tiers


def switches(nics, radix, tiers, planes):
    """Return the switches of a full fabric, all planes together. `nics` fills it."""
    if tiers == 1:
        return planes
    lower = nics // (radix // 2)
    top = nics // radix
    return (tiers - 1) * lower + top


def paths(radix, tiers, planes):
    """Return the paths between two NICs that are as far apart as possible, all planes together."""
    return planes * (radix // 2) ** (tiers - 1)


def lost_with_port(planes):
    """Return the share of its bandwidth that a NIC loses with one port."""
    return 1 / planes


def lost_with_uplink(radix):
    """Return the share of its bandwidth that each NIC below a T0 loses with one of the T0's uplinks.

    The sender keeps its planes equally loaded, so the plane that lost a link holds back the others.
    """
    return 2 / radix
