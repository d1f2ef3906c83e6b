"""Moving the state of one program to another (RECONCILE_AND_COMMIT)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.protocol import Entities
from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.status import P4RuntimeError
from mrclab.switches.ebpf.runtime.transaction import Transaction


def _wanted() -> Iterator[tuple[p4r.Update.Type.ValueType, p4r.Entity]]:
    """Yield what to read and how to write it again, in an order that respects references."""
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
        elif name == "table_entry":
            entity.table_entry.counter_data.SetInParent()
            entity.table_entry.meter_config.SetInParent()
        yield kind, entity


def carry_over(old: Mapping[str, Entities], new: Mapping[str, Entities], running: Running) -> None:
    """Write everything that `old` reads to `new`, which is that of `running`. Raise P4RuntimeError."""
    for kind, wanted in _wanted():
        name = wanted.WhichOneof("entity")
        assert name is not None
        if name not in old:
            continue
        for entity in old[name].read(wanted):
            if entity.table_entry.is_const or not _differs(entity, new[name]):
                continue
            tx = Transaction()
            new[name].write(p4r.Update(type=kind, entity=entity), tx)
            running.apply(tx)


def _differs(entity: p4r.Entity, there: Entities) -> bool:
    """Return True if the new program does not have an entity from the start, such as a default."""
    if entity.table_entry.is_default_action:
        key = p4r.Entity()
        key.table_entry.table_id, key.table_entry.is_default_action = entity.table_entry.table_id, True
    elif entity.HasField("counter_entry"):
        return entity.counter_entry.data != p4r.CounterData()
    elif entity.HasField("meter_entry"):
        return entity.meter_entry.HasField("config")
    elif entity.HasField("register_entry"):
        return entity.register_entry.data.bitstring != b"\0"
    else:
        return True
    try:
        return entity not in list(there.read(key))
    except P4RuntimeError:
        return True
