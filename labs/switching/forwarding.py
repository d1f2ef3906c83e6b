"""Run a student's program in the switches of ``tiny``, in one switch or across the whole fabric (lab 2)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path as FilePath
from typing import Any

from mrclab.labs.checks import Hint
from mrclab.labs.p4 import full_name, model_of, program_of, read_compiled
from mrclab.switches.p4_model import Interpreter, Prefix, Rule
from mrclab.switches.v1model.program import Program
from mrclab.topologies import Fabric, Path, Switch, SwitchPort, load_fabric

HOPS = 64
SIDE = "Every switch on the way has to take one off the hop limit."
MOST_HOPS = 8

Neighbours = Sequence[tuple[IPv6Network, SwitchPort]]
Entries = tuple[list[IPv6Network], list[tuple[IPv6Network, SwitchPort]]]
"""The entries of a switch's tables ``my_sid`` and ``next_hop``."""


@dataclass(frozen=True)
class Sent:
    """A frame that left a switch."""

    port: int
    data: bytes

    @property
    def ethernet(self) -> bytes:
        """The MAC addresses of destination and source."""
        return self.data[:12]

    @property
    def hop_limit(self) -> int:
        """The hop limit of the frame."""
        return self.data[21]

    @property
    def destination(self) -> IPv6Address:
        """The destination address of the frame."""
        return IPv6Address(self.data[38:54])


@dataclass(frozen=True)
class LabSwitch:
    """A switch with a student's program."""

    model: Interpreter

    def send(self, frame: bytes) -> list[Sent]:
        """Return the frames that leave when a frame comes in."""
        return [Sent(port, out) for port, out in self.model.run(1, frame)]


def frame(destination: IPv6Address, hop_limit: int = HOPS) -> bytes:
    """Return a frame whose destination address is a list of uSIDs."""
    head = struct.pack("!IHBB", 6 << 28, 8, 59, hop_limit)
    return (
        b"\x02" * 6
        + b"\x04" * 6
        + b"\x86\xdd"
        + head
        + bytes(15)
        + b"\x01"
        + destination.packed
        + b"payload!"
    )


def own_entries(switch: Switch, block: int = 0xFCBBBB00) -> list[IPv6Network]:
    """Return the entries that ``my_sid`` of a switch should have."""
    return [_sid(switch.usid, block)]


def neighbours_of(switch: Switch, block: int = 0xFCBBBB00) -> list[tuple[IPv6Network, SwitchPort]]:
    """Return the entries that ``next_hop`` of a switch should have."""
    return [(_sid(_usid(port), block), port) for port in switch.ports]


def _usid(port: SwitchPort) -> int:
    fabric = load_fabric("tiny")
    return fabric.usid_of(port.peer.node, fabric.switch(port.ref.node).plane)


def _sid(usid: int, block: int) -> IPv6Network:
    return IPv6Network((block << 96 | usid << 80, 48))


def lab_switch(program: Program, own: Iterable[IPv6Network], neighbours: Neighbours) -> LabSwitch:
    """Return a switch that runs a program, with table entries for its own prefixes and its neighbours."""
    un, forward = full_name(program, "action", "un"), full_name(program, "action", "forward")
    rules = {
        "my_sid": [Rule((_key(prefix),), un) for prefix in own],
        "next_hop": [
            Rule((_key(prefix),), forward, (port.number, _number(port.mac), _number(port.peer_mac)))
            for prefix, port in neighbours
        ],
    }
    return LabSwitch(model_of(program, rules))


def _key(prefix: IPv6Network) -> Prefix:
    return Prefix(int(prefix.network_address), prefix.prefixlen)


def _number(mac: bytes) -> int:
    return int.from_bytes(mac, "big")


def read_entries(values: Mapping[str, Any], switch: Switch) -> Entries:
    """Return the entries in the content of a file. Raise Hint for an entry that cannot be read."""
    own = [_network(entry) for entry in values.get("my_sid") or []]
    neighbours = []
    ports = {port.number: port for port in switch.ports}
    for entry in values.get("next_hop") or []:
        number = entry.get("port") if isinstance(entry, dict) else None
        if number not in ports:
            raise Hint(f"entries.yaml: {entry} needs a port from 1 to {len(ports)}.")
        neighbours.append((_network(entry), ports[number]))
    return own, neighbours


def _network(entry: Any) -> IPv6Network:
    try:
        return IPv6Network(str(entry["prefix"]))
    except (TypeError, KeyError, ValueError) as error:
        raise Hint(f"entries.yaml: {entry} needs a prefix such as fcbb:bb00:400::/48 ({error}).") from None


@dataclass(frozen=True)
class Crossing:
    """A frame's path: each node, the destination of the frame that leaves the node, and the path's end."""

    steps: tuple[tuple[str, IPv6Address], ...]
    end: str
    hop_limit: int
    host: str = ""
    """The host that received the frame, or ""."""

    def text(self) -> str:
        """Return the frame's path as text, with a line for each node."""
        lines = [f"  {node:10} sends it to {destination}" for node, destination in self.steps]
        return "\n".join([*lines, f"  {self.end}"])


def across(fabric: Fabric, program: Program, path: Path, other: Mapping[str, Entries]) -> Crossing:
    """Send a frame over a path, with a program in each switch. ``other`` replaces some switches' entries."""
    sent = Sent(0, frame(path.outer_dst))
    steps: list[tuple[str, IPv6Address]] = [(path.src, path.outer_dst)]
    node = path.nodes[1]
    for _ in range(MOST_HOPS):
        plan = fabric.switch(node)
        own, neighbours = other.get(node, (own_entries(plan), neighbours_of(plan)))
        out = lab_switch(program, own, neighbours).send(sent.data)
        if not out:
            return Crossing(tuple(steps), f"{node:10} drops it", sent.hop_limit)
        sent = out[0]
        steps.append((node, sent.destination))
        ports = {port.number: port.peer.node for port in plan.ports}
        if sent.port not in ports:
            end = f"{node:10} gives it to port {sent.port}, which it has not"
            return Crossing(tuple(steps), end, sent.hop_limit)
        node = ports[sent.port]
        if fabric.tier(node) is None:
            return Crossing(tuple(steps), f"{node:10} receives it", sent.hop_limit, node)
    return Crossing(tuple(steps), "and so on: it goes in a circle", sent.hop_limit)


def show(program: FilePath) -> str:
    """Describe the path of a packet from h0 to h2. ``program`` is a student's folder or a compiled file."""
    fabric = load_fabric("tiny")
    path = next(path for path in fabric.paths("h0", "h2") if "p0-t1-1" in path.nodes)
    loaded = program_of(program) if program.is_dir() else read_compiled(program)
    way = across(fabric, loaded, path, {})
    t0 = fabric.switch(path.nodes[1])
    foreign = _after(
        lab_switch(loaded, own_entries(t0), neighbours_of(t0)), path.outer_dst, path.segments[1:]
    )
    everything = [(IPv6Network("::/0"), t0.port_to(path.nodes[2]))]
    alone = lab_switch(loaded, own_entries(t0), everything).send(frame(path.outer_dst))
    return "\n".join(
        [
            "A packet from h0 to h2:",
            way.text(),
            f"  hop limit {HOPS} at the start, {way.hop_limit} at the end",
            f"What {t0.name} makes of its list, where next_hop takes whatever there is:",
            f"  {alone[0].destination if alone else 'nothing: it drops the packet'}",
            f"What {t0.name} does with a packet whose list begins with another switch's uSID:",
            f"  {f'sends it by port {foreign[0].port}' if foreign else 'drops it'}",
        ]
    )


def _after(switch: LabSwitch, address: IPv6Address, segments: Sequence[int]) -> list[Sent]:
    block = int(address) >> 96 << 96
    rest = sum(usid << 80 - 16 * place for place, usid in enumerate(segments))
    return switch.send(frame(IPv6Address(block | rest)))
