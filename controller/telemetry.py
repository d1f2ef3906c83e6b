"""What the switches count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import finsy as fy

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


@dataclass(frozen=True, slots=True)
class Count:
    """Frames, and their bytes as on the wire without the frame check sequence."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SwitchCounters:
    """All counters of a switch: by port number, and drops by reason."""

    switch: str
    rx: Mapping[int, Count]
    tx: Mapping[int, Count]
    drops: Mapping[Drop, Count]


async def read_counters(switch: fy.Switch, model: Switch) -> SwitchCounters:
    """Reads the counters of one switch, which must be connected."""
    names = ("port_rx", "port_tx", "drops", "egress_drops")
    cells: dict[str, dict[int, Count]] = {name: {} for name in names}
    for entry in await read_all(switch, [fy.P4CounterEntry(name) for name in names]):
        if entry.index is not None and entry.packet_count:
            cells[entry.counter_id][entry.index] = Count(entry.packet_count, entry.byte_count)
    none = Count(0, 0)
    ports = [port.number for port in model.ports]
    drops = {**cells["drops"], **cells["egress_drops"]}
    return SwitchCounters(
        switch.name,
        rx={port: cells["port_rx"].get(port, none) for port in ports},
        tx={port: cells["port_tx"].get(port, none) for port in ports},
        drops={reason: drops[reason] for reason in Drop if reason in drops},
    )
