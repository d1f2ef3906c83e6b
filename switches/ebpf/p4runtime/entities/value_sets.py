"""Parser value sets: ValueSetEntry (specification, section 9.6)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.schema import Schema, ValueSetSchema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import KINDS, need_modify, read_match, write_match
from mrclab.switches.ebpf.runtime.entries import Match, full_mask
from mrclab.switches.ebpf.runtime.transaction import Transaction
from mrclab.switches.ebpf.runtime.value_sets import Ends


class ValueSetEntries:
    """Write and read the members of parser value sets."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    def _known(self, number: int) -> ValueSetSchema:
        if number not in self.schema.value_sets:
            raise P4RuntimeError(Code.NOT_FOUND, f"no value set {number}")
        return self.schema.value_sets[number]

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Replace the members of a value set."""
        need_modify(update, "a value set")
        entry = update.entity.value_set_entry
        known = self._known(entry.value_set_id)
        widths = [slot.width for slot in known.layout.key]
        where = f"value set {known.name}"
        members = [read_match(where, known.fields, widths, m.match) for m in entry.members]
        if len(set(members)) != len(members):
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"{where} is given a member twice")
        if len(members) > known.size:
            raise P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"{where} has room for {known.size} members")
        kinds = [KINDS[f.match_type] for f in known.fields]
        ends = tuple(tuple(map(_ends, kinds, widths, member)) for member in members)
        self.running.value_sets[known.name].set(ends, tx)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield one value set, or all value sets."""
        wanted = entity.value_set_entry.value_set_id
        numbers = [wanted] if wanted else list(self.schema.value_sets)
        for number in numbers:
            known = self._known(number)
            widths = [slot.width for slot in known.layout.key]
            out = p4r.ValueSetEntry(value_set_id=number)
            for member in self.running.value_sets[known.name].members:
                match = [
                    (e.low, e.high) if KINDS[f.match_type] == "range" else (e.low, e.mask)
                    for f, e in zip(known.fields, member, strict=True)
                ]
                write_match(known.fields, widths, match, out.members.add())
            yield p4r.Entity(value_set_entry=out)


def _ends(kind: str, width: int, match: Match) -> Ends:
    if kind == "range":
        return Ends(full_mask(width), *match)
    value, mask = match
    return Ends(mask, value, value)
