"""Broken links between routers: frames dropped in silence, or the carrier gone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from switches.ebpf import bpf
from switches.ebpf.tc import TrafficControl, ifindex_of
from testbed import links, namespaces
from topologies import Fabric, Link, PortRef

# Two BPF programs of two instructions, r0 = verdict; exit. They are attached where frames come in.
_EXIT = bytes([0x95, 0, 0, 0, 0, 0, 0, 0])
_PASS = bytes([0xB7, 0, 0, 0, 0, 0, 0, 0]) + _EXIT  # TC_ACT_OK
_DROP = bytes([0xB7, 0, 0, 0, 2, 0, 0, 0]) + _EXIT  # TC_ACT_SHOT


class LinkFaults:
    """Cuts and heals the links between a fabric's routers.

    Everything is prepared beforehand, so that a cut is one netlink request at each end. Raises MachineError
    where the kernel has no clsact or no BPF.
    """

    def __init__(self, fabric: Fabric, places: Mapping[str, str]) -> None:
        self._places = places
        self._sockets: dict[str, TrafficControl] = {}
        self._indexes: dict[PortRef, int] = {}
        self._programs: list[int] = []
        self._cut: dict[str, str] = {}
        self._links = [link for link in fabric.links if link.kind == "fabric"]
        try:
            self._passes, self._drops = self._load(_PASS, "pass"), self._load(_DROP, "drop")
            for end in (end for link in self._links for end in (link.a, link.b)):
                namespaces.in_thread(lambda end=end: self._prepare(end))  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    def _load(self, code: bytes, name: str) -> int:
        self._programs.append(bpf.load_program(code, name))
        return self._programs[-1]

    def _prepare(self, end: PortRef) -> None:
        namespaces.enter(self._places[end.node])
        if end.node not in self._sockets:
            self._sockets[end.node] = TrafficControl()
        self._indexes[end] = index = ifindex_of(end.ifname)
        self._sockets[end.node].add_clsact(index)
        self._sockets[end.node].add_filter(index, self._passes, "pass")

    def cut(self, link: Link, direction: str = "both") -> tuple[int, int]:
        """Drops what a link carries, carrier up. Returns CLOCK_MONOTONIC ns before and after.

        ``direction`` is ``both``, ``up`` (away from the hosts, so dropped at the upper end) or ``down``.
        """
        self._cut[link.name] = direction
        return self._run(_ends(link, direction), self._drops)

    def heal(self, link: Link) -> tuple[int, int]:
        """Lets frames through again. Returns CLOCK_MONOTONIC ns before and after.

        Raises KeyError where the link was not cut.
        """
        return self._run(_ends(link, self._cut.pop(link.name)), self._passes)

    def set_carrier(self, link: Link, *, up: bool) -> tuple[int, int]:
        """Takes a link's carrier away by downing its upper end, or gives it back."""
        before = time.monotonic_ns()
        links.set_up(self._places[link.b.node], link.b.ifname, up=up)
        return before, time.monotonic_ns()

    def _run(self, ends: tuple[PortRef, ...], program: int) -> tuple[int, int]:
        before = time.monotonic_ns()
        for end in ends:
            self._sockets[end.node].add_filter(self._indexes[end], program, "fault")
        return before, time.monotonic_ns()

    def close(self) -> None:
        """Gives the descriptors back; what is attached stays until the interface goes. Again is harmless."""
        for control in self._sockets.values():
            control.close()
        while self._programs:
            os.close(self._programs.pop())
        self._sockets.clear()


def _ends(link: Link, direction: str) -> tuple[PortRef, ...]:
    return {"both": (link.a, link.b), "up": (link.b,), "down": (link.a,)}[direction]
