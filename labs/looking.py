"""Follow one frame through the fabric ``tiny``, switch by switch (lab 1).

``python -m mrclab.labs.looking FILE`` prints the path of the first frame of a capture. It needs no running
fabric: it uses the simulator's switches, which the tests compare with the P4 program frame by frame.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

from mrclab.p4src.contract import Drop
from mrclab.simulator.network import Network
from mrclab.simulator.port import Hop
from mrclab.simulator.switch import HOP_LIMIT, OUTER_END, ClassMap, Switch, destination, packet_of
from mrclab.topologies import Fabric, load_fabric

_IPV6 = 0x86DD
_RECORD_BYTES, _HEADER_BYTES = 16, 24
_ETHERNET = 1
_LONGEST = 16

REASONS = {
    Drop.HOP_LIMIT: "its hop limit is used up",
    Drop.NOT_OUR_SID: "the list does not begin with the uSID of this switch",
    Drop.NO_ROUTE: "the next uSID is not that of a neighbour",
    Drop.LIST_ENDED: "the list has ended here",
}


@dataclass(frozen=True)
class Step:
    """A frame when it leaves a node, with its destination address."""

    node: str
    destination: IPv6Address


@dataclass(frozen=True)
class Way:
    """The nodes that a frame passes, and the last node: a host, or a switch that dropped the frame."""

    steps: tuple[Step, ...]
    end: str
    dropped: str = ""
    """The reason why the frame was dropped, or "" if it reached a host."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes on the frame's path, including the last node."""
        return (*(step.node for step in self.steps), self.end)

    def text(self) -> str:
        """Return the frame's path as text, with a line for each node."""
        lines = [f"{step.node:10} sends it to {step.destination}" for step in self.steps]
        last = f"{self.end:10} drops it: {self.dropped}" if self.dropped else f"{self.end:10} receives it"
        return "\n".join([*lines, last])


def fabric() -> Fabric:
    """Return the fabric of the lab."""
    return load_fabric("tiny")


def frames_of(capture: bytes) -> list[bytes]:
    """Return the frames of a pcap file with Ethernet headers. Raise ValueError for any other file."""
    if len(capture) < _HEADER_BYTES:
        raise ValueError("it is no pcap file")
    order = next(
        (o for o in "<>" if struct.unpack_from(f"{o}I", capture)[0] in (0xA1B2C3D4, 0xA1B23C4D)), None
    )
    if order is None:
        raise ValueError("it is no pcap file (pcapng is another format)")
    (linktype,) = struct.unpack_from(f"{order}I", capture, 20)
    if linktype != _ETHERNET:
        raise ValueError("its frames have no Ethernet header: begin the packet with Ether()")
    frames, at = [], _HEADER_BYTES
    while at + _RECORD_BYTES <= len(capture):
        (length,) = struct.unpack_from(f"{order}I", capture, at + 8)
        frames.append(capture[at + _RECORD_BYTES : at + _RECORD_BYTES + length])
        at += _RECORD_BYTES + length
    return frames


def way_of(frame: bytes, host: str, plane: int) -> Way:
    """Return the path of a frame that a host sends into a plane.

    Raise ValueError if the frame has no IPv6 header, because switches forward by that header.
    """
    if len(frame) < OUTER_END or int.from_bytes(frame[12:14], "big") != _IPV6:
        raise ValueError("it is no IPv6 packet")
    network = Network(fabric())
    port = network.links[host, network.fabric.host(host).ports[plane].t0]
    packet = packet_of(frame, Hop(destination(frame), frame[HOP_LIMIT], port, 0, False), ClassMap())
    steps = [Step(host, IPv6Address(packet.hop.dst))]
    node = port.peer
    while isinstance(node, Switch) and len(steps) < _LONGEST:
        hop = node.decide(packet)
        if hop.out is None:
            reason = Drop(hop.drop)
            return Way(tuple(steps), node.name, REASONS.get(reason, reason.name.lower()))
        packet.hop = hop
        steps.append(Step(node.name, IPv6Address(hop.dst)))
        far = hop.out.name.split(">")[1]
        node = network.switches.get(far)
        if node is None:
            return Way(tuple(steps), far)
    return Way(tuple(steps), steps[-1].node, "it went in a circle")


def sender_of(frame: bytes) -> tuple[str, int]:
    """Return the host and plane of the NIC port with the frame's source MAC, or raise ValueError."""
    for host in fabric().hosts:
        for port in host.ports:
            if port.mac == frame[6:12]:
                return host.name, port.plane
    mac = frame[6:12].hex(":")
    raise ValueError(f"no NIC port has its source MAC {mac}: 'ip link' in a host's namespace shows them")


def main(file: str) -> int:
    """Print the path of a capture's first frame. Return 2 if the capture has no frame."""
    try:
        frame = frames_of(Path(file).read_bytes())[0]
        print(way_of(frame, *sender_of(frame)).text())
    except IndexError:
        print(f"{file}: there is no frame in it", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"{file}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or ["packet.pcap"]))
