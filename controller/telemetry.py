"""Read P4Runtime entities and counters from switches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from typing import TypeVar, cast

import finsy as fy

from mrclab.p4src.contract import DROP_COUNT, MY_SID_TABLE, NEXT_HOP_TABLE, TICKS_PER_US, Drop
from mrclab.topologies import Switch

E = TypeVar(
    "E",
    bound=fy.P4TableEntry
    | fy.P4CounterEntry
    | fy.P4RegisterEntry
    | fy.P4ActionProfileMember
    | fy.P4ActionProfileGroup,
)


async def read_all(switch: fy.Switch, wanted: Iterable[E]) -> list[E]:
    """Return the switch's entities of the wanted kinds. Raise finsy.P4ClientError if a read fails."""
    # The cast is needed: finsy declares read() as a coroutine, but it is an asynchronous generator.
    answers = cast(AsyncIterator[E], switch.read(wanted))
    return [entity async for entity in answers]


@dataclass(frozen=True, slots=True)
class Count:
    """A number of frames, and their bytes on the wire without the frame check sequence."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """The counters of a port's queue. Bytes are counted before a frame is trimmed.

    ``high`` has the frames sent in the high class, which includes trimmed frames. ``refused`` has the frames
    that were dropped because even a trimmed frame had no room. ``longest_wait_us`` is the longest wait since
    the switch was programmed, as the switch program computes it; None if registers cannot be read (BMv2).
    """

    high: Count
    marked: Count
    trimmed: Count
    refused: Count
    longest_wait_us: float | None


@dataclass(frozen=True, slots=True)
class SwitchCounters:
    """All counters of a switch: of each port and queue, of each drop reason, and of each SID (a /48).

    ``rx_high`` has the received frames of the high class. ``port_drops`` has the frames that a port received
    and the switch dropped, without the frames that a fault dropped on egress.
    """

    switch: str
    rx: Mapping[int, Count]
    rx_high: Mapping[int, Count]
    tx: Mapping[int, Count]
    drops: Mapping[Drop, Count]
    port_drops: Mapping[int, Mapping[Drop, Count]]
    queues: Mapping[int, QueueCounters]
    sids: Mapping[str, Count]


_QUEUES = {"high": "port_tx_high", "marked": "marked", "trimmed": "trimmed", "refused": "refused"}
_PER_PORT = ("port_rx", "port_rx_high", "port_tx", *_QUEUES.values())
_SID_TABLES = (MY_SID_TABLE, NEXT_HOP_TABLE)

_Entry = fy.P4CounterEntry | fy.P4TableEntry | fy.P4RegisterEntry


async def read_counters(switch: fy.Switch, model: Switch) -> SwitchCounters:
    """Read the counters of one connected switch, with one Read for all of its ports.

    If the target cannot read registers, a second Read omits them.
    """
    ports = [port.number for port in model.ports]
    wanted: list[_Entry] = [fy.P4CounterEntry(name, index=port) for name in _PER_PORT for port in ports]
    wanted += [fy.P4CounterEntry(name) for name in ("drops", "egress_drops")]
    wanted += [fy.P4CounterEntry("port_drops", index=_drop_cell(port, d)) for port in ports for d in Drop]
    wanted += [fy.P4TableEntry(table, counter_data=fy.P4CounterData()) for table in _SID_TABLES]
    waits = [fy.P4RegisterEntry("longest_wait", index=port) for port in ports]
    try:
        found = await read_all(switch, [*wanted, *waits])
    except fy.P4ClientError as error:
        if error.code is not fy.GRPCStatusCode.UNIMPLEMENTED:
            raise
        found = await read_all(switch, wanted)
    return _counters(switch.name, ports, found)


def _drop_cell(port: int, reason: Drop) -> int:
    return port * DROP_COUNT + reason


def _counters(switch: str, ports: Sequence[int], found: Iterable[_Entry]) -> SwitchCounters:
    cells: dict[str, dict[int, Count]] = {
        name: {} for name in (*_PER_PORT, "port_drops", "drops", "egress_drops")
    }
    sids: dict[str, Count] = {}
    waits: dict[int, float] = {}
    for entry in found:
        if isinstance(entry, fy.P4CounterEntry):
            if entry.index is not None and entry.packet_count:
                cells[entry.counter_id][entry.index] = Count(entry.packet_count, entry.byte_count)
        elif isinstance(entry, fy.P4RegisterEntry):
            ticks = int(entry.data) if isinstance(entry.data, int) else 0
            if entry.index is not None:
                waits[entry.index] = round(ticks / TICKS_PER_US, 3)
        elif entry.match is not None and entry.counter_data is not None:
            data = entry.counter_data
            address, length = cast(tuple[IPv6Address, int], entry.match["dst_addr"])
            sid = str(IPv6Network((int(IPv6Address(address)), length)))
            sids[sid] = Count(data.packet_count, data.byte_count)
    none = Count(0, 0)
    drops = {**cells["drops"], **cells["egress_drops"]}
    return SwitchCounters(
        switch,
        rx={port: cells["port_rx"].get(port, none) for port in ports},
        rx_high={port: cells["port_rx_high"].get(port, none) for port in ports},
        tx={port: cells["port_tx"].get(port, none) for port in ports},
        drops={reason: drops[reason] for reason in Drop if reason in drops},
        port_drops={
            port: {
                reason: cells["port_drops"][_drop_cell(port, reason)]
                for reason in Drop
                if _drop_cell(port, reason) in cells["port_drops"]
            }
            for port in ports
        },
        queues={
            port: QueueCounters(
                **{what: cells[name].get(port, none) for what, name in _QUEUES.items()},
                longest_wait_us=waits.get(port),
            )
            for port in ports
        },
        sids=sids,
    )
