"""Clustermapper for the live page: its findings, set against the present faults."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from mrclab.hosts.clustermapper.denylist import Denylist
from mrclab.linux.errors import InputError
from mrclab.testbed.clustermapper import ClustermapperProcess, denylist_file
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.state import work_dir
from mrclab.topologies import Fabric

LOGGER = logging.getLogger(__name__)
INTERVAL_NS = 5_000_000
"""Between two rounds of probes: at 1 ms the prober would need half a CPU on ``lab``."""
HEALTHY = frozenset({"delay", "rate"})
"""Kinds of faults that lose nothing: probes do not find them."""


class LiveClustermapper:
    """Clustermapper as the page has it: one that the page started, or one of another terminal."""

    def __init__(self, network: FabricNetwork) -> None:
        self._network = network
        self._file = denylist_file(network.names)
        self._stack = ExitStack()
        self._ours: ClustermapperProcess | None = None
        self._read_ns = -1
        self._denylist = Denylist()

    def switch(self, on: bool) -> None:
        """Start or end it. Raise InputError if it is on already, or if the page may not end it."""
        if on == (self._ours is not None):
            return
        if not on:
            self.close()
            return
        if self._file.exists():
            raise InputError("Clustermapper is on already: 'mrclab clustermapper' runs in another terminal")
        directory = work_dir(self._network.names)  # removed with the testbed, even if we are killed
        directory.mkdir(exist_ok=True)
        events = directory / "live-clustermapper.jsonl"
        self._stack.callback(events.unlink, missing_ok=True)
        process = ClustermapperProcess(self._network, events, INTERVAL_NS)
        self._ours = self._stack.enter_context(process)

    def seen(self, faults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return its present verdicts, as `judged` has them; None if it is off.

        ``faults``: by place, with ``kind`` and ``t_ns`` (None: unknown). One that died is off.
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
        """End the page's own."""
        self._stack.close()
        self._ours = None


def links_at(fabric: Fabric, place: str) -> frozenset[str]:
    """Return the links that a fault at a place breaks: a link, a NIC port, a switch or a plane."""
    ports = {port.ifname: f"{host.name}:{port.t0}" for host in fabric.hosts for port in host.ports}
    wanted = ports.get(place, place)
    return frozenset(
        link.name
        for link in fabric.links
        if wanted in (link.name, link.a.node, link.b.node, f"p{link.plane}")
    )


def judged(fabric: Fabric, denylist: Denylist, faults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return Clustermapper's verdicts, each with whether it is right, and the faults that it has not found.

    A verdict is right if all links that it denies are broken. ``after_ms`` is the time from the fault to the
    verdict; None where the fault was there before, or there is none.
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
    """Return the places of faults that lose packets and that no verdict covers."""
    found = frozenset(denied)
    return sorted(p for p, links in broken.items() if faults[p]["kind"] not in HEALTHY and not links & found)
