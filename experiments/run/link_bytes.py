"""The bytes that links carry over time, and the link that carries the most bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrclab.linux import namespaces
from mrclab.topologies import Fabric

if TYPE_CHECKING:
    from mrclab.testbed.network import FabricNetwork


PERIOD_NS = 100_000_000


class LinkMeter:
    """Read the byte counters of links every 100 ms.

    ``read`` returns the number of bytes that each interface has sent so far, by the interface's name.
    """

    def __init__(
        self,
        fabric: Fabric,
        links: Sequence[str],
        read: Callable[[], Mapping[str, int]],
        begin_ns: int,
        period_ns: int = PERIOD_NS,
    ) -> None:
        ends = {name: fabric.link(*name.split(":")) for name in links}
        self._ports = {name: (link.a.ifname, link.b.ifname) for name, link in ends.items()}
        self._read = read
        self._begin_ns = begin_ns
        self._period_ns = period_ns
        self._times: list[int] = []
        self._bytes: dict[str, list[int]] = {name: [] for name in links}
        self.next_ns: int | None = begin_ns if links else None
        """When the next reading is due, or None."""

    def act(self, clock: Callable[[], int]) -> None:
        """Take a reading if it is due."""
        if self.next_ns is None or clock() < self.next_ns:
            return
        before = clock()
        counters = self._read()
        after = clock()
        self._times.append((before + after) // 2)
        for name, ports in self._ports.items():
            self._bytes[name].append(sum(counters.get(port, 0) for port in ports))
        self.next_ns += self._period_ns * max(1, -(-(after - self.next_ns) // self._period_ns))

    def series(self, measure_ns: int) -> dict[str, Any]:
        """Return the bytes that each link carried in each period, both directions together.

        ``start_us`` is the time of the first reading since ``measure_ns``. Values between two readings are
        interpolated.
        """
        last_ns = self._times[-1] if self._times else self._begin_ns
        # Imported here, because numpy must not be needed to check a scenario.
        import numpy as np

        edges = np.arange(self._begin_ns, last_ns + 1, self._period_ns)
        carried = {
            name: np.diff(np.interp(edges, self._times, counts)).round().astype(int).tolist()
            for name, counts in self._bytes.items()
            if counts
        }
        start_us = (self._begin_ns - measure_ns) / 1e3
        return {"start_us": start_us, "bin_us": self._period_ns / 1e3, "bytes": carried}


# The file with the counters of all interfaces in the thread's namespace. Netlink would be much slower.
DEVICES = Path("/proc/thread-self/net/dev")
_SENT_BYTES = 8
"""The index of the sent bytes in an interface's counters. The first eight counters are for received data."""


def bytes_carried(network: FabricNetwork) -> dict[str, tuple[int, int]]:
    """Return the numbers of bytes that each interface of a switch has sent and received.

    Raise OSError if a namespace does not exist any more.
    """
    found: dict[str, tuple[int, int]] = {}
    for place in sorted({network.places[switch.name] for switch in network.fabric.switches}):

        def work(place: str = place) -> None:
            namespaces.enter(place)
            found.update(carried_by_interface(DEVICES.read_text(encoding="utf-8")))

        namespaces.in_thread(work)
    return found


def bytes_sent(network: FabricNetwork) -> dict[str, int]:
    """Return the number of bytes that each switch interface has sent. Raise OSError like `bytes_carried`."""
    return {name: sent for name, (sent, _) in bytes_carried(network).items()}


def carried_by_interface(text: str) -> dict[str, tuple[int, int]]:
    """Return the sent and received bytes of each interface, from the text of ``/proc/net/dev`` (proc(5))."""
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        received, sent = (int(numbers.split()[at]) for at in (0, _SENT_BYTES))
        found[name.strip()] = sent, received
    return found


def busiest_link(
    fabric: Fabric, before: Mapping[str, int], after: Mapping[str, int], used: Collection[str]
) -> str:
    """Return the T0-T1 link of ``used`` that carried the most bytes between two readings.

    If several links carried the same number of bytes, return the first of them.
    """

    def carried(name: str) -> int:
        link = fabric.link(*name.split(":"))
        return sum(after.get(end.ifname, 0) - before.get(end.ifname, 0) for end in (link.a, link.b))

    fitting = [link.name for link in fabric.links if link.kind == "fabric" and link.name in used]
    return max(fitting, key=carried)
