"""Checks of lab 1: the sizes of the fabric, a segment list hop by hop, and a packet made by hand."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

from mrclab.labs.checks import Checks, Hint, Student, require
from mrclab.labs.looking import Way, fabric, frames_of, sender_of, way_of
from mrclab.labs.student import Route, followed_route, packet_route

CHECKS = Checks()


@CHECKS.add("planes, switches, hosts, links")
def shape(student: Student) -> None:
    values, known = student.values("answers.yaml"), fabric()
    expected: dict[str, tuple[int, str]] = {
        "planes": (known.planes, "How many ports has a NIC? Each leads to a plane."),
        "t0s_in_a_plane": (2, "Names tell: p0-t0-1 is T0 number 1 of plane 0."),
        "t1s_in_a_plane": (2, "Names tell: p0-t1-1 is T1 number 1 of plane 0."),
        "hosts": (len(known.hosts), "The links from hosts to T0s name them: h0, h1, ..."),
        "links": (
            len(known.links),
            "Count in one plane: each host to its T0, each T0 to each T1. Then count the planes.",
        ),
    }
    for name, (number, hint) in expected.items():
        require(values.get(name) == number, f"{name}: {values.get(name)} is not what the fabric has. {hint}")


@CHECKS.add("paths")
def paths(student: Student) -> None:
    values, known = student.values("answers.yaml"), fabric()
    for name, to, hint in (
        ("paths_h0_to_h2", "h2", "A path is a plane and a T1 in it: count those of all planes."),
        ("paths_h0_to_h1", "h1", "Both are in one rack. Where does a packet turn around?"),
    ):
        require(
            values.get(name) == len(known.paths("h0", to)),
            f"{name}: {values.get(name)} is not what 'mrclab probe h0 {to} --all' shows. {hint}",
        )


@CHECKS.add("the list, hop by hop")
def hops(student: Student) -> None:
    values, route = student.values("answers.yaml"), followed_route(student.variant)
    steps = way_of(_frame_to(route.path().outer_dst), route.src, route.plane).steps
    names = [f"sent_by_{route.src}", *(f"behind_{node.replace('-', '_')}" for node in route.nodes[1:-1])]
    for name, step in zip(names, steps, strict=True):
        found = _address(values.get(name), name)
        left = len([group for group in step.destination.exploded.split(":")[2:] if group != "0000"])
        require(
            found == step.destination,
            f"{name}: {found} is not it. Each switch takes its own uSID out, moves the rest up by 16 bits and "
            f"leaves the block (fcbb:bb00) as it is; here {left} uSIDs are left in the list.",
        )


def _frame_to(address: IPv6Address) -> bytes:
    return bytes(12) + b"\x86\xdd\x60" + bytes(6) + b"\x40" + bytes(16) + address.packed + bytes(8)


def _address(value: Any, name: str) -> IPv6Address:
    try:
        return IPv6Address(str(value))
    except ValueError:
        raise Hint(f"{name}: '{value}' is no IPv6 address.") from None


@CHECKS.add("packet.pcap goes over the path that was asked for")
def packet(student: Student) -> None:
    wanted = packet_route(student.variant)
    try:
        frames = frames_of(student.bytes_of("packet.pcap"))
        require(frames, "packet.pcap has no packet in it.")
        host, plane = sender_of(frames[0])
    except ValueError as error:
        raise Hint(f"packet.pcap: {error}.") from None
    require(
        (host, plane) == (wanted.src, wanted.plane),
        f"Its source MAC is that of {host} in plane {plane}. It should leave from {wanted.src}'s port in plane {wanted.plane}, "
        f"{wanted.src}-eth{wanted.plane}.",
    )
    nic = fabric().host(host).ports[plane]
    require(
        frames[0][:6] == nic.t0_mac,
        f"Its destination MAC is {frames[0][:6].hex(':')}, and the T0's port at the other end of {host}-eth{plane} has another one: it would not take the frame in.",
    )
    source = IPv6Address(frames[0][22:38]) if len(frames[0]) >= 38 else None
    require(
        source == nic.address,
        f"Its source address is {source}. Answers go there: it has to be that of {host}'s NIC port in plane {plane}.",
    )
    try:
        way = way_of(frames[0], host, plane)
    except ValueError as error:
        raise Hint(f"packet.pcap: {error}.") from None
    require(way.nodes == wanted.nodes, reason(way, wanted) + f"\n{way.text()}")


def reason(way: Way, wanted: Route) -> str:
    """Return the hint for a packet that takes a wrong path."""
    first = way.steps[0].destination.exploded.split(":")[2:]
    if way.dropped and any(group != "0000" and not group.startswith(str(wanted.plane)) for group in first):
        return (
            f"The packet is sent in plane {wanted.plane}, but its list names nodes of another plane: the first digit of a uSID says which "
            "plane it is of."
        )
    if way.dropped and len(way.steps) == 1:
        return "The first switch drops it. Which switch gets the packet first, and what does it look for in the first place of the list?"
    if way.dropped:
        return "It is dropped on its way. Each place of the list must name the next node, from the first T0 to the NIC's port."
    return f"It arrives, but at {way.end} by way of {', '.join(way.nodes[1:-1])}. It should go {wanted}: by way of {', '.join(wanted.nodes[1:-1])}."


@CHECKS.add("the questions are answered")
def answers(student: Student) -> None:
    student.answered(4)
