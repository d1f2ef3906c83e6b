"""The link that carries the traffic, by the interfaces' own counters, on any target."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mrclab.linux import namespaces
from mrclab.topologies import Fabric

if TYPE_CHECKING:
    from mrclab.testbed.network import FabricNetwork

# One read for all interfaces of a thread's namespace. With netlink, hundreds of them take seconds.
DEVICES = Path("/proc/thread-self/net/dev")
_SENT_BYTES = 8
"""Index in the numbers of an interface; the eight before it count received traffic."""


def bytes_carried(network: FabricNetwork) -> dict[str, tuple[int, int]]:
    """Return the bytes that every switch's interface has sent and received.

    Raise OSError if a namespace is gone.
    """
    found: dict[str, tuple[int, int]] = {}
    for place in sorted({network.places[switch.name] for switch in network.fabric.switches}):

        def work(place: str = place) -> None:
            namespaces.enter(place)
            found.update(carried_by_interface(DEVICES.read_text(encoding="utf-8")))

        namespaces.in_thread(work)
    return found


def bytes_sent(network: FabricNetwork) -> dict[str, int]:
    """Return the bytes that every switch's interface has sent. Raise OSError if a namespace is gone."""
    return {name: sent for name, (sent, _) in bytes_carried(network).items()}


def carried_by_interface(text: str) -> dict[str, tuple[int, int]]:
    """Return the bytes that each interface has sent and received, by the text of proc(5)'s ``net/dev``."""
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        received, sent = (int(numbers.split()[at]) for at in (0, _SENT_BYTES))
        found[name.strip()] = sent, received
    return found


def busiest_link(
    fabric: Fabric, before: Mapping[str, int], after: Mapping[str, int], used: Collection[str]
) -> str:
    """Return the T0-T1 link of ``used`` whose ends sent most between two readings; the first of equals."""

    def carried(name: str) -> int:
        link = fabric.link(*name.split(":"))
        return sum(after.get(end.ifname, 0) - before.get(end.ifname, 0) for end in (link.a, link.b))

    fitting = [link.name for link in fabric.links if link.kind == "fabric" and link.name in used]
    return max(fitting, key=carried)
