"""The interface of the modules for each kind of entity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from finsy.proto import p4r

from mrclab.switches.ebpf.runtime.transaction import Transaction


class Entities(Protocol):
    """Writes and reads entities of one kind."""

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Plan an update. Raise P4RuntimeError."""

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield everything that an entity asks for; unset fields are wildcards. Raise P4RuntimeError."""
