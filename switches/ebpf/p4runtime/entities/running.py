"""A running program of one switch: its datapath, and the server's state of its tables and externs.

On RECONCILE_AND_COMMIT, `carry_over` copies the state to the new program. For each kind of P4Runtime
entities, one class writes and reads the entities; `Entities` is the interface of these classes.
"""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from finsy.proto import p4d, p4r

from mrclab.linux.bpf import ANY, LOCK, Prepared
from mrclab.linux.ring_buffer import RingReader
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.plan import DROP_PORT, METER_COLOURS, RING_SIZE, SESSION, Compiled, MeterLayout
from mrclab.switches.ebpf.runtime.datapath import Datapath
from mrclab.switches.ebpf.runtime.digests import DigestQueue, ReadyList
from mrclab.switches.ebpf.runtime.meters import MeterState
from mrclab.switches.ebpf.runtime.profiles import ProfileState
from mrclab.switches.ebpf.runtime.replication import ReplicationState
from mrclab.switches.ebpf.runtime.table_state import TableState
from mrclab.switches.ebpf.runtime.transaction import Change, Transaction
from mrclab.switches.ebpf.runtime.value_sets import ValueSetState


class Entities(Protocol):
    """Write and read P4Runtime entities of one kind."""

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Change the server's state and add the map updates to `tx`. Raise P4RuntimeError if this fails."""

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the entities that match a request. An unset field of the request matches every value.

        Raise P4RuntimeError for a bad request.
        """


Counts = tuple[int, int]  # (packets, bytes)
_COLOURS = ("green", "yellow", "red")


class CounterCells:
    """Read and set counters.

    After a client has set a counter, its value is the kernel's count plus an offset, which is stored here.
    """

    def __init__(self, datapath: Datapath) -> None:
        self._datapath = datapath
        self._base: dict[tuple[int, int], Counts] = {}

    def set(self, index: int, cells: int, cell: int, counts: Counts, tx: Transaction) -> None:
        """Set a counter: cell `cell` of counter map `index`, which has `cells` cells."""
        key, before = (index, cell), self._base.get((index, cell))

        def begin() -> None:
            packets, octets = self._datapath.cell(index, cells, cell)
            self._base[key] = (packets - counts[0], octets - counts[1])

        begin()
        # The cell may be that of an entry which the batch deletes: until then, frames still count there.
        tx.counter_starts.append(begin)

        def undo() -> None:
            if before is None:
                self._base.pop(key, None)
            else:
                self._base[key] = before

        tx.on_undo(undo)

    def set_colours(self, meter: MeterLayout, cell: int, data: p4r.MeterCounterData, tx: Transaction) -> None:
        """Set the counters of each colour for a meter's cell."""
        for colour, name in enumerate(_COLOURS):
            counts = getattr(data, name)
            place = METER_COLOURS * cell + colour
            self.set(meter.counter_map, meter.counters, place, (counts.packet_count, counts.byte_count), tx)

    def read_colours(self, meter: MeterLayout, cell: int) -> p4r.MeterCounterData:
        """Return the counters of each colour for a meter's cell."""
        first = METER_COLOURS * cell
        counts = [self.read(meter.counter_map, meter.counters, first + i) for i in range(len(_COLOURS))]
        return p4r.MeterCounterData(green=counts[0], yellow=counts[1], red=counts[2])

    def read(self, index: int, cells: int, cell: int) -> p4r.CounterData:
        """Return the counts of cell `cell` of counter map `index`, which has `cells` cells."""
        return self._shown(index, cell, self._datapath.cell(index, cells, cell))

    def read_all(self, index: int, cells: int) -> list[p4r.CounterData]:
        """Return the counts of all cells of counter map `index`."""
        return [self._shown(index, at, raw) for at, raw in enumerate(self._datapath.cells(index, cells))]

    def _shown(self, index: int, cell: int, raw: Counts) -> p4r.CounterData:
        packets, octets = self._base.get((index, cell), (0, 0))
        return p4r.CounterData(packet_count=raw[0] - packets, byte_count=raw[1] - octets)


class Running:
    """The state of a loaded program. The constructor writes const entries and default actions to the maps."""

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
        self.digest_numbers: dict[int, int] = {}  # number of a digest in the JSON -> id in the P4Info
        self._ring = None if plan.ring_map is None else RingReader(datapath.maps[plan.ring_map].fd, RING_SIZE)
        self.multicast = ReplicationState(plan.multicast_map, is_up)
        self.clones = ReplicationState(plan.clone_map, is_up, SESSION)
        first = Transaction()
        for state in self.tables.values():
            state.setup(first)
        self.apply(first)

    @property
    def copy_ports(self) -> range:
        """The valid ports of a copy. As in BMv2, a copy to a port that does not exist is dropped."""
        return range(DROP_PORT)

    def take_digests(self) -> None:
        """Read the digest messages of frames from the kernel's ring buffer.

        Messages of an unconfigured digest are dropped. So a new digest reports only frames that arrive after
        its configuration (specification, section 9.9).
        """
        now = time.monotonic_ns()
        for record in self._ring.records() if self._ring else ():
            (number,) = struct.unpack_from("=I", record)
            layout = self.compiled.plan.digests[number]
            values = tuple(int.from_bytes(record[at : at + size], "little") for at, size in layout.fields)
            if number in self.digest_numbers:
                self._complete += self.digests.offer(self.digest_numbers[number], values, now)

    def ready_digests(self) -> list[ReadyList]:
        """Return the lists of digest messages that must be sent now."""
        self.take_digests()
        out, self._complete = self._complete, []
        return out + self.digests.due(time.monotonic_ns())

    def close(self) -> None:
        """Close the descriptors of the program and its maps."""
        if self._ring is not None:
            self._ring.close()
        self.datapath.close_descriptors()

    def touch(self, change: Change) -> None:
        """Look up a change's key, so that it is in the CPU's cache when the map update is measured."""
        self.datapath.maps[change.map].lookup(change.key)

    def prepared(self, change: Change) -> Prepared:
        """Return the map update of a change in a prepared form, so that it takes little time later."""
        m = self.datapath.maps[change.map]
        return m.prepared(change.key, change.value, LOCK if m.spec.lock else ANY)

    def holds(self, change: Change) -> bool:
        """Return True if the map has the key of a change."""
        return self.datapath.maps[change.map].lookup(change.key) is not None

    def stamp(self, hit_map: int, cell: int, tx: Transaction) -> None:
        """Add a map update that sets the time of an entry's last hit to now."""

        def now() -> bytes:
            return struct.pack("=Q", time.monotonic_ns())

        tx.change(hit_map, struct.pack("=I", cell), now(), now)

    def idle_ns(self, hit_map: int, cell: int) -> int:
        """Return the time since an entry's last hit, in ns."""
        raw = self.datapath.maps[hit_map].lookup(struct.pack("=I", cell))
        assert raw is not None  # an array map has a value for every index
        return max(time.monotonic_ns() - int(struct.unpack("=Q", raw)[0]), 0)

    def apply(self, tx: Transaction, undo_first: Sequence[Transaction] = ()) -> None:
        """Make the map updates of a transaction.

        If an update fails, undo the transactions of `undo_first`, then `tx`, and raise P4RuntimeError.
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
        """Undo a transaction of which only the first `done` map updates were made (None: all updates)."""
        tx.undo()
        maps = self.datapath.maps
        for change in reversed(tx.changes[:done]):
            value = change.current()
            if value is not None:
                maps[change.map].update(change.key, value, LOCK if maps[change.map].spec.lock else ANY)
            elif maps[change.map].lookup(change.key) is not None:
                maps[change.map].delete(change.key)

    def link_changed(self, port: int) -> None:
        """Update groups and sessions after the link of a port went up or down."""
        tx = Transaction()
        for profile in self.profiles.values():
            profile.link_changed(port, tx)
        self.multicast.link_changed(port, tx)
        self.clones.link_changed(port, tx)
        self.apply(tx)


def _wanted() -> Iterator[tuple[p4r.Update.Type.ValueType, p4r.Entity]]:
    """Yield, for each kind of entity, the type of update that copies it, and a request for all entities.

    If entities of one kind refer to another kind, the other kind comes first: members before table entries.
    """
    insert, modify = p4r.Update.INSERT, p4r.Update.MODIFY
    for kind, name in (
        (insert, "packet_replication_engine_entry"),
        (modify, "value_set_entry"),
        (insert, "action_profile_member"),
        (insert, "action_profile_group"),
        (modify, "table_entry"),
        (insert, "table_entry"),
        (modify, "counter_entry"),
        (modify, "meter_entry"),
        (modify, "register_entry"),
        (insert, "digest_entry"),
    ):
        entity = p4r.Entity()
        getattr(entity, name).SetInParent()
        if name == "table_entry" and kind == modify:
            entity.table_entry.is_default_action = True
        if name == "table_entry":
            entity.table_entry.counter_data.SetInParent()
            entity.table_entry.meter_config.SetInParent()
        yield kind, entity


def carry_over(
    old: Mapping[str, Entities], new: Mapping[str, Entities], before: Running, running: Running
) -> None:
    """Copy all entities of `old` to `new`. Raise P4RuntimeError if this fails.

    `old` belongs to `before`, and `new` belongs to `running`, which has the entries of its program.
    """
    tx = Transaction()
    for table, state in running.tables.items():
        if table in before.tables:
            for ident in before.tables[table].deleted() & state.entries.keys():
                state.delete(ident, tx)
    running.apply(tx)
    for kind, wanted in _wanted():
        name = wanted.WhichOneof("entity")
        assert name is not None
        if name not in old:
            continue
        for entity in old[name].read(wanted):
            update = _copying(kind, entity, new[name])
            if update is not None:
                tx = Transaction()
                try:
                    new[name].write(update, tx)
                except P4RuntimeError as exc:
                    if name != "table_entry" or exc.code is not Code.ALREADY_EXISTS:
                        raise
                    tx.undo()  # the program has an entry with this key: change its action
                    update.type, tx = p4r.Update.MODIFY, Transaction()
                    new[name].write(update, tx)
                running.apply(tx)


_ZEROS = (p4d.P4Data(bitstring=b"\0"), p4d.P4Data(enum_value=b"\0"), p4d.P4Data(bool=False))


def _copying(kind: p4r.Update.Type.ValueType, entity: p4r.Entity, there: Entities) -> p4r.Update | None:
    """Return the update that copies an entity to the new program; None if there is nothing to copy."""
    needed = True
    if entity.table_entry.is_default_action or entity.table_entry.is_const:
        return _copying_own(entity.table_entry, there)
    if entity.HasField("counter_entry"):
        needed = entity.counter_entry.data != p4r.CounterData()
    elif entity.HasField("meter_entry"):
        needed = entity.meter_entry.HasField("config")
    elif entity.HasField("register_entry"):
        needed = entity.register_entry.data not in _ZEROS
    return p4r.Update(type=kind, entity=entity) if needed else None


def _copying_own(old: p4r.TableEntry, there: Entities) -> p4r.Update | None:
    """Return the update that copies a default or const entry, which the new program may have too.

    A const entry belongs to the program, so only its counter and its meter are copied.
    """
    key = p4r.TableEntry(
        table_id=old.table_id, match=old.match, priority=old.priority, is_default_action=old.is_default_action
    )
    key.counter_data.SetInParent()
    key.meter_config.SetInParent()
    try:
        read = [e.table_entry for e in there.read(p4r.Entity(table_entry=key))]
    except P4RuntimeError:
        read = []
    new = next((e for e in read if list(e.match) == list(old.match)), None)
    if new == old or (new is None and old.is_const):
        return None
    entry = p4r.TableEntry()
    entry.CopyFrom(old)
    entry.is_const = False
    if new is not None:
        if not new.HasField("counter_data"):
            entry.ClearField("counter_data")
        same = all(getattr(new, f) == getattr(old, f) for f in ("action", "metadata", "controller_metadata"))
        if same or old.is_const:
            entry.ClearField("action")
    if not any(entry.HasField(f) for f in ("action", "counter_data", "meter_config")):
        return None
    return p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(table_entry=entry))
