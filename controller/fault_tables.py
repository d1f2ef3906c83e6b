"""Faults in a switch's fault tables: one P4Runtime write breaks a link, another one restores it.

Both directions of a link are broken at one end, the switch nearer to the hosts. The egress fault table of
this switch drops the frames to be sent. Its ingress fault table drops the frames that arrive. The carrier
stays up, so neither end notices the fault.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import finsy as fy
import grpc
from finsy.p4entity import encode_updates
from finsy.p4schema import P4Schema
from finsy.proto import p4r, p4r_grpc, rpc_status

from mrclab.controller.pipeline import Pipeline, shipped_pipeline
from mrclab.controller.queues import byte_time
from mrclab.faults.kinds import Direction, Fault, Moment
from mrclab.linux.scheduling import chosen_wait_ns
from mrclab.p4src.contract import BYTE_TIME_ONE, FAULT_TABLE, RATIO_ONE, TICKS_PER_US
from mrclab.switches.spec import WAIT_KEY, RunningSwitch
from mrclab.topologies import Fabric, LinkProfile

# A fault of kind `rate` allows short bursts. A frame may be sent too early: by at most BURST_TICKS,
# or by the time of MIN_BURST_FRAMES frames if that time is longer.
BURST_TICKS = TICKS_PER_US * 1000
MIN_BURST_FRAMES = 16

# Keys of a Write's trailing metadata, for target ebpf: CLOCK_MONOTONIC before and after the map updates.
BEFORE_KEY = "mrclab-t-before-ns"
AFTER_KEY = "mrclab-t-after-ns"
DETAILS_KEY = "grpc-status-details-bin"  # gRPC metadata: the outcome of each update (P4Runtime, section 12.3)


@dataclass(frozen=True, slots=True)
class _Place:
    switch: str
    port: int
    egress_way: Direction


class FaultTables:
    """Write fault-table entries over a separate channel, as the primary controller.

    ``election_ids`` has the election id of each switch's primary, which P4Runtime requires for writes. The
    caller must check each fault first, and remember the written faults. `TABLE_KINDS` has the allowed kinds.
    """

    def __init__(
        self,
        fabric: Fabric,
        switches: Sequence[RunningSwitch],
        election_ids: Mapping[str, int],
        pipeline: Pipeline | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Set the running switches. ``rng`` draws the random wait before a write (`chosen_wait_ns`)."""
        self._fabric = fabric
        self._rng = rng or random.Random()
        self._switches = {s.name: s for s in switches}
        self._election_ids = dict(election_ids)
        self._schema = P4Schema((pipeline or shipped_pipeline()).p4info)
        self._channels: dict[str, grpc.Channel] = {}
        self._last_write_ns: int | None = None

    def close(self) -> None:
        """Close the channels. Faults stay as they are."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def connect(self, fault: Fault) -> None:
        """Open a fault's channel before the fault is made, so that connecting does not delay the fault."""
        channel = self._channel(self._switches[self.switch_of(fault)])
        grpc.channel_ready_future(channel).cancel()  # begins to connect without waiting

    def wait_connected(self, fault: Fault) -> None:
        """Wait until the switch of a fault answers. Raise grpc.RpcError if no answer arrives within 10 s."""
        switch = self._switches[self.switch_of(fault)]
        self._stub(switch).Capabilities(p4r.CapabilitiesRequest(), timeout=10)

    def insert(self, fault: Fault) -> Moment:
        """Break a link. Raise grpc.RpcError if the switch refuses the entries; then no entry was added."""
        place = self._place(fault)
        return self._write(place.switch, [+entry for entry in self._entries(fault, place)])

    def delete(self, fault: Fault) -> Moment:
        """Restore a link. Raise grpc.RpcError if the switch does not have the entries."""
        place = self._place(fault)
        return self._write(place.switch, [-entry for entry in self._entries(fault, place)])

    def switch_of(self, fault: Fault) -> str:
        """Return the switch that has the entries of a fault."""
        return self._place(fault).switch

    def _place(self, fault: Fault) -> _Place:
        link = self._fabric.link(*fault.where.split(":"))
        if link.kind == "host":
            return _Place(link.b.node, link.b.port, "down")
        return _Place(link.a.node, link.a.port, "up")

    def _entries(self, fault: Fault, place: _Place) -> list[fy.P4TableEntry]:
        profile = self._fabric.link(*fault.where.split(":")).profile
        return fault_entries(fault, place.port, place.egress_way, profile)

    def _channel(self, switch: RunningSwitch) -> grpc.Channel:
        if switch.grpc_address not in self._channels:
            self._channels[switch.grpc_address] = grpc.insecure_channel(switch.grpc_address)
        return self._channels[switch.grpc_address]

    def _stub(self, switch: RunningSwitch) -> p4r_grpc.P4RuntimeStub:
        return p4r_grpc.P4RuntimeStub(self._channel(switch))

    def _write(self, name: str, entries: Sequence[fy.P4TableEntry]) -> Moment:
        switch = self._switches[name]
        request = p4r.WriteRequest(
            device_id=switch.device_id,
            election_id=_uint128(self._election_ids[name]),
            updates=cast(list[p4r.Update], encode_updates(entries, self._schema)),
        )
        stub = self._stub(switch)
        before = time.monotonic_ns()
        since_last_ns = None if self._last_write_ns is None else before - self._last_write_ns
        wait = ((WAIT_KEY, str(chosen_wait_ns(self._rng, since_last_ns))),)
        try:
            _, call = stub.Write.with_call(request, timeout=10, metadata=wait)
        except grpc.RpcError as error:
            self._take_back(stub, request, error)
            raise
        after = self._last_write_ns = time.monotonic_ns()
        stamps = dict(call.trailing_metadata() or ())
        if BEFORE_KEY in stamps and AFTER_KEY in stamps:
            return Moment(int(stamps[BEFORE_KEY]), int(stamps[AFTER_KEY]), "switch")
        return Moment(before, after, "controller")

    def _take_back(
        self, stub: p4r_grpc.P4RuntimeStub, request: p4r.WriteRequest, error: grpc.RpcError
    ) -> None:
        """Delete the entries that a failed write inserted, so that no part of a fault remains."""
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
    """Return for each update of a failed write whether it was carried out, or [] if this is unknown."""
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
    fault: Fault, port: int, egress_way: Direction, profile: LinkProfile
) -> list[fy.P4TableEntry]:
    """Return a fault's entries for a port. ``egress_way`` is the direction of frames that leave the port."""
    controls = []
    if fault.direction in ("both", egress_way):
        controls.append("egress_fault")
    if fault.direction != egress_way:
        controls.append("ingress_fault")
    action, params = _ACTIONS[fault.kind](fault, profile)
    return [
        fy.P4TableEntry(
            f"{control}.{FAULT_TABLE}",
            match=fy.Match(port=port),
            action=fy.Action(f"{control}.{action}", **params),
        )
        for control in controls
    ]


def _blackhole(fault: Fault, profile: LinkProfile) -> tuple[str, dict[str, int]]:
    return "blackhole", {}


def _lose(fault: Fault, profile: LinkProfile) -> tuple[str, dict[str, int]]:
    ratio = max(round(fault.ratio * RATIO_ONE), 1)
    return ("blackhole", {}) if ratio >= RATIO_ONE else ("lose", {"ratio": ratio})


def _corrupt(fault: Fault, profile: LinkProfile) -> tuple[str, dict[str, int]]:
    # The parameter cannot be 2^32. So with a ratio of 1, one frame in 2^32 is not corrupted.
    return "corrupt", {"ratio": min(max(round(fault.ratio * RATIO_ONE), 1), RATIO_ONE - 1)}


def _limit_rate(fault: Fault, profile: LinkProfile) -> tuple[str, dict[str, int]]:
    rate_bps = max(round(fault.ratio * profile.rate_bps), 1)
    frames = MIN_BURST_FRAMES * profile.mtu_bytes * byte_time(rate_bps) // BYTE_TIME_ONE
    burst = min(max(BURST_TICKS, frames), RATIO_ONE - 1)
    return "limit_rate", {"byte_time": byte_time(rate_bps), "burst": burst}


_ACTIONS: Mapping[str, Callable[[Fault, LinkProfile], tuple[str, dict[str, int]]]] = {
    "blackhole": _blackhole,
    "loss": _lose,
    "corruption": _corrupt,
    "rate": _limit_rate,
}
"""For each kind of fault, the action of the fault table and its parameters (p4src/fault.p4)."""
TABLE_KINDS = tuple(_ACTIONS)
"""The kinds of fault that are entries of a fault table."""
