"""Compiles a fabric into the static table entries of its switches. Pure: no switch is talked to.

A T0 knows its own SID, one /48 for every T1 above it and one for every NIC port below it; a T1 knows its
own SID and one /48 for every T0 below it (arXiv:2605.04333 section 2.2, Fig. 2). No switch ever knows more.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Network

import finsy as fy

from topologies import Fabric, Switch

MY_SID = "my_sid"
NEXT_HOP = "next_hop"
DESTINATION = "dst_addr"  # finsy's short name for the key field hdr.ipv6.dst_addr


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One static entry: a table, the prefix it matches, an action and the action's parameters."""

    table: str
    prefix: str
    action: str
    params: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What makes an entry the same entry: two with equal keys cannot both be in a switch."""
        return self.table, self.prefix

    def to_p4(self) -> fy.P4TableEntry:
        """The entry as finsy writes it."""
        return fy.P4TableEntry(
            self.table,
            match=fy.Match(**{DESTINATION: self.prefix}),
            action=fy.Action(self.action, **dict(self.params)),
        )

    @classmethod
    def from_p4(cls, entry: fy.P4TableEntry) -> Entry:
        """An entry as finsy read it from a switch."""
        if entry.match is None or not isinstance(entry.action, fy.P4TableAction):
            raise ValueError(f"not a static entry: {entry}")
        value, length = entry.match[DESTINATION]
        prefix = str(IPv6Network((value, length)))
        params = tuple(sorted((name, int(value)) for name, value in entry.action.args.items()))
        return cls(entry.table_id, prefix, entry.action.name, params)


def switch_entries(fabric: Fabric, switch: Switch) -> tuple[Entry, ...]:
    """Every static entry of one switch, in a stable order."""
    entries = [Entry(MY_SID, str(fabric.sid(switch.usid)), "un")]
    for port in switch.ports:
        usid = fabric.usid_of(port.peer.node, switch.plane)
        params = {
            "port": port.number,
            "src_mac": int.from_bytes(port.mac, "big"),
            "dst_mac": int.from_bytes(port.peer_mac, "big"),
        }
        entries.append(Entry(NEXT_HOP, str(fabric.sid(usid)), "forward", tuple(sorted(params.items()))))
    return tuple(sorted(entries))


@dataclass(frozen=True, slots=True)
class Drift:
    """How a switch differs from what it should hold."""

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
                parts.append(f"{len(entries)} {name} ({entries[0].table} {entries[0].prefix}, ...)")
        return f"{self.switch}: {', '.join(parts) or 'as programmed'}"


def find_drift(switch: str, wanted: tuple[Entry, ...], found: tuple[Entry, ...]) -> Drift:
    """Compares what a switch should hold with what was read from it."""
    want = {entry.key: entry for entry in wanted}
    have = {entry.key: entry for entry in found}
    return Drift(
        switch,
        missing=tuple(e for k, e in want.items() if k not in have),
        unexpected=tuple(e for k, e in have.items() if k not in want),
        changed=tuple(e for k, e in want.items() if k in have and have[k] != e),
    )
