"""Blast radius: the loss of capacity by one failure of each kind, the hosts that it hits, and its effect on a
synchronous job.

Shares are of the fabric as it was. A sender on MRC keeps its planes equally loaded, so a plane that can carry
less holds back all of them: a dead uplink costs the T0's hosts its share of one plane, and not a P-th of
that (paper, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from mrclab.scale.fabric import Built


@dataclass(frozen=True, slots=True)
class Blast:
    """One kind of failure: ``count`` parts can fail so; each failure touches ``nics`` NICs.

    ``of_each`` is the share of bandwidth that each of them loses at most, ``of_fabric`` the share of the
    capacity at the tier of the failure, over all planes. ``note`` says what else there is to know.
    """

    kind: str
    count: int
    nics: int
    of_each: float
    of_fabric: float
    note: str = ""


def blast_radius(built: Built) -> tuple[Blast, ...]:
    """Return what each kind of failure takes, the smallest parts first."""
    planes, tiers = built.design.planes, built.design.tiers
    half = built.nics_per_t0
    on_t0 = min(half, built.nics)
    per_module = min(built.ports_per_module, planes)
    split = min(built.ports_per_module, on_t0)
    rows = [
        Blast("NIC-T0 link", built.host_links, 1, 1 / planes, 1 / built.host_links),
        Blast(
            "module at a T0, to NICs",
            -(-built.host_links // built.ports_per_module),
            split,
            1 / planes,
            split / built.host_links,
            "each of its ports leads to another NIC" if split > 1 else "",
        ),
        Blast(
            "module at a NIC",
            built.nics * -(-planes // built.ports_per_module),
            1,
            per_module / planes,
            per_module / built.host_links,
            "all ports of the NIC: its queue pairs end" if per_module == planes else "",
        ),
    ]
    for tier in range(1, tiers):
        # A T0 reaches (k/2)^i switches of tier i above it; such a switch has (k/2)^(i+1) NICs below.
        links, size = built.links_per_tier, built.tier_sizes[tier]
        below = min(half**tier, built.nics)
        under = built.nics if tier == tiers - 1 else min(half ** (tier + 1), built.nics)
        rows.append(Blast(f"T{tier - 1}-T{tier} link", links, below, 1 / half**tier, 1 / links))
        if tier == 1:
            rows.append(Blast("T0", built.tier_sizes[0] * planes, on_t0, 1 / planes, half / links))
        reached = min(half**tier, size)
        rows.append(Blast(f"T{tier}", size * planes, under, 1 / reached, 1 / (size * planes)))
    rows.append(Blast("plane", planes, built.nics, 1 / planes, 1 / planes))
    return tuple(rows)
