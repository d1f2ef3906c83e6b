"""Table entries: their values as numbers, and their encoding as bytes in BPF maps."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mrclab.switches.ebpf.plan import ActionLayout, TableLayout, round8

# The match of one key field: value and mask, or low and high end of a range.
Match = tuple[int, int]


@dataclass(frozen=True)
class Action:
    """An action with its arguments."""

    layout: ActionLayout
    args: tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    """A member or a group of an action profile, to which an entry refers in place of an action.

    `kind` is TO_MEMBER or TO_GROUP. `place` is an index in the map of members or of groups. If the group is a
    one-shot, it has no id, and `one_shot` is the client's message.
    """

    kind: int
    place: int
    id: int = 0
    one_shot: bytes = b""


@dataclass(frozen=True)
class Entry:
    """An entry. If two entries match, the higher `priority` wins. `cell` is the index of its counter."""

    match: tuple[Match, ...]
    priority: int
    action: Action | Reference
    cell: int = 0
    metadata: bytes = b""
    cookie: int = 0  # P4Runtime's `controller_metadata`
    timeout_ns: int = 0


Ident = tuple[tuple[Match, ...], int]


class TableFullError(Exception):
    """The table is full, or another limit of the table is reached. The error's text names this limit."""


class ExistsError(Exception):
    """An object with this key or id exists already."""


class NotThereError(Exception):
    """No object with this key or id exists."""


def full_mask(width: int) -> int:
    """Return a mask with all bits set."""
    return (1 << width) - 1


def encode_action(value_size: int, action: Action | Reference, cell: int) -> bytes:
    """Return the map value of an entry, of a table's default action, or of a member."""
    out = bytearray(value_size)
    if isinstance(action, Reference):
        struct.pack_into("=III", out, 0, action.kind, cell, action.place)
        return bytes(out)
    struct.pack_into("=II", out, 0, action.layout.number, cell)
    for slot, arg in zip(action.layout.params, action.args, strict=True):
        out[slot.offset : slot.offset + slot.size] = arg.to_bytes(slot.size, "little")
    return bytes(out)


def encode_key(layout: TableLayout, match: tuple[Match, ...]) -> bytes:
    """Return the map key of an entry of a `hash` or `lpm` table."""
    out = bytearray(layout.key_size)
    prefix = (layout.key_size - 4) * 8
    for slot, (value, mask) in zip(layout.key, match, strict=True):
        out[slot.offset : slot.offset + slot.size] = value.to_bytes(slot.size, "big")
        if slot.match == "lpm":
            prefix -= slot.width - mask.bit_count()
    if layout.kind == "lpm":
        struct.pack_into("=I", out, 0, prefix)
    return bytes(out)


def encode_scan(layout: TableLayout, entries: list[Entry]) -> bytes:
    """Return the map value of a scan table: all its entries, the highest priority first."""
    out = bytearray(layout.cell_size * layout.capacity)
    low = 8 + layout.value_size
    high = low + round8(layout.key_size)
    for i, entry in enumerate(sorted(entries, key=lambda e: -e.priority)):
        base = i * layout.cell_size
        struct.pack_into("=Q", out, base, 1)
        out[base + 8 : base + 8 + layout.value_size] = encode_action(
            layout.value_size, entry.action, entry.cell
        )
        for slot, (a, z) in zip(layout.key, entry.match, strict=True):
            for place, number in ((low, a), (high, z)):
                at = base + place + slot.offset
                out[at : at + slot.size] = number.to_bytes(slot.size, "little")
    return bytes(out)
