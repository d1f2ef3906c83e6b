"""Health of a running fabric: ended switches, Clustermapper's verdicts, retransmissions without a fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from itertools import cycle
from typing import Any, Final

from mrclab.hosts.clustermapper.denylist import Denylist
from mrclab.linux.errors import InputError, SwitchError
from mrclab.testbed.clustermapper import ClustermapperProcess, denylist_file
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.state import work_dir
from mrclab.topologies import Fabric

LOGGER = logging.getLogger(__name__)
INTERVAL_NS = 5_000_000
"""The time, ns, between two rounds of probes. With 1 ms, probing the topology ``lab`` takes half a CPU."""
HEALTHY = frozenset({"delay", "rate"})
"""The kinds of faults that lose no packets, so probes do not find these faults."""


class LiveClustermapper:
    """Clustermapper for the page. Either the page started it, or it runs in another terminal."""

    def __init__(self, network: FabricNetwork) -> None:
        self._network = network
        self._file = denylist_file(network.names)
        self._stack = ExitStack()
        self._ours: ClustermapperProcess | None = None
        self._read_ns = -1
        self._denylist = Denylist()

    def switch(self, on: bool) -> None:
        """Start or end Clustermapper. Raise InputError if it already runs in another terminal."""
        if on == (self._ours is not None):
            return
        if not on:
            self.close()
            return
        if self._file.exists():
            raise InputError("Clustermapper is on already: 'mrclab clustermapper' runs in another terminal")
        directory = work_dir(self._network.names)  # removed with the testbed, even after SIGKILL
        directory.mkdir(exist_ok=True)
        events = directory / "live-clustermapper.jsonl"
        self._stack.callback(events.unlink, missing_ok=True)
        process = ClustermapperProcess(self._network, events, INTERVAL_NS)
        self._ours = self._stack.enter_context(process)

    def seen(self, faults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return Clustermapper's verdicts, as `judged` does, or None if Clustermapper does not run.

        ``faults`` has for each place the ``kind`` of its fault and its time ``t_ns`` (None if unknown).
        """
        self._note_death()
        try:
            changed_ns = self._file.stat().st_mtime_ns
        except FileNotFoundError:
            self._read_ns = -1
            return {"ours": True, "starting": True, "verdicts": [], "missing": []} if self._ours else None
        if changed_ns != self._read_ns:
            self._denylist, self._read_ns = Denylist.load(self._file), changed_ns
        found = judged(self._network.fabric, self._denylist, faults)
        return {"ours": self._ours is not None, "starting": False, **found}

    def _note_death(self) -> None:
        try:
            if self._ours is not None:
                self._ours.require_alive()
        except RuntimeError as error:
            LOGGER.warning("%s", error)
            self.close()
            self._file.unlink(missing_ok=True)

    def close(self) -> None:
        """End Clustermapper if the page started it."""
        self._stack.close()
        self._ours = None


def links_at(fabric: Fabric, place: str) -> frozenset[str]:
    """Return the links that a fault breaks at ``place``, which is a link, NIC port, switch or plane."""
    ports = {port.ifname: f"{host.name}:{port.t0}" for host in fabric.hosts for port in host.ports}
    wanted = ports.get(place, place)
    return frozenset(
        link.name
        for link in fabric.links
        if wanted in (link.name, link.a.node, link.b.node, f"p{link.plane}")
    )


def judged(fabric: Fabric, denylist: Denylist, faults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return Clustermapper's verdicts, whether each verdict is right, and the faults without a verdict.

    A verdict is right if all links that it denies are broken. ``after_ms`` is the time from the fault to the
    verdict, or None if no fault matches the verdict or the fault's time is unknown.
    """
    broken = {place: links_at(fabric, place) for place in faults}
    all_broken: frozenset[str] = frozenset().union(*broken.values())
    verdicts = []
    for verdict in sorted(denylist.verdicts, key=lambda one: one.t_ns):
        denied = Denylist.of(fabric, [verdict], 0).links
        times = [faults[place]["t_ns"] for place, links in broken.items() if links & denied]
        after_ns = [verdict.t_ns - t_ns for t_ns in times if t_ns is not None and t_ns <= verdict.t_ns]
        verdicts.append(
            {
                "place": verdict.place,
                "cause": verdict.cause,
                "ratio": round(verdict.ratio, 4),
                "right": bool(denied) and denied <= all_broken,
                "after_ms": round(min(after_ns) / 1e6, 1) if after_ns else None,
            }
        )
    return {"verdicts": verdicts, "missing": _missing(broken, denylist.links, faults)}


def _missing(
    broken: Mapping[str, frozenset[str]], denied: Iterable[str], faults: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the places of faults that lose packets and for which Clustermapper has no verdict."""
    found = frozenset(denied)
    return sorted(p for p, links in broken.items() if faults[p]["kind"] not in HEALTHY and not links & found)


_MOST_NAMED = 3


class SwitchCheck:
    """A check that all switches still run. It reads the counters of one switch at a time.

    ``ask`` is `mrclab.control.call` for this testbed. It takes a command and the command's arguments.
    """

    def __init__(self, fabric: Fabric, ask: Callable[..., dict[str, Any]]) -> None:
        self._names = cycle(switch.name for switch in fabric.switches)
        self._ask = ask

    def check(self, faults: Collection[str]) -> None:
        """Read the counters of the next switch. Do nothing during faults, because a fault may stop a switch.

        If the switch does not answer, ask all switches. Raise SwitchError if switches do not answer.
        """
        if faults or self._ask("counters", switch=next(self._names))["counters"] is not None:
            return
        status = self._ask("status", verify=False)
        dead = [name for name, switch in status["switches"].items() if switch["counters"] is None]
        if dead and not status["faults"]:
            more = f" and {len(dead) - _MOST_NAMED} more" if len(dead) > _MOST_NAMED else ""
            raise SwitchError(f"switches have died: {', '.join(dead[:_MOST_NAMED])}{more}")


GRACE_NS: Final = 8_000_000_000
"""The time, ns, after the end of a fault during which the fault may still cause retransmissions."""


class LatePackets:
    """The number of packets that each transport sent again: in total, and although there was no fault."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}
        self._earlier: dict[str, int] = {}
        """The packets that connections before the present one sent again."""
        self._counts: dict[str, int] = {}
        self._broken_until_ns = 0

    def begin(self) -> None:
        """Start new counts: new traffic has begun, and its counters begin at zero."""
        self._read.clear()
        self._earlier.clear()
        self._counts.clear()

    def connect(self, name: str) -> None:
        """Record that a transport has connected again, so its counters begin at zero."""
        self._earlier[name] = self.total(name)
        self._read.pop(name, None)

    def total(self, name: str) -> int:
        """Return how many packets all connections of a transport have sent again until the last `take`."""
        return self._earlier.get(name, 0) + self._read.get(name, 0)

    def take(self, name: str, resent: int, now_ns: int, *, broken: bool) -> int:
        """Store the count of packets sent again. Return how many packets were sent again without a fault.

        ``broken`` is true if there is a fault now.
        """
        news = max(0, resent - self._read.get(name, 0))
        self._read[name] = resent
        if broken:
            self._broken_until_ns = now_ns + GRACE_NS
        elif now_ns > self._broken_until_ns:
            self._counts[name] = self._counts.get(name, 0) + news
        return self._counts.get(name, 0)
