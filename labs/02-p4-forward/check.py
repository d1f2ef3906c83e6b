"""Checks of lab 2: single frames through the program, the static tables, and packets across the fabric."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network

from mrclab.labs.checks import Checks, Hint, Student, require
from mrclab.labs.p4 import program_of
from mrclab.labs.switching.forwarding import (
    SIDE,
    Sent,
    across,
    frame,
    lab_switch,
    neighbours_of,
    own_entries,
    read_entries,
)
from mrclab.topologies import load_fabric

CHECKS = Checks()
TINY = load_fabric("tiny")
T0 = TINY.switch("p0-t0-0")
PATH = next(path for path in TINY.paths("h0", "h2") if "p0-t1-1" in path.nodes)
UP = T0.port_to("p0-t1-1")


@CHECKS.add("there is a program", gate=True)
def program(student: Student) -> None:
    program_of(student.folder)


@CHECKS.add("un: its own uSID goes, the rest moves up, the block stays")
def shift(student: Student) -> None:
    rest = IPv6Address(int(PATH.outer_dst) >> 96 << 96 | int(PATH.outer_dst) << 16 & (1 << 96) - 1)
    out = lab_switch(program_of(student.folder), own_entries(T0), [(IPv6Network("::/0"), UP)]).send(
        frame(PATH.outer_dst)
    )
    require(
        out,
        "A packet with a list for this switch is dropped, though next_hop has an entry for everything here.",
    )
    found = out[0].destination
    seen = f"\n  in   {PATH.outer_dst}\n  out  {found}\n"
    require(found != PATH.outer_dst, f"The list leaves as it came: un does nothing yet (GAP 1).{seen}")
    require(
        int(found) >> 96 == int(PATH.outer_dst) >> 96,
        f"The block (the first 32 bits) has changed: it is no part of the list, and must stay where it is when the rest moves.{seen}",
    )
    require(
        found == rest, f"The list should lose its first uSID, 16 bits, and end in 16 bits of zeros.{seen}"
    )


@CHECKS.add("forward: the port, both Ethernet addresses, and one hop less")
def forward(student: Student) -> None:
    packet = _through_t0(student)
    require(packet.port == UP.number, f"It leaves by port {packet.port}, and next_hop says {UP.number}.")
    require(
        packet.ethernet == UP.peer_mac + UP.mac,
        "Its Ethernet addresses are not those of the entry. The next switch takes in what is addressed to its own port.",
    )
    require(
        packet.hop_limit == 63,
        f"It came with hop limit 64 and leaves with {packet.hop_limit}. What would end a packet that goes in a circle?",
    )


def _through_t0(student: Student) -> Sent:
    out = lab_switch(program_of(student.folder), own_entries(T0), neighbours_of(T0)).send(
        frame(PATH.outer_dst)
    )
    if not out:
        raise Hint(
            f"A packet to {PATH.outer_dst} is dropped at p0-t0-0. next_hop knows the uSIDs of neighbours only: "
            "which uSID stands first in the list at the moment when next_hop is asked?"
        )
    return out[0]


@CHECKS.add("what is not for this switch is dropped")
def dropped(student: Student) -> None:
    switch = lab_switch(program_of(student.folder), own_entries(T0), neighbours_of(T0))
    list_behind = IPv6Address(int(PATH.outer_dst) >> 96 << 96 | int(PATH.outer_dst) << 16 & (1 << 96) - 1)
    out = switch.send(frame(list_behind))
    require(
        not out,
        f"A packet to {list_behind} begins with the uSID of p0-t1-1, not of this switch, and still leaves by port "
        f"{out[0].port if out else 0}. What is done where my_sid has no entry?",
    )
    unknown = IPv6Address(int(PATH.outer_dst) ^ 0x00FF << 64)
    out = switch.send(frame(unknown))
    require(
        not out,
        f"A packet to {unknown} has a next uSID that no neighbour has, and is sent on. What is done where next_hop has no entry?",
    )
    require(not switch.send(frame(PATH.outer_dst, hop_limit=1)), "A packet with hop limit 1 is sent on.")


@CHECKS.add("the static tables of p0-t0-1")
def tables(student: Student) -> None:
    switch = TINY.switch("p0-t0-1")
    own, neighbours = read_entries(student.values("entries.yaml"), switch)
    wanted = own_entries(switch)
    require(
        own, "entries.yaml: my_sid of p0-t0-1 has no entry yet. Its uSID is 0401: T0 number 1 of plane 0."
    )
    for prefix in (*own, *(prefix for prefix, _ in neighbours)):
        require(
            prefix.prefixlen == 48,
            f"entries.yaml: {prefix} has {prefix.prefixlen} bits. The switch must find its entry whatever is behind the first uSID: "
            "how many bits are the block and one uSID?",
        )
    require(
        own == wanted,
        f"entries.yaml: my_sid has {', '.join(map(str, own))}. It needs the uSID of p0-t0-1 itself, and no other.",
    )
    expected = dict(neighbours_of(switch))
    found = dict(neighbours)
    missing = [port.peer.node for prefix, port in expected.items() if prefix not in found]
    require(
        not missing,
        f"entries.yaml: next_hop knows no way to {', '.join(missing)}. A T0 has hosts below and T1s above.",
    )
    for prefix, port in found.items():
        require(prefix in expected, f"entries.yaml: {prefix} is no neighbour of p0-t0-1.")
        require(
            port == expected[prefix],
            f"entries.yaml: {prefix} is {expected[prefix].peer.node}, which is not behind port {port.number}.",
        )


@CHECKS.add("packets cross the fabric on every path")
def cross(student: Student) -> None:
    program = program_of(student.folder)
    student_entries = read_entries(student.values("entries.yaml"), TINY.switch("p0-t0-1"))
    for src, dst in (("h0", "h2"), ("h3", "h0"), ("h2", "h3")):
        for path in TINY.paths(src, dst):
            if path.plane == 0:
                way = across(TINY, program, path, {"p0-t0-1": student_entries})
                require(
                    way.host == dst,
                    f"A packet from {src} to {dst} by {', '.join(path.nodes[1:-1])}:\n{way.text()}",
                )
                require(way.hop_limit == 64 - len(path.nodes) + 2, f"{SIDE}\n{way.text()}")


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
