"""A folded Clos of any size in numbers: its room, its parts, and its loss to one failure.

A plane is a folded Clos of `tiers` tiers of switches with `radix` ports each. In all tiers but the top one,
half of the ports lead down and half lead up; in the top tier all lead down. A NIC has a port in every plane.
"""


def radix(chip_gbps, nic_gbps, planes):
    """Return how many ports a switch has: its chip's capacity over the rate of a port.

    A NIC has a port in every plane, and these share the NIC's rate.
    """
    # TODO 1: replace this line.
    return 0


def most_nics(radix, tiers):
    """Return how many NICs there is room for."""
    # TODO 2: replace this line. One tier: radix. Each tier more multiplies by radix / 2.
    return 0


def switches(nics, radix, tiers, planes):
    """Return the switches of a full fabric, all planes together. `nics` fills it."""
    # TODO 3: replace this line. Count tier by tier; how many ports of the top tier's switches lead down?
    return 0


def paths(radix, tiers, planes):
    """Return the paths between two NICs that are as far apart as possible, all planes together."""
    # TODO 4: replace this line. A path is chosen by the switch at the top, and by the plane.
    return 0


def lost_with_port(planes):
    """Return the share of its bandwidth that a NIC loses with one port."""
    # TODO 5: replace this line.
    return 0


def lost_with_uplink(radix):
    """Return the share of its bandwidth that each NIC below a T0 loses with one of the T0's uplinks.

    The sender keeps its planes equally loaded, so the plane that lost a link holds back the others.
    """
    # TODO 6: replace this line.
    return 0
