"""Compile a fabric into the static table entries of its switches. This module contacts no switch.

A switch has an entry for its own SID, and an entry with a /48 prefix for every neighbour: a T1, a T0, or the
NIC port of a host (arXiv:2605.04333 section 2.2, Fig. 2). These entries give only the next hop of a path.
Other entries set the rate and the queue depths of each port.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Network

import finsy as fy

from mrclab.controller.queues import queue_setting
from mrclab.p4src.contract import (
    CLASS_ACTIONS,
    MARKING_TABLE,
    MY_SID_TABLE,
    NEXT_HOP_TABLE,
    PORT_QUEUE_TABLE,
    PROBE_VERSION,
    PROBE_VERSION_TABLE,
    SWITCH_MAP,
    TRAFFIC_CLASS_TABLE,
)
from mrclab.topologies import Fabric, Switch, SwitchPort

# The key field of each table, by finsy's short name (dst_addr for hdr.ipv6.dst_addr).
KEY_FIELDS = {
    MY_SID_TABLE: "dst_addr",
    NEXT_HOP_TABLE: "dst_addr",
    TRAFFIC_CLASS_TABLE: "dscp",
    PORT_QUEUE_TABLE: "port",
    MARKING_TABLE: "port",
    PROBE_VERSION_TABLE: "version",
}


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A static entry: a table, a match (a prefix or a number), an action and its parameters."""

    table: str
    match: str
    action: str
    params: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """The identity of an entry: a switch cannot have two entries with equal keys."""
        return self.table, self.match

    def to_p4(self) -> fy.P4TableEntry:
        """Return the entry as an object of finsy, the P4Runtime library."""
        return fy.P4TableEntry(
            self.table,
            match=fy.Match(**{KEY_FIELDS[self.table]: self.match}),
            action=fy.Action(self.action, **dict(self.params)),
        )

    @classmethod
    def from_p4(cls, entry: fy.P4TableEntry) -> Entry:
        """Return the entry that finsy read from a switch."""
        if entry.match is None or not isinstance(entry.action, fy.P4TableAction):
            raise ValueError(f"not a static entry: {entry}")
        found = entry.match[KEY_FIELDS[entry.table_id]]
        match = str(IPv6Network(found)) if isinstance(found, tuple) else str(int(found))
        params = tuple(sorted((name, int(value)) for name, value in entry.action.args.items()))
        return cls(entry.table_id, match, entry.action.name, params)


def switch_entries(fabric: Fabric, switch: Switch) -> tuple[Entry, ...]:
    """Return all static entries of a switch, always in the same order."""
    entries = [Entry(MY_SID_TABLE, str(fabric.sid(switch.usid)), "un")]
    classes = {**SWITCH_MAP, **dict(fabric.classes)}
    entries += [Entry(TRAFFIC_CLASS_TABLE, str(dscp), CLASS_ACTIONS[name]) for dscp, name in classes.items()]
    entries.append(Entry(PROBE_VERSION_TABLE, str(PROBE_VERSION), "record", (("node", switch.usid),)))
    for port in switch.ports:
        usid = fabric.usid_of(port.peer.node, switch.plane)
        params = {
            "port": port.number,
            "src_mac": int.from_bytes(port.mac, "big"),
            "dst_mac": int.from_bytes(port.peer_mac, "big"),
        }
        entries.append(Entry(NEXT_HOP_TABLE, str(fabric.sid(usid)), "forward", tuple(sorted(params.items()))))
        entries += _queue_entries(fabric, switch, port)
    return tuple(sorted(entries))


def _queue_entries(fabric: Fabric, switch: Switch, port: SwitchPort) -> list[Entry]:
    link = fabric.link(switch.name, port.peer.node)
    setting = queue_setting(link.profile, last_hop=link.kind == "host")
    params = {
        "byte_time": setting.byte_time,
        "limit": setting.limit,
        "trim_from": setting.trim_from,
        "trim_limit": setting.trim_limit,
        "trim_dscp": setting.trim_dscp,
    }
    entries = [Entry(PORT_QUEUE_TABLE, str(port.number), "send_at", tuple(sorted(params.items())))]
    if setting.mark is not None:
        start, span = setting.mark
        entries.append(Entry(MARKING_TABLE, str(port.number), "red", (("from", start), ("span", span))))
    return entries


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences between the entries that a switch should have and the entries that it has."""

    switch: str
    missing: tuple[Entry, ...] = ()
    unexpected: tuple[Entry, ...] = ()
    changed: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.changed)

    def __str__(self) -> str:
        parts = []
        for name in ("missing", "unexpected", "changed"):
            entries: tuple[Entry, ...] = getattr(self, name)
            if entries:
                parts.append(f"{len(entries)} {name} ({entries[0].table} {entries[0].match}, ...)")
        return f"{self.switch}: {', '.join(parts) or 'as programmed'}"


def find_drift(switch: str, wanted: tuple[Entry, ...], found: tuple[Entry, ...]) -> Drift:
    """Compare the entries that a switch should have with the entries that were read from it."""
    want = {entry.key: entry for entry in wanted}
    have = {entry.key: entry for entry in found}
    return Drift(
        switch,
        missing=tuple(e for k, e in want.items() if k not in have),
        unexpected=tuple(e for k, e in have.items() if k not in want),
        changed=tuple(e for k, e in want.items() if k in have and have[k] != e),
    )
