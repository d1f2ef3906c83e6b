"""Packet replication: multicast groups and clone sessions, as the server and the program share them.

One hash, keyed by the group's number, or the session's with SESSION added (32 bits). A value begins with a
header of four 32-bit numbers: how many copies, the bytes that a copy may have (0: any number), the class of
service, and nothing. The copies follow, port and instance, 32 bits each, in the order in which BMv2 makes
them: by instance, then by port. Ports without a link are in there too; a frame sent to one is lost, as on any
other way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from mrclab.switches.ebpf.plan import COPY, HEADER, VALUE_SIZE
from mrclab.switches.ebpf.runtime.entries import ExistsError, NotThereError
from mrclab.switches.ebpf.runtime.transaction import Transaction


@dataclass(frozen=True)
class Replica:
    """A copy: its egress port and `egress_rid`, and its backups for when the port is down."""

    port: int
    instance: int
    backups: tuple[Replica, ...] = ()


@dataclass(frozen=True)
class Replication:
    """The copies of a group or a session; `message` is the client's."""

    replicas: tuple[Replica, ...]
    message: bytes
    length: int = 0
    class_of_service: int = 0


def encode_replication(entry: Replication, is_up: Callable[[int], bool]) -> bytes:
    """Return the value of a group or a session."""
    copies = sorted((c.instance, c.port) for r in entry.replicas if (c := _standing(r, is_up)) is not None)
    out = bytearray(VALUE_SIZE)
    struct.pack_into("=III", out, 0, len(copies), entry.length, entry.class_of_service)
    for i, (instance, port) in enumerate(copies):
        struct.pack_into("=II", out, HEADER + i * COPY, port, instance)
    return bytes(out)


def _standing(replica: Replica, is_up: Callable[[int], bool]) -> Replica | None:
    """Return the first of a replica and its backups whose port has a link; without backups, itself."""
    if not replica.backups:
        return replica
    return next((c for c in (replica, *replica.backups) if is_up(c.port)), None)


class ReplicationState:
    """Groups or, with `base` SESSION, sessions by number. Plans changes as `TableState` does."""

    def __init__(self, map_index: int | None, is_up: Callable[[int], bool], base: int = 0) -> None:
        self.map = map_index
        self._base = base
        self.entries: dict[int, Replication] = {}
        self._is_up = is_up

    def insert(self, number: int, entry: Replication, tx: Transaction) -> None:
        """Add one. Raises ExistsError."""
        if number in self.entries:
            raise ExistsError
        self._put(number, entry, tx)

    def modify(self, number: int, entry: Replication, tx: Transaction) -> None:
        """Change one. Raises NotThereError."""
        if number not in self.entries:
            raise NotThereError
        self._put(number, entry, tx)

    def delete(self, number: int, tx: Transaction) -> None:
        """Remove one. Raises NotThereError."""
        if number not in self.entries:
            raise NotThereError
        self._put(number, None, tx)

    def _put(self, number: int, entry: Replication | None, tx: Transaction) -> None:
        before = self.entries.get(number)
        self._set(number, entry)
        tx.on_undo(lambda: self._set(number, before))
        self._write(number, tx)

    def _set(self, number: int, entry: Replication | None) -> None:
        if entry is None:
            self.entries.pop(number, None)
        else:
            self.entries[number] = entry

    def _write(self, number: int, tx: Transaction) -> None:
        if self.map is None:  # the program makes no copies
            return

        def current() -> bytes | None:
            entry = self.entries.get(number)
            return None if entry is None else encode_replication(entry, self._is_up)

        tx.change(self.map, struct.pack("=I", self._base | number), current(), current)

    def link_changed(self, port: int, tx: Transaction) -> None:
        """Rewrite everything with backups that a port is part of."""
        for number, entry in self.entries.items():
            if any(r.backups and port in {r.port, *(b.port for b in r.backups)} for r in entry.replicas):
                self._write(number, tx)
