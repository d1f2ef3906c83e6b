"""Blast radius: what one failure of each kind takes away, from whom, and what a synchronous job notices.

Shares are of the fabric as it was. A sender on MRC keeps its planes equally loaded, so a plane that can carry
less holds back all of them: a dead uplink costs the T0's hosts its share of one plane, and not a P-th of
that (paper, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from scale.fabric import Built


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
    if tiers > 1:
        links, pod = built.links_per_tier, _nics_above_t0(built)
        t1s = built.tier_sizes[1]
        rows += [
            Blast("T0-T1 link", links, on_t0, 1 / half, 1 / links),
            Blast("T0", built.tier_sizes[0] * planes, on_t0, 1 / planes, half / links),
            Blast("T1", t1s * planes, pod, 1 / _t1s_per_t0(built), 1 / (t1s * planes)),
        ]
    if tiers > 2:
        links = built.links_per_tier
        t2s = built.tier_sizes[2]
        t1s = _t1s_per_t0(built)
        rows += [
            Blast("T1-T2 link", links, _nics_above_t0(built), 1 / (half * t1s), 1 / links),
            Blast("T2", t2s * planes, built.nics, 1 / t2s, 1 / (t2s * planes)),
        ]
    rows.append(Blast("plane", planes, built.nics, 1 / planes, 1 / planes))
    return tuple(rows)


def _t1s_per_t0(built: Built) -> int:
    """Return how many T1s a T0 is linked to: those of its plane, or of its pod."""
    return min(built.nics_per_t0, built.tier_sizes[1])


def _nics_above_t0(built: Built) -> int:
    """Return how many NICs share a T1: all of the plane, or those of its pod."""
    return built.nics if built.design.tiers == 2 else min(built.nics, built.nics_per_t0**2)
