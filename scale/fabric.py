"""A fabric of any size as numbers: parts, paths, power, cost, and the blast radius of a failure.

A plane is a non-blocking folded Clos of L tiers of switches with k ports each. Half of a switch's ports lead
down and half up; in the top tier all ports lead down. A plane has room for 2 (k/2)^L NIC ports. For N ports
it needs (2L - 1) N / k switches. Source: paper, section 2, figure 1, for L = 2 and 3. A chip of capacity C
has k = C P / R ports for NICs of rate R on P planes.

The blast radius of a failure is the lost capacity, the affected hosts, and the effect on a synchronous job.
Shares are relative to the whole fabric before the failure. A sender on MRC loads its planes equally, so a
plane with less capacity limits all planes. If one of a T0's n uplinks in one plane is dead, the T0's hosts
lose 1/n of their whole bandwidth, and not only 1/(n P) (paper, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mrclab.linux.errors import InputError
from mrclab.scale.parts import Parts

MAX_TIERS = 4
MAX_PLANES = 16


@dataclass(frozen=True)
class Design:
    """The choices of a design: the number of tiers of switches, the number of planes, and the parts."""

    tiers: int
    planes: int
    parts: Parts

    @property
    def name(self) -> str:
        """The name, for instance ``2 tiers, 8 planes``."""
        plural = "s" if self.planes > 1 else ""
        return f"{self.tiers} tier{'s' if self.tiers > 1 else ''}, {self.planes} plane{plural}"

    @property
    def port_bps(self) -> float:
        """The rate of a NIC port, bit/s."""
        return self.parts.nic.rate_bps / self.planes

    @property
    def radix(self) -> int:
        """Number of ports of a switch (k)."""
        return round(self.parts.switch.capacity_bps / self.port_bps)

    @property
    def most_nics(self) -> int:
        """The largest number of NICs of the design: 2 (k/2)^L, for L tiers of switches with k ports."""
        return int(2 * (self.radix // 2) ** self.tiers)

    def check(self) -> None:
        """Raise InputError if the parts do not fit together."""
        if not 1 <= self.tiers <= MAX_TIERS:
            raise InputError(f"tiers must be from 1 to {MAX_TIERS}, not {self.tiers}")
        if not 1 <= self.planes <= MAX_PLANES:
            raise InputError(f"planes must be from 1 to {MAX_PLANES}, not {self.planes}")
        exact = self.parts.switch.capacity_bps * self.planes
        if exact % self.parts.nic.rate_bps or self.radix % 2 or self.radix < 4:
            raise InputError(
                f"a switch of {self.parts.switch.capacity_bps / 1e9:g} Gbit/s has no even number of ports of "
                f"{self.port_bps / 1e9:g} Gbit/s, at least 4: change switch.capacity, nic.rate or the planes"
            )

    def built(self, nics: int | None = None) -> Built:
        """Return the fabric for this number of NICs. Raise InputError for too many NICs.

        Without ``nics``, the fabric has the largest possible number of NICs.
        """
        self.check()
        wanted = self.most_nics if nics is None else nics
        if wanted < 1:
            raise InputError(f"a fabric needs at least one NIC, not {wanted}")
        if wanted > self.most_nics:
            raise InputError(
                f"{self.name}: room for {self.most_nics:,} NICs, not {wanted:,}: take more planes or tiers"
            )
        return Built(self, wanted)


@dataclass(frozen=True)
class Built:
    """A fabric of a design, with a given number of NICs.

    Numbers of switches are rounded up. Even a T0 with few NICs has all its uplinks.
    """

    design: Design
    nics: int

    @property
    def nics_per_t0(self) -> int:
        """Number of NICs that share a T0. A T0 has the same number of uplinks."""
        return self.design.radix // 2

    @cached_property
    def tier_sizes(self) -> tuple[int, ...]:
        """Number of switches in each tier of one plane, T0 first."""
        half, tiers = self.nics_per_t0, self.design.tiers
        if tiers == 1:
            return (1,)
        t0s = -(-self.nics // half)
        return (t0s,) * (tiers - 1) + (-(-t0s // 2),)

    @property
    def switches(self) -> int:
        """Number of switches in all planes."""
        return sum(self.tier_sizes) * self.design.planes

    @property
    def host_links(self) -> int:
        """Number of links between NICs and T0s."""
        return self.nics * self.design.planes

    @property
    def links_per_tier(self) -> int:
        """Number of links between one tier and the next, in all planes."""
        return 0 if self.design.tiers == 1 else self.tier_sizes[0] * self.nics_per_t0 * self.design.planes

    @property
    def fabric_links(self) -> int:
        """Number of links between switches."""
        return self.links_per_tier * (self.design.tiers - 1)

    @property
    def full_rate_hops(self) -> float:
        """Number of links in a plane, per NIC of the fabric. With `most_nics` NICs: the number of tiers."""
        return (self.host_links + self.fabric_links) / self.design.planes / self.nics

    @property
    def modules(self) -> int:
        """Number of optical modules, one at each end of a fibre. A module is split into several ports."""
        ports = 2 * (self.fabric_links + (self.host_links if self._optical_hosts else 0))
        return -(-ports // self.ports_per_module)

    @property
    def copper_cables(self) -> int:
        """Number of copper cables. One cable carries as many ports as one optical module."""
        return 0 if self._optical_hosts else -(-self.host_links // self.ports_per_module)

    @property
    def _optical_hosts(self) -> bool:
        return self.design.parts.host_links == "optical"

    @property
    def ports_per_module(self) -> int:
        """Number of ports that share one optical module."""
        return max(1, int(self.design.parts.module.rate_bps // self.design.port_bps))

    @property
    def longest_path(self) -> int:
        """Number of switches on the longest path: 2L - 1 for L tiers."""
        return 2 * self.design.tiers - 1

    @property
    def paths_per_plane(self) -> int:
        """Number of paths in a plane between the most distant NICs: one over each top switch."""
        return self.tier_sizes[-1] if self.design.tiers > 1 else 1

    @property
    def paths(self) -> int:
        """Number of paths between the most distant NICs, over all planes."""
        return self.paths_per_plane * self.design.planes

    @property
    def power_w(self) -> float:
        """Power of switches, modules and cables."""
        parts = self.design.parts
        return (
            self.switches * parts.switch.power_w
            + self.modules * parts.module.power_w
            + self.copper_cables * parts.copper.power_w
        )

    @property
    def cost(self) -> float:
        """Cost of switches, modules and cables, in the currency of the table of parts."""
        parts = self.design.parts
        return (
            self.switches * parts.switch.cost
            + self.modules * parts.module.cost
            + self.copper_cables * parts.copper.cost
        )


def smallest_design(nics: int, planes: int, parts: Parts) -> Design:
    """Return the design with the fewest tiers for this number of NICs. Raise InputError if there is none."""
    for tiers in range(1, MAX_TIERS + 1):
        design = Design(tiers, planes, parts)
        design.check()
        if design.most_nics >= nics:
            return design
    raise InputError(f"{nics:,} NICs need more than {MAX_TIERS} tiers at {planes} planes: take more planes")


@dataclass(frozen=True, slots=True)
class Blast:
    """One kind of failure: ``count`` parts can fail in this way, and each failure affects ``nics`` NICs.

    ``of_each`` is the largest share of bandwidth that such a NIC loses. ``of_fabric`` is the lost share of
    the capacity at the tier of the failure, over all planes. ``note`` is a remark.
    """

    kind: str
    count: int
    nics: int
    of_each: float
    of_fabric: float
    note: str = ""


def blast_radius(built: Built) -> tuple[Blast, ...]:
    """Return the loss for each kind of failure, smallest parts first."""
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
