"""Faults between routers, of the kinds and by the calls that ``testbed.faults`` has for switches.

Frames are dropped where they come in, by a BPF filter that is exchanged: one netlink request at each end.
What only our switch program can do (corruption, rate) is refused.

The filter that lets frames pass makes them forget the hash that the sender's kernel gave them, which no
cable carries. Routers would spread flows by it, and a sender's TCP changes it with every timeout: a flow
would leave a dead link although no router knows of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from controller.faults import Moment
from linux import bpf, namespaces
from linux import bpf_insn as insn
from linux.errors import InputError
from linux.traffic_control import TrafficControl, ifindex_of
from testbed import links
from testbed.fault_kinds import Fault, checked, switches_at
from topologies import Fabric, Link, PortRef

KINDS = ("blackhole", "loss", "carrier", "port-down", "switch-death", "plane-death")

_PASS = insn.call(insn.SET_HASH_INVALID) + insn.leave(0)  # of the frame in register 1; TC_ACT_OK
_DROP = insn.leave(2)  # TC_ACT_SHOT


def _lose(ratio: float) -> bytes:
    """A program that drops a share of the frames at random."""
    kept = 6  # a register that a call leaves alone
    threshold = min(round(ratio * 2**32), 2**32 - 1)
    return (
        insn.copy(kept, insn.CONTEXT)
        + insn.call(insn.GET_PRANDOM_U32)
        + insn.if_below(insn.RESULT, threshold, _DROP)
        + insn.copy(insn.CONTEXT, kept)
        + _PASS
    )


class FrrFaults:
    """Makes and undoes faults of a routed fabric; everything that they need is prepared beforehand.

    Raises MachineError where the kernel has no clsact or no BPF.
    """

    def __init__(self, fabric: Fabric, places: Mapping[str, str]) -> None:
        self._fabric = fabric
        self._places = places
        self._sockets: dict[str, TrafficControl] = {}
        self._indexes: dict[PortRef, int] = {}
        self._programs: list[int] = []
        self._active: dict[str, Fault] = {}
        try:
            self._pass, self._drop = self._load(_PASS, "pass"), self._load(_DROP, "drop")
            for end in (end for link in fabric.links for end in (link.a, link.b)):
                namespaces.in_thread(lambda end=end: self._attach(end))  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    def _load(self, code: bytes, name: str) -> int:
        self._programs.append(bpf.load_program(code, name))
        return self._programs[-1]

    def _attach(self, end: PortRef) -> None:
        namespaces.enter(self._places[end.node])
        if end.node not in self._sockets:
            self._sockets[end.node] = TrafficControl()
        self._indexes[end] = index = ifindex_of(end.ifname)
        self._sockets[end.node].add_clsact(index)
        self._sockets[end.node].add_filter(index, self._pass, "pass")

    def prepare(self, fault: Fault) -> None:
        """Raises InputError on a fault that ``apply`` would refuse."""
        self._checked(fault)

    def _checked(self, fault: Fault) -> Fault:
        if fault.kind not in KINDS:
            raise InputError(f"{fault.kind}: routers know no such fault ({', '.join(KINDS)})")
        return checked(self._fabric, fault)

    def apply(self, fault: Fault) -> Moment:
        """Makes a fault and says when it took effect.

        Raises InputError on one that makes no sense here or a place that is faulty already.
        """
        fault = self._checked(fault)
        if fault.where in self._active:
            raise InputError(f"{fault.where} is faulty already: restore it first")
        if fault.kind in ("carrier", "port-down"):
            moment = self._interface(fault, up=False)
        else:
            program = self._load(_lose(fault.ratio), "lose") if fault.kind == "loss" else self._drop
            moment = self._filter(self._ends(fault), program)
        self._active[fault.where] = fault
        return moment

    def undo(self, where: str) -> Moment:
        """Undoes the fault of a place and says when. Raises InputError where there is none."""
        fault = self._active.pop(where, None)
        if fault is None:
            raise InputError(f"{where} has no fault to undo")
        if fault.kind in ("carrier", "port-down"):
            return self._interface(fault, up=True)
        return self._filter(self._ends(fault), self._pass)

    def _ends(self, fault: Fault) -> tuple[PortRef, ...]:
        """Where frames are to be dropped as they come in; a dead switch's own words are dropped, too."""
        if fault.kind in ("switch-death", "plane-death"):
            dead = switches_at(self._fabric, fault.where)
            hit = [link for link in self._fabric.links if link.a.node in dead or link.b.node in dead]
            return tuple(end for link in hit for end in (link.a, link.b))
        link = self._link(fault)
        return {"both": (link.a, link.b), "up": (link.b,), "down": (link.a,)}[fault.direction]

    def _link(self, fault: Fault) -> Link:
        if fault.kind == "port-down":
            return next(link for link in self._fabric.links if link.a.ifname == fault.where)
        return self._fabric.link(*fault.where.split(":"))

    def _interface(self, fault: Fault, *, up: bool) -> Moment:
        """A link's carrier goes with its upper end, a NIC's port with its own."""
        link = self._link(fault)
        end = link.a if fault.kind == "port-down" else link.b
        return Moment(*links.set_up(self._places[end.node], end.ifname, up=up), "testbed")

    def _filter(self, ends: Iterable[PortRef], program: int) -> Moment:
        before = time.monotonic_ns()
        for end in ends:
            self._sockets[end.node].add_filter(self._indexes[end], program, "fault")
        return Moment(before, time.monotonic_ns(), "testbed")

    def close(self) -> None:
        """Gives descriptors back; what is attached stays until its interface goes. Again is harmless."""
        for control in self._sockets.values():
            control.close()
        while self._programs:
            os.close(self._programs.pop())
        self._sockets.clear()
