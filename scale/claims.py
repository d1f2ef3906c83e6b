"""The claims of the paper and OpenAI about size, cost and blast radius, recomputed from formulas.

Each claim is compared with a derived value. The claim is *reproduced* if this value rounds to the quoted
value or is within the stated tolerance, otherwise *contradicted*. A claim is *on a condition* if it holds
only under the derivation's assumption. The claims are for chips of 51.2 Tbit/s and NICs of 800 Gbit/s, so
another table of parts changes the outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mrclab.scale.fabric import Blast, Built, Design, blast_radius
from mrclab.scale.parts import Parts

Outcome = Literal["reproduced", "contradicted", "on a condition"]

PAPER, OPENAI = "arXiv:2605.04333", "OpenAI, May 2026"
JOB_GPUS = 75_000
ACTIVE_EVS = 128
PACKET_BYTES = 4096
CONVENTIONAL, FOUR, EIGHT = (3, 1), (2, 4), (2, 8)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, its value in the source, the value derived here, and the derivation."""

    text: str
    source: str
    quoted: str
    derived: str
    outcome: Outcome
    derivation: str


def claims(parts: Parts) -> tuple[Claim, ...]:
    """Check every claim with a table of parts, and return the claims with their outcomes.

    Raise InputError for bad parts.
    """
    old, four, eight = (Design(tiers, planes, parts).built() for tiers, planes in (CONVENTIONAL, FOUR, EIGHT))
    return (*_sizes(old, four, eight), *_blasts(old, four, eight), *_figures(four, eight))


def _claim(
    text: str,
    source: str,
    quoted: float,
    derived: float,
    derivation: str,
    *,
    shown: Callable[[float], str] = lambda value: f"{value:,.0f}",
    tolerance: float = 0.0,
    condition: bool = False,
) -> Claim:
    """Compare two values. They agree if their texts are equal, or if their relative difference is small.

    ``shown`` returns a value's text. ``tolerance`` is the largest relative difference.
    If the values agree and ``condition`` is set, the outcome is "on a condition".
    """
    agrees = shown(quoted) == shown(derived) or abs(derived - quoted) <= tolerance * abs(quoted)
    outcome: Outcome = "contradicted"
    if agrees:
        outcome = "on a condition" if condition else "reproduced"
    return Claim(text, source, shown(quoted), shown(derived), outcome, derivation)


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def _sizes(old: Built, four: Built, eight: Built) -> list[Claim]:
    k = eight.design.radix
    copper = (eight.design.tiers - 1) / (old.design.tiers - 1)
    return [
        _claim(
            "NICs of two tiers, 8 planes",
            PAPER + ", sec. 2",
            131_072,
            eight.nics,
            f"N = k^2/2, k = 64 P = {k}",
        ),
        _claim(
            "NICs of three tiers, one plane",
            PAPER + ", fig. 1",
            65_536,
            old.nics,
            f"N = k^3/4, k = {old.design.radix}",
        ),
        _claim(
            "T0s and T1s in each plane",
            PAPER + ", fig. 1",
            768,
            sum(eight.tier_sizes),
            f"k + k/2 = {eight.tier_sizes[0]} + {eight.tier_sizes[1]}",
        ),
        _claim(
            "switches, against three tiers",
            OPENAI,
            3 / 5,
            (eight.switches / eight.nics) / (old.switches / old.nics),
            f"3N/64 against 5N/64 per NIC. As one fabric of {eight.nics:,} NICs three tiers do not exist: "
            f"they end at {old.nics:,}; four tiers need 7N/64, and the ratio is 3/7",
            shown=_ratio,
            condition=True,
        ),
        _claim(
            "optics, against three tiers",
            OPENAI,
            2 / 3,
            eight.full_rate_hops / old.full_rate_hops,
            "2 full-rate links a NIC against 3, each with two modules, those to the NICs counted; "
            f"with copper to the NICs it is {copper:.2f}",
            shown=_ratio,
            condition=True,
        ),
        _claim(
            "switches on the longest path",
            PAPER + ", sec. 2",
            3,
            eight.longest_path,
            f"2L - 1 = {eight.longest_path}; three tiers have {old.longest_path}, and the paper's 7 are "
            "four tiers",
        ),
        _claim("NICs under one T0", PAPER + ", sec. 2", 256, eight.nics_per_t0, "k/2; three tiers: 32"),
        _claim(
            "paths between two T0s ('hundreds')",
            OPENAI,
            256,
            eight.paths_per_plane,
            f"k/2 in each plane, {eight.paths:,} over all; {four.paths:,} on 4 planes",
        ),
    ]


def _of(built: Built, kind: str) -> Blast:
    return next(row for row in blast_radius(built) if row.kind == kind)


def _blasts(old: Built, four: Built, eight: Built) -> list[Claim]:
    return [
        _claim(
            "a T0-T1 link, of its T0's uplinks",
            PAPER + ", sec. 2",
            0.004,
            _of(eight, "T0-T1 link").of_each,
            "2/k = 1/256 of the plane's; as planes are kept equal, of all the T0's bandwidth",
            shown=_percent,
        ),
        _claim(
            "the same in three tiers",
            PAPER + ", sec. 2",
            0.03,
            _of(old, "T0-T1 link").of_each,
            "2/k = 1/32 = 3.1 %",
            shown=lambda value: f"{value:.0%}",
        ),
        _claim(
            "a NIC port of 8",
            PAPER + ", sec. 2",
            0.12,
            _of(eight, "NIC-T0 link").of_each,
            "1/P = 12.5 %; the paper also prints 12",
            shown=lambda value: f"{int(100 * value)}%",
        ),
        _claim(
            "a NIC port of 4",
            PAPER + ", sec. 2",
            0.25,
            _of(four, "NIC-T0 link").of_each,
            "1/P",
            shown=_percent,
        ),
    ]


def _figures(four: Built, eight: Built) -> list[Claim]:
    per_plane = ACTIVE_EVS / four.design.planes
    share = per_plane / four.paths_per_plane
    packets = 12.4e15 * 60 / (8 * PACKET_BYTES)
    return [
        Claim(
            "a job of 75,000 GPUs on two tiers",
            PAPER + ", fig. 4 and 8",
            f"{JOB_GPUS:,}",
            f"{four.nics:,} or {eight.nics:,}",
            "on a condition" if four.nics < JOB_GPUS <= eight.nics else "contradicted",
            "8 planes have room for it; 4 planes of such chips do not, unless T0s are oversubscribed, chips "
            "are larger, or several fabrics are joined (the paper has an extension of uSIDs for that)",
        ),
        _claim(
            "NIC links that one T0 module took",
            PAPER + ", fig. 6",
            4,
            four.ports_per_module,
            f"an 800G module has {four.ports_per_module} ports on 4 planes, and {eight.ports_per_module} on "
            "8: a fabric of 4 planes",
            condition=True,
        ),
        _claim(
            "throughput of the job during that flap",
            PAPER + ", fig. 6",
            5.1 / 7.0,
            1 - 1 / four.design.planes,
            "7.0 to 5.1 Pbit/s is 0.73; a synchronous job runs at the speed of a NIC that lost 1 of 4 planes "
            "(0.75). On 8 planes it would be 0.88",
            shown=lambda value: f"{value:.2f}",
            tolerance=0.05,
            condition=True,
        ),
        _claim(
            "queue pairs that a dead T1 hits",
            PAPER + ", fig. 8",
            0.25,
            share,
            f"{ACTIVE_EVS} EVs on 4 planes: {per_plane:.0f} a plane of {four.paths_per_plane} T1s. "
            f"On 8 planes it is {ACTIVE_EVS / eight.design.planes / eight.paths_per_plane:.0%}, with 256 EVs "
            "twice that",
            shown=_percent,
            condition=True,
        ),
        _claim(
            "packets sent again in that minute",
            PAPER + ", fig. 8",
            580_000,
            13.8e-6 * packets,
            f"0.00138 % of {packets:.2g} packets (12.4 Pbit/s for 60 s, 4 KiB each): the figure's percentage "
            "and the text's 580,000 cannot both count the same packets of the whole job",
            shown=lambda value: f"{value:.2g}",
        ),
    ]
