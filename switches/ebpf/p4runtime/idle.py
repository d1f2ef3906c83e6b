"""Idle timeouts: entries that were not hit for that long (specification, sections 9.1.8 and 16.4)."""

from __future__ import annotations

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.runtime.entries import Ident


class IdleWatch:
    """Finds idle entries of a running program, each at most once per timeout."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running
        self._reported: dict[tuple[int, Ident], int] = {}  # table id and entry -> when it was last reported

    @property
    def needed(self) -> bool:
        """True if any entry has a timeout."""
        return any(state.timed for state in self.running.tables.values())

    def expired(self, now_ns: int) -> list[p4r.TableEntry]:
        """Return the entries that have become idle. `now_ns` is CLOCK_MONOTONIC."""
        out: list[p4r.TableEntry] = []
        reported: dict[tuple[int, Ident], int] = {}
        for table in self.schema.tables.values():
            state, hits = self.running.tables[table.name], table.layout.hit_map
            if hits is None:
                continue
            for ident in state.timed:
                entry = state.entries[ident]
                last = self._reported.get((table.id, ident), 0)
                idle = min(self.running.idle_ns(hits, entry.cell), now_ns - last)
                if idle >= entry.timeout_ns:
                    last = now_ns
                    out.append(table.write_entry(entry))
                if last:
                    reported[table.id, ident] = last
        self._reported = reported
        return out
