"""Multicast groups and clone sessions: their map, which the server writes and the program reads.

The map is a hash. A key is the number of a group, or SESSION plus the number of a session (32 bits). A
value begins with four 32-bit numbers: the number of copies, the maximum length of a copy (0: no limit), the
class of service, and 0. Then follow the port and the instance of each copy, 32 bits each. As in BMv2, copies
are sorted by instance, then by port. A port without a link is listed too; a frame that is sent there is lost.
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
    """A copy: its egress port, its `egress_rid`, and the backup copies to use if the port is down."""

    port: int
    instance: int
    backups: tuple[Replica, ...] = ()


@dataclass(frozen=True)
class Replication:
    """The copies of a group or a session. `message` is the P4Runtime message that the client sent."""

    replicas: tuple[Replica, ...]
    message: bytes
    length: int = 0
    class_of_service: int = 0


def encode_replication(entry: Replication, is_up: Callable[[int], bool]) -> bytes:
    """Return the map value of a group or a session."""
    copies = sorted((c.instance, c.port) for r in entry.replicas if (c := _standing(r, is_up)) is not None)
    out = bytearray(VALUE_SIZE)
    struct.pack_into("=III", out, 0, len(copies), entry.length, entry.class_of_service)
    for i, (instance, port) in enumerate(copies):
        struct.pack_into("=II", out, HEADER + i * COPY, port, instance)
    return bytes(out)


def _standing(replica: Replica, is_up: Callable[[int], bool]) -> Replica | None:
    """Return the replica if its port is up, else the first backup whose port is up, else None.

    If there are no backups, return the replica in any case.
    """
    if not replica.backups:
        return replica
    return next((c for c in (replica, *replica.backups) if is_up(c.port)), None)


class ReplicationState:
    """Multicast groups (clone sessions if `base` is SESSION) by number. Changes go into a transaction."""

    def __init__(self, map_index: int | None, is_up: Callable[[int], bool], base: int = 0) -> None:
        self.map = map_index
        self._base = base
        self.entries: dict[int, Replication] = {}
        self._is_up = is_up

    def insert(self, number: int, entry: Replication, tx: Transaction) -> None:
        """Add a group or session. Raise ExistsError if the number is in use."""
        if number in self.entries:
            raise ExistsError
        self._put(number, entry, tx)

    def modify(self, number: int, entry: Replication, tx: Transaction) -> None:
        """Change a group or session. Raise NotThereError if it does not exist."""
        if number not in self.entries:
            raise NotThereError
        self._put(number, entry, tx)

    def delete(self, number: int, tx: Transaction) -> None:
        """Remove a group or session. Raise NotThereError if it does not exist."""
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
        """Rewrite each group or session that has backups and uses this port."""
        for number, entry in self.entries.items():
            if any(r.backups and port in {r.port, *(b.port for b in r.backups)} for r in entry.replicas):
                self._write(number, tx)
