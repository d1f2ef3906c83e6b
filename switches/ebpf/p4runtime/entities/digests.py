"""The configuration of digests (DigestEntry), and digests as stream messages (specification 9.9, 16.3)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
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
    for message in ready.messages:
        assert isinstance(message, tuple)
        schema.types.write(schema.digests[ready.digest], iter(message), out.digest.data.add())
    return out
