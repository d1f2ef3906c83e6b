"""A running program of one switch: its datapath, and the server's view of its maps."""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable, Sequence

from mrclab.linux.bpf import ANY, LOCK, Prepared
from mrclab.linux.ring_buffer import RingReader
from mrclab.switches.ebpf.p4runtime.entities.cells import CounterCells
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.plan.compiled import Compiled
from mrclab.switches.ebpf.plan.layouts import DROP_PORT, RING_SIZE
from mrclab.switches.ebpf.plan.replication import SESSION
from mrclab.switches.ebpf.runtime.datapath import Datapath
from mrclab.switches.ebpf.runtime.digests import DigestQueue, ReadyList
from mrclab.switches.ebpf.runtime.meters import MeterState
from mrclab.switches.ebpf.runtime.profiles import ProfileState
from mrclab.switches.ebpf.runtime.replication import ReplicationState
from mrclab.switches.ebpf.runtime.table_state import TableState
from mrclab.switches.ebpf.runtime.transaction import Change, Transaction
from mrclab.switches.ebpf.runtime.value_sets import ValueSetState


class Running:
    """The state of a loaded program. Its constructor fills the maps with the program's constants."""

    def __init__(self, compiled: Compiled, datapath: Datapath, is_up: Callable[[int], bool]) -> None:
        plan = compiled.plan
        self.compiled = compiled
        self.datapath = datapath
        self.tables = {t.name: TableState(t, plan.tables[t.name]) for t in compiled.program.tables()}
        self.profiles = {name: ProfileState(layout, is_up) for name, layout in plan.profiles.items()}
        self.counters = CounterCells(datapath)
        self.meters = {name: MeterState(layout, time.monotonic_ns) for name, layout in plan.meters.items()}
        self.default_meters = {
            name: MeterState(layout.default_meter, time.monotonic_ns)
            for name, layout in plan.tables.items()
            if layout.default_meter is not None
        }
        self.direct_meters = {
            name: MeterState(layout.meter, time.monotonic_ns)
            for name, layout in plan.tables.items()
            if layout.meter is not None
        }
        self.value_sets = {name: ValueSetState(layout) for name, layout in plan.value_sets.items()}
        self.digests = DigestQueue()
        self._complete: list[ReadyList] = []
        self.digest_numbers: dict[int, int] = {}  # in the JSON -> in the P4Info
        self._ring = None if plan.ring_map is None else RingReader(datapath.maps[plan.ring_map].fd, RING_SIZE)
        self.multicast = ReplicationState(plan.multicast_map, is_up)
        self.clones = ReplicationState(plan.clone_map, is_up, SESSION)
        first = Transaction()
        for state in self.tables.values():
            state.setup(first)
        self.apply(first)

    @property
    def copy_ports(self) -> range:
        """The ports that a copy can be sent to; to one that does not exist it is lost, as in BMv2."""
        return range(DROP_PORT)

    def take_digests(self) -> None:
        """Take from the kernel what frames have asked for until now.

        Messages of a digest that is not configured are dropped, so a digest begins with the frames after it
        was configured (specification, section 9.9).
        """
        now = time.monotonic_ns()
        for record in self._ring.records() if self._ring else ():
            (number,) = struct.unpack_from("=I", record)
            layout = self.compiled.plan.digests[number]
            values = tuple(int.from_bytes(record[at : at + size], "little") for at, size in layout.fields)
            if number in self.digest_numbers:
                self._complete += self.digests.offer(self.digest_numbers[number], values, now)

    def ready_digests(self) -> list[ReadyList]:
        """Return the lists of digests that are to be sent now."""
        self.take_digests()
        out, self._complete = self._complete, []
        return out + self.digests.due(time.monotonic_ns())

    def close(self) -> None:
        """Close the program and its maps."""
        if self._ring is not None:
            self._ring.close()
        self.datapath.close_descriptors()

    def touch(self, change: Change) -> None:
        """Look a key up, so that caches are warm for an update whose time is measured."""
        self.datapath.maps[change.map].lookup(change.key)

    def prepared(self, change: Change) -> Prepared:
        """Return the map update of a change, to be made later."""
        m = self.datapath.maps[change.map]
        return m.prepared(change.key, change.value, LOCK if m.spec.lock else ANY)

    def holds(self, change: Change) -> bool:
        """Return True if the map has the key of a change."""
        return self.datapath.maps[change.map].lookup(change.key) is not None

    def stamp(self, hit_map: int, cell: int, tx: Transaction) -> None:
        """Set the time of an entry's last hit to now."""

        def now() -> bytes:
            return struct.pack("=Q", time.monotonic_ns())

        tx.change(hit_map, struct.pack("=I", cell), now(), now)

    def idle_ns(self, hit_map: int, cell: int) -> int:
        """Return how long ago an entry was last hit, in ns."""
        raw = self.datapath.maps[hit_map].lookup(struct.pack("=I", cell))
        assert raw is not None  # elements of an array are always there
        return max(time.monotonic_ns() - int(struct.unpack("=Q", raw)[0]), 0)

    def apply(self, tx: Transaction, undo_first: Sequence[Transaction] = ()) -> None:
        """Make the map updates of a transaction.

        If one fails, undo the later planned ones and then all of it, and raise P4RuntimeError.
        """
        maps = self.datapath.maps
        done = 0
        try:
            for change in tx.changes:
                if change.value is None:
                    maps[change.map].delete(change.key)
                else:
                    m = maps[change.map]
                    m.update(change.key, change.value, LOCK if m.spec.lock else ANY)
                done += 1
        except OSError as exc:
            for later in reversed(undo_first):
                later.undo()
            self.revert(tx, done)
            if exc.errno in (errno.E2BIG, errno.ENOSPC, errno.ENOMEM):
                raise P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"map update: {exc.strerror}") from exc
            raise P4RuntimeError(Code.INTERNAL, f"map update: {exc.strerror}") from exc

    def revert(self, tx: Transaction, done: int | None = None) -> None:
        """Revert a transaction of which `done` map updates (None: all) were made."""
        tx.undo()
        maps = self.datapath.maps
        for change in reversed(tx.changes[:done]):
            value = change.current()
            if value is not None:
                maps[change.map].update(change.key, value, LOCK if maps[change.map].spec.lock else ANY)
            elif maps[change.map].lookup(change.key) is not None:
                maps[change.map].delete(change.key)

    def link_changed(self, port: int) -> None:
        """Note that a port has gained or lost its link."""
        tx = Transaction()
        for profile in self.profiles.values():
            profile.link_changed(port, tx)
        self.multicast.link_changed(port, tx)
        self.clones.link_changed(port, tx)
        self.apply(tx)
