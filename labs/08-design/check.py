"""Checks of lab 8: the formulas agree with mrclab's model, and the student's design meets the requirements."""

from __future__ import annotations

from math import isclose
from typing import Any

from mrclab.labs.checks import Checks, Student, require
from mrclab.labs.student import wanted_nics
from mrclab.scale.fabric import Built, Design, blast_radius
from mrclab.scale.parts import Parts

CHECKS = Checks()
CHIP_GBPS, NIC_GBPS = 51_200, 800
DESIGNS = [(tiers, planes) for tiers in (1, 2, 3) for planes in (1, 2, 4, 8, 16)]


def full(tiers: int, planes: int) -> Built:
    return Design(tiers, planes, Parts()).built()


def formula(student: Student, name: str) -> Any:
    return getattr(student.load("fabric.py"), name)


def taken(built: Built, kind: str) -> float:
    return next(blast.of_each for blast in blast_radius(built) if blast.kind == kind)


@CHECKS.add("ports of a switch")
def ports(student: Student) -> None:
    for planes in (1, 4, 8):
        found, expected = formula(student, "radix")(CHIP_GBPS, NIC_GBPS, planes), 64 * planes
        require(
            found == expected,
            f"With {planes} planes a port has {NIC_GBPS // planes} Gbit/s, so a chip of {CHIP_GBPS:,} Gbit/s is split "
            f"into {expected} ports, not {found}. More planes: slower ports, and more of them.",
        )


@CHECKS.add("room for NICs")
def room(student: Student) -> None:
    for tiers, planes in DESIGNS:
        built = full(tiers, planes)
        k = built.design.radix
        found = formula(student, "most_nics")(k, tiers)
        require(
            found == built.nics,
            f"{tiers} tiers of switches with {k} ports have room for {built.nics:,} NICs, not {found:,}. Start with "
            "one tier, where all ports lead to NICs; each further tier multiplies the room by half the ports.",
        )


@CHECKS.add("switches")
def switches(student: Student) -> None:
    for tiers, planes in DESIGNS:
        built = full(tiers, planes)
        k = built.design.radix
        found = formula(student, "switches")(built.nics, k, tiers, planes)
        one_plane = built.switches // planes
        if found == one_plane and planes > 1:
            require(
                False,
                f"{found:,} switches are those of one plane. How many planes are there? ({tiers} tiers, {planes} planes)",
            )
        require(
            found == built.switches,
            f"{tiers} tiers, {planes} planes, {k} ports, {built.nics:,} NICs: {built.switches:,} switches, not {found:,}. "
            "In the top tier all ports lead down, so it needs half as many switches as each tier below; with one "
            "tier that is a single switch per plane.",
        )


@CHECKS.add("paths")
def paths(student: Student) -> None:
    for tiers, planes in DESIGNS:
        built = full(tiers, planes)
        k = built.design.radix
        found = formula(student, "paths")(k, tiers, planes)
        expected = planes * (k // 2) ** (tiers - 1)
        require(
            found == expected,
            f"{tiers} tiers, {planes} planes, {k} ports: {expected:,} paths, not {found:,}. On the way up every tier but "
            "the top offers half of its ports; the way down is then given. Each plane has as many.",
        )


@CHECKS.add("what a port and an uplink take")
def blast(student: Student) -> None:
    for planes in (2, 4, 8):
        built = full(2, planes)
        k = built.design.radix
        port, uplink = formula(student, "lost_with_port")(planes), formula(student, "lost_with_uplink")(k)
        require(
            isclose(port, taken(built, "NIC-T0 link")),
            f"With {planes} planes a NIC has {planes} ports; one of them is not {port:.3g} of its bandwidth.",
        )
        expected = taken(built, "T0-T1 link")
        require(
            isclose(uplink, expected),
            f"A T0 with {k} ports has {k // 2} uplinks, so one is {expected:.2%} of its plane; you have {uplink:.2%}. All "
            "planes are kept equally loaded, so it is this share of all of the NIC's bandwidth, and no plane makes "
            "up for it.",
        )


@CHECKS.add("the choice meets the requirements")
def choice(student: Student) -> None:
    design, nics = chosen(student), wanted_nics(student.variant)
    say = f"{design.name}:"
    require(
        design.port_bps >= 100e9, f"{say} ports of {design.port_bps / 1e9:g} Gbit/s are slower than allowed."
    )
    require(
        design.most_nics >= nics,
        f"{say} there is room for {design.most_nics:,} NICs, and {nics:,} are wanted. What gives a switch more ports?",
    )
    built = design.built(nics)
    require(
        built.longest_path <= 3,
        f"{say} the longest path has {built.longest_path} switches. Each tier adds two: what can be had with fewer tiers?",
    )
    port, uplink = taken(built, "NIC-T0 link"), taken(built, "T0-T1 link")
    require(port <= 0.15, f"{say} a NIC that loses a port loses {port:.1%}. More planes: smaller parts.")
    require(
        uplink <= 0.005,
        f"{say} an uplink takes {uplink:.2%} from the NICs below. What makes an uplink a smaller part?",
    )


def chosen(student: Student) -> Design:
    values = student.values("choice.yaml")
    tiers, planes = values.get("tiers"), values.get("planes")
    require(
        isinstance(tiers, int) and isinstance(planes, int) and 1 <= tiers <= 4 and 1 <= planes <= 16,
        "choice.yaml: tiers must be from 1 to 4 and planes from 1 to 16.",
    )
    assert isinstance(tiers, int)
    assert isinstance(planes, int)
    design = Design(tiers, planes, Parts())
    require(
        design.radix % 2 == 0 and CHIP_GBPS * planes % NIC_GBPS == 0,
        "A switch needs an even number of ports.",
    )
    return design


@CHECKS.add("the numbers of the choice are those of the model")
def numbers(student: Student) -> None:
    design, nics = chosen(student), wanted_nics(student.variant)
    require(design.most_nics >= nics, "A design without room for the NICs has no numbers.")
    built = design.built(nics)
    values = student.values("choice.yaml")
    for name, expected in {
        "switches": built.switches,
        "optical_modules": built.modules,
        "power_mw": built.power_w / 1e6,
        "cost_of_a_nics_share": built.cost / nics,
    }.items():
        found = values.get(name)
        require(
            isinstance(found, int | float) and isclose(found, expected, rel_tol=0.01),
            f"choice.yaml: {name} is {found}, which the model does not say of {built.design.name} for {nics:,} NICs. A fabric "
            f"that is not full has fewer switches: mrclab scale --nics {nics} --planes {built.design.planes} "
            f"--tiers {built.design.tiers} --only fabric.",
        )


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
