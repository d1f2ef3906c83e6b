"""Faults: one P4Runtime write breaks a link, one heals it, and both know their moment.

Both directions of a link are broken at one of its ends, the switch nearer to the hosts: what it would send
onto the link is dropped by its egress fault table, what arrives by its ingress fault table. Carrier stays up,
so nobody is told.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import finsy as fy
import grpc
from finsy.p4entity import encode_updates
from finsy.p4schema import P4Schema
from finsy.proto import p4r, p4r_grpc, rpc_status

from controller.directions import Direction
from controller.pipeline import Pipeline, shipped_pipeline
from controller.queues import byte_time
from linux.errors import InputError
from p4src.contract import BYTE_TIME_ONE, FAULT_TABLE, RATIO_ONE, TICKS_PER_US
from switches.spec import RunningSwitch
from topologies import Fabric, LinkProfile

FaultKind = Literal["blackhole", "loss", "corruption", "rate"]
FAULT_KINDS: tuple[FaultKind, ...] = ("blackhole", "loss", "corruption", "rate")
BURST_TICKS = TICKS_PER_US * 1000  # by which frames may be ahead of a rate that was cut
MIN_BURST_FRAMES = 16

# Trailing metadata of our own target's Write: CLOCK_MONOTONIC around the map updates themselves.
BEFORE_KEY = "mrclab-t-before-ns"
AFTER_KEY = "mrclab-t-after-ns"
DETAILS_KEY = "grpc-status-details-bin"  # P4Runtime specification, section 12.3: an outcome per update


@dataclass(frozen=True, slots=True)
class LinkFault:
    """What to break: a link by its two ends, how, and which way (``up`` is away from the hosts).

    ``ratio`` is above 0 and at most 1: the share of frames that ``loss`` drops or ``corruption`` flips a bit
    of, or the share of the link's rate that ``rate`` leaves; what is more than that is lost. Shares of frames
    are kept to 2^-32.
    """

    a: str
    b: str
    kind: FaultKind = "blackhole"
    direction: Direction = "both"
    ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Moment:
    """When something took effect: between two stamps of CLOCK_MONOTONIC, and whose clock reading they are."""

    t_before_ns: int
    t_after_ns: int
    stamped_by: Literal["switch", "controller", "testbed"]


@dataclass(frozen=True, slots=True)
class _Place:
    switch: str
    port: int
    egress_way: Direction


class FaultInjector:
    """Writes fault-table entries over a channel of its own, as the controller that is primary.

    ``election_ids`` gives the election id under which each switch's primary runs: P4Runtime takes writes from
    it alone.
    """

    def __init__(
        self,
        fabric: Fabric,
        switches: Sequence[RunningSwitch],
        election_ids: Mapping[str, int],
        pipeline: Pipeline | None = None,
    ) -> None:
        self._fabric = fabric
        self._switches = {s.name: s for s in switches}
        self._election_ids = dict(election_ids)
        self._schema = P4Schema((pipeline or shipped_pipeline()).p4info)
        self._channels: dict[str, grpc.Channel] = {}
        self._active: dict[str, LinkFault] = {}

    def close(self) -> None:
        """Closes the channels. Faults stay as they are."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    @property
    def active(self) -> Mapping[str, LinkFault]:
        """The faults in force, by link."""
        return dict(self._active)

    def prepare(self, fault: LinkFault) -> None:
        """Opens the channel a fault will need, so that opening it does not widen the fault's moment."""
        place = self._place(fault)
        switch = self._switches[place.switch]
        self._stub(switch).Capabilities(p4r.CapabilitiesRequest(), timeout=10)

    def apply(self, fault: LinkFault) -> Moment:
        """Breaks a link. Raises InputError on a link that does not exist or is broken already."""
        place = self._place(fault)
        name = self._fabric.link(fault.a, fault.b).name
        if name in self._active:
            raise InputError(f"link {name} is faulty already: restore it first")
        moment = self._write(place.switch, [+entry for entry in self._entries(fault, place)])
        self._active[name] = fault
        return moment

    def undo(self, a: str, b: str) -> Moment:
        """Heals a link. Raises InputError where it has no fault."""
        if not self._fabric.has_link(a, b):
            raise InputError(f"no link {a} - {b} in topology {self._fabric.name}")
        name = self._fabric.link(a, b).name
        fault = self._active.get(name)
        if fault is None:
            raise InputError(f"link {name} has no fault to undo")
        place = self._place(fault)
        moment = self._write(place.switch, [-entry for entry in self._entries(fault, place)])
        del self._active[name]
        return moment

    def forget(self, a: str, b: str) -> None:
        """Takes a link as healed without a write: for a switch that lost its entries when it ended."""
        self._active.pop(self._fabric.link(a, b).name, None)

    def renew(self, switch: str) -> None:
        """Writes the faults in force to a switch that came back empty: a link does not heal by that."""
        for fault in self._active.values():
            place = self._place(fault)
            if place.switch == switch:
                self._write(switch, [+entry for entry in self._entries(fault, place)])

    def _place(self, fault: LinkFault) -> _Place:
        if not self._fabric.has_link(fault.a, fault.b):
            raise InputError(f"no link {fault.a} - {fault.b} in topology {self._fabric.name}")
        if not 0 < fault.ratio <= 1:
            raise InputError(f"a ratio is above 0 and at most 1, not {fault.ratio}")
        link = self._fabric.link(fault.a, fault.b)
        if link.kind == "host":
            return _Place(link.b.node, link.b.port, "down")
        return _Place(link.a.node, link.a.port, "up")

    def _entries(self, fault: LinkFault, place: _Place) -> list[fy.P4TableEntry]:
        profile = self._fabric.link(fault.a, fault.b).profile
        return fault_entries(fault, place.port, place.egress_way, profile)

    def _stub(self, switch: RunningSwitch) -> p4r_grpc.P4RuntimeStub:
        if switch.grpc_address not in self._channels:
            self._channels[switch.grpc_address] = grpc.insecure_channel(switch.grpc_address)
        return p4r_grpc.P4RuntimeStub(self._channels[switch.grpc_address])

    def _write(self, name: str, entries: Sequence[fy.P4TableEntry]) -> Moment:
        switch = self._switches[name]
        request = p4r.WriteRequest(
            device_id=switch.device_id,
            election_id=_uint128(self._election_ids[name]),
            updates=cast(list[p4r.Update], encode_updates(entries, self._schema)),
        )
        stub = self._stub(switch)
        before = time.monotonic_ns()
        try:
            _, call = stub.Write.with_call(request, timeout=10)
        except grpc.RpcError as error:
            self._take_back(stub, request, error)
            raise
        after = time.monotonic_ns()
        stamps = dict(call.trailing_metadata() or ())
        if BEFORE_KEY in stamps and AFTER_KEY in stamps:
            return Moment(int(stamps[BEFORE_KEY]), int(stamps[AFTER_KEY]), "switch")
        return Moment(before, after, "controller")

    def _take_back(
        self, stub: p4r_grpc.P4RuntimeStub, request: p4r.WriteRequest, error: grpc.RpcError
    ) -> None:
        """Deletes what a write that failed has inserted before it did, and leaves no half of a fault."""
        inserted = [
            p4r.Update(type=p4r.Update.DELETE, entity=update.entity)
            for update, done in zip(request.updates, _outcomes(error), strict=False)
            if done and update.type == p4r.Update.INSERT
        ]
        if inserted:
            with contextlib.suppress(grpc.RpcError):
                undo = p4r.WriteRequest(device_id=request.device_id, election_id=request.election_id)
                undo.updates.extend(inserted)
                stub.Write(undo, timeout=10)


def _outcomes(error: grpc.RpcError) -> list[bool]:
    """Which updates of a failed write were carried out; empty where the switch did not say, so none."""
    trailing: dict[str, Any] = dict(error.trailing_metadata() or ()) if isinstance(error, grpc.Call) else {}
    status = rpc_status.Status.FromString(trailing.get(DETAILS_KEY, b""))
    outcomes = []
    for detail in status.details:
        answer = p4r.Error()
        outcomes.append(detail.Unpack(answer) and answer.canonical_code == 0)
    return outcomes


def _uint128(value: int) -> p4r.Uint128:
    return p4r.Uint128(high=value >> 64, low=value & (1 << 64) - 1)


def fault_entries(
    fault: LinkFault, port: int, egress_way: Direction, profile: LinkProfile
) -> list[fy.P4TableEntry]:
    """The entries that make a fault at a port of a switch, whose egress leads ``egress_way``."""
    controls = []
    if fault.direction in ("both", egress_way):
        controls.append("egress_fault")
    if fault.direction != egress_way:
        controls.append("ingress_fault")
    action, params = _action(fault, profile)
    return [
        fy.P4TableEntry(
            f"{control}.{FAULT_TABLE}",
            match=fy.Match(port=port),
            action=fy.Action(f"{control}.{action}", **params),
        )
        for control in controls
    ]


def _action(fault: LinkFault, profile: LinkProfile) -> tuple[str, dict[str, int]]:
    # 2^32 does not fit the parameter. Where all shall be corrupted, one in 2^32 is left whole.
    ratio = max(round(fault.ratio * RATIO_ONE), 1)
    if fault.kind == "corruption":
        return "corrupt", {"ratio": min(ratio, RATIO_ONE - 1)}
    if fault.kind == "rate":
        rate_bps = max(round(fault.ratio * profile.rate_bps), 1)
        frames = MIN_BURST_FRAMES * profile.mtu_bytes * byte_time(rate_bps) // BYTE_TIME_ONE
        burst = min(max(BURST_TICKS, frames), RATIO_ONE - 1)
        return "limit_rate", {"byte_time": byte_time(rate_bps), "burst": burst}
    if fault.kind == "blackhole" or ratio >= RATIO_ONE:
        return "blackhole", {}
    return "lose", {"ratio": ratio}
