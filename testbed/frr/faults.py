"""Make faults between routers.

Each end of a link has a BPF filter at ingress, which passes frames. A fault replaces this filter by a filter
that drops frames, with one netlink request for each end. Faults that need mrclab's switch program
(corruption, rate) are refused, and so are faults with phases.

The filter that passes frames also clears the flow hash, which the sender's kernel stores in the frame's
buffer. A real cable does not carry this hash. If it was not cleared, the next router would use the hash to
choose the path. TCP changes the hash after every timeout, so a flow could leave a dead link before a router
notices the fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from mrclab.faults.kinds import KINDS, Fault, Moment, switches_at
from mrclab.faults.registry import Faults, MakeMechanism, SimpleMechanism
from mrclab.linux import bpf, namespaces
from mrclab.linux import bpf_types as insn
from mrclab.linux.traffic_control import TrafficControl, ifindex_of
from mrclab.testbed import links
from mrclab.topologies import Fabric, Link, PortRef

_PASS = insn.call(insn.SET_HASH_INVALID) + insn.leave(0)  # clear the flow hash; TC_ACT_OK: pass the frame
_DROP = insn.leave(2)  # TC_ACT_SHOT: drop the frame


def _lose(ratio: float) -> bytes:
    """Return a BPF program that drops a share of the frames at random and passes the others."""
    kept = 6  # a register that function calls do not change
    threshold = min(round(ratio * 2**32), 2**32 - 1)
    return (
        insn.copy(kept, insn.CONTEXT)
        + insn.call(insn.GET_PRANDOM_U32)
        + insn.if_below(insn.RESULT, threshold, _DROP)
        + insn.copy(insn.CONTEXT, kept)
        + _PASS
    )


class RouterFaults:
    """Make the faults of a routed fabric. All filters are attached in advance, so that a fault is quick.

    Raise MachineError if the kernel lacks clsact or BPF.
    """

    def __init__(self, fabric: Fabric, places: Mapping[str, str]) -> None:
        self._fabric = fabric
        self._places = places
        self._sockets: dict[str, TrafficControl] = {}
        self._indexes: dict[PortRef, int] = {}
        self._programs: list[int] = []
        try:
            self._pass, self._drop = self._load(_PASS, "pass"), self._load(_DROP, "drop")
            for end in (end for link in fabric.links for end in (link.a, link.b)):
                namespaces.in_thread(lambda end=end: self._attach(end))  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    def registry(self) -> Faults:
        """Return a registry with the kinds of faults that routers can have."""
        makers: dict[str, MakeMechanism] = {
            "blackhole": lambda: _Filter(self),
            "loss": lambda: _Filter(self),
            "carrier": lambda: _Interface(self),
            "port-down": lambda: _Interface(self),
            "switch-death": lambda: _Filter(self),
            "plane-death": lambda: _Filter(self),
        }
        return Faults(self._fabric, {kind.name: makers[kind.name] for kind in KINDS.values() if kind.routed})

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

    def drop(self, fault: Fault, *, undo: bool = False) -> Moment:
        """Replace the filters of a fault by filters that drop frames or, for ``undo``, that pass frames."""
        program = self._pass if undo else self._drop
        if fault.kind == "loss" and not undo:
            program = self._load(_lose(fault.ratio), "lose")
        before = time.monotonic_ns()
        for end in self._ends(fault):
            self._sockets[end.node].add_filter(self._indexes[end], program, "fault")
        return Moment(before, time.monotonic_ns(), "testbed")

    def set_up(self, fault: Fault, *, up: bool) -> Moment:
        """Bring up or take down a port: for "port-down" the NIC's port, otherwise the link's upper end."""
        link = self._link(fault)
        end = link.a if fault.kind == "port-down" else link.b
        return Moment(*links.set_up(self._places[end.node], end.ifname, up=up), "testbed")

    def _ends(self, fault: Fault) -> tuple[PortRef, ...]:
        """Return the ports that drop arriving frames: for a dead switch, both ends of all its links."""
        if fault.kind in ("switch-death", "plane-death"):
            dead = switches_at(self._fabric, fault.where)
            touched = [link for link in self._fabric.links if link.a.node in dead or link.b.node in dead]
            return tuple(end for link in touched for end in (link.a, link.b))
        link = self._link(fault)
        return {"both": (link.a, link.b), "up": (link.b,), "down": (link.a,)}[fault.direction]

    def _link(self, fault: Fault) -> Link:
        if fault.kind == "port-down":
            return next(link for link in self._fabric.links if link.a.ifname == fault.where)
        return self._fabric.link(*fault.where.split(":"))

    def close(self) -> None:
        """Close all descriptors. Attached filters stay until their interfaces are deleted.

        A second call has no effect.
        """
        for control in self._sockets.values():
            control.close()
        while self._programs:
            os.close(self._programs.pop())
        self._sockets.clear()


class _Filter(SimpleMechanism):
    """A fault that drops arriving frames by a filter."""

    def __init__(self, faults: RouterFaults) -> None:
        self._faults = faults

    def apply(self, fault: Fault) -> Moment:
        return self._faults.drop(fault)

    def undo(self, fault: Fault) -> Moment:
        return self._faults.drop(fault, undo=True)


class _Interface(SimpleMechanism):
    """A fault that takes an interface down."""

    def __init__(self, faults: RouterFaults) -> None:
        self._faults = faults

    def apply(self, fault: Fault) -> Moment:
        return self._faults.set_up(fault, up=False)

    def undo(self, fault: Fault) -> Moment:
        return self._faults.set_up(fault, up=True)
