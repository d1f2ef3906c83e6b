"""Which link carries the traffic: read off the interfaces' own counters, whatever forwards behind them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from linux import namespaces, rtnetlink
from testbed.network import FabricNetwork
from topologies import Fabric


def bytes_carried(network: FabricNetwork) -> dict[str, tuple[int, int]]:
    """Return the bytes that every switch's interface has sent and received.

    Raise OSError where a namespace is gone.
    """
    found: dict[str, tuple[int, int]] = {}
    for place in sorted({network.places[switch.name] for switch in network.fabric.switches}):

        def work(place: str = place) -> None:
            namespaces.enter(place)
            with rtnetlink.opened() as route:
                for link in route.get_links():
                    stats = link.get_attr("IFLA_STATS64")
                    if stats is not None:
                        found[link.get_attr("IFLA_IFNAME")] = stats["tx_bytes"], stats["rx_bytes"]

        namespaces.in_thread(work)
    return found


def bytes_sent(network: FabricNetwork) -> dict[str, int]:
    """Return the bytes that every switch's interface has sent. Raise OSError where a namespace is gone."""
    return {name: sent for name, (sent, _) in bytes_carried(network).items()}


def busiest_link(
    fabric: Fabric, before: Mapping[str, int], after: Mapping[str, int], used: Collection[str]
) -> str:
    """Return the T0-T1 link of ``used`` whose ends sent most between two readings; the first of equals."""

    def carried(name: str) -> int:
        link = fabric.link(*name.split(":"))
        return sum(after.get(end.ifname, 0) - before.get(end.ifname, 0) for end in (link.a, link.b))

    fitting = [link.name for link in fabric.links if link.kind == "fabric" and link.name in used]
    return max(fitting, key=carried)
