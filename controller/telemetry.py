"""What the switches count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import finsy as fy

from controller.queues import TICKS_PER_US
from controller.reading import read_all
from topologies import Switch


class Drop(IntEnum):
    """Why a switch dropped a frame; the values are those of `drop_t` in p4src/headers.p4."""

    NOT_IPV6 = 1
    HOP_LIMIT = 2
    NOT_OUR_SID = 3
    NO_ROUTE = 4
    FAULT_INGRESS = 5
    FAULT_EGRESS = 6
    QUEUE_FULL = 7
    TRIM_LIMIT = 8
    LIST_ENDED = 9
    SRH_UNREAD = 10
    SRH_WRONG = 11


@dataclass(frozen=True, slots=True)
class Count:
    """Frames, and their bytes as on the wire without the frame check sequence."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """What became of frames in front of a port. Bytes are those before a frame was trimmed.

    ``high`` left in the high class, which trimmed ones do; ``refused`` had no room, not even trimmed.
    ``longest_wait_us`` is the longest that a frame had to wait there since the switch was programmed, as the
    switch program reckons it; None where the target lets nobody read registers (BMv2).
    """

    high: Count
    marked: Count
    trimmed: Count
    refused: Count
    longest_wait_us: float | None


@dataclass(frozen=True, slots=True)
class SwitchCounters:
    """All counters of a switch: by port number, and drops by reason."""

    switch: str
    rx: Mapping[int, Count]
    tx: Mapping[int, Count]
    drops: Mapping[Drop, Count]
    queues: Mapping[int, QueueCounters]


_QUEUES = {"high": "port_tx_high", "marked": "marked", "trimmed": "trimmed", "refused": "refused"}


async def read_counters(switch: fy.Switch, model: Switch) -> SwitchCounters:
    """Reads the counters of one switch, which must be connected."""
    names = ("port_rx", "port_tx", "drops", "egress_drops", *_QUEUES.values())
    cells: dict[str, dict[int, Count]] = {name: {} for name in names}
    for entry in await read_all(switch, [fy.P4CounterEntry(name) for name in names]):
        if entry.index is not None and entry.packet_count:
            cells[entry.counter_id][entry.index] = Count(entry.packet_count, entry.byte_count)
    none = Count(0, 0)
    ports = [port.number for port in model.ports]
    drops = {**cells["drops"], **cells["egress_drops"]}
    waits = await _longest_waits(switch)
    return SwitchCounters(
        switch.name,
        rx={port: cells["port_rx"].get(port, none) for port in ports},
        tx={port: cells["port_tx"].get(port, none) for port in ports},
        drops={reason: drops[reason] for reason in Drop if reason in drops},
        queues={
            port: QueueCounters(
                **{what: cells[name].get(port, none) for what, name in _QUEUES.items()},
                longest_wait_us=None if waits is None else round(waits[port] / TICKS_PER_US, 3),
            )
            for port in ports
        },
    )


async def _longest_waits(switch: fy.Switch) -> list[int] | None:
    """The register `longest_wait`, in ticks by port number; None where the target shows no registers."""
    try:
        entries = await read_all(switch, [fy.P4RegisterEntry("longest_wait")])
    except fy.P4ClientError as error:
        if error.code is fy.GRPCStatusCode.UNIMPLEMENTED:
            return None
        raise
    return [int(entry.data) if isinstance(entry.data, int) else 0 for entry in entries]
