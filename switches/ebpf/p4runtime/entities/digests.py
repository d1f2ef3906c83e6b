"""The configuration of digests (DigestEntry), and digests as stream messages (specification 9.9, 16.3)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4d, p4r, p4t

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import encode
from mrclab.switches.ebpf.runtime.digests import DigestConfig, ReadyList
from mrclab.switches.ebpf.runtime.transaction import Transaction


class DigestEntries:
    """Write and read the configuration of digests."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.queue = running.digests
        self.running = running

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Start to send a digest (INSERT), change its configuration (MODIFY), or stop it (DELETE)."""
        entry = update.entity.digest_entry
        number, before = entry.digest_id, self.queue.configs.get(entry.digest_id)
        if number not in self.schema.digests:
            raise P4RuntimeError(Code.NOT_FOUND, f"no digest {number}")
        if update.type == p4r.Update.UNSPECIFIED:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "an update without a type")
        if update.type == p4r.Update.INSERT and before is not None:
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"digest {number} is sent already")
        if update.type != p4r.Update.INSERT and before is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"digest {number} is not sent")
        if update.type == p4r.Update.INSERT:
            self.running.take_digests()
        config = None
        if update.type != p4r.Update.DELETE:
            c = entry.config
            if min(c.max_timeout_ns, c.max_list_size, c.ack_timeout_ns) < 0:
                raise P4RuntimeError(Code.INVALID_ARGUMENT, "a digest takes no negative numbers")
            config = DigestConfig(c.max_timeout_ns, c.max_list_size, c.ack_timeout_ns)
        self.queue.configure(number, config)
        tx.on_undo(lambda: self.queue.configure(number, before))

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the configuration of one digest, or of all configured digests."""
        wanted = entity.digest_entry.digest_id
        if wanted and wanted not in self.schema.digests:
            raise P4RuntimeError(Code.NOT_FOUND, f"no digest {wanted}")
        for number, config in self.queue.configs.items():
            if wanted in (0, number):
                out = p4r.DigestEntry(digest_id=number)
                out.config.SetInParent()
                out.config.max_timeout_ns = config.max_timeout_ns
                out.config.max_list_size = config.max_list_size
                out.config.ack_timeout_ns = config.ack_timeout_ns
                yield p4r.Entity(digest_entry=out)


def digest_list(ready: ReadyList, schema: Schema, timestamp_ns: int) -> p4r.StreamMessageResponse:
    """Return a list of digest messages as a stream message. `timestamp_ns` counts from the Unix epoch."""
    out = p4r.StreamMessageResponse()
    out.digest.digest_id, out.digest.list_id = ready.digest, ready.number
    out.digest.timestamp = timestamp_ns
    spec, types = schema.digests[ready.digest]
    for message in ready.messages:
        assert isinstance(message, tuple)
        _write(spec, types, iter(message), out.digest.data.add())
    return out


def _write(spec: p4t.P4DataTypeSpec, types: p4t.P4TypeInfo, values: Iterator[int], to: p4d.P4Data) -> None:
    """Fill a P4Data message of a given type with the values of the type's fields, in order."""
    match spec.WhichOneof("type_spec"):
        case "struct":
            for member in types.structs[spec.struct.name].members:
                _write(member.type_spec, types, values, to.struct.members.add())
        case "tuple":
            for part in spec.tuple.members:
                _write(part, types, values, to.tuple.members.add())
        case "header":
            to.header.is_valid = True
            for field in types.headers[spec.header.name].members:
                del field
                to.header.bitstrings.append(encode(next(values)))
        case "bool":
            to.bool = bool(next(values))
        case _:
            to.bitstring = encode(next(values))
