"""Multicast groups and clone sessions: PacketReplicationEngineEntry (specification, section 9.5)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import decode
from mrclab.switches.ebpf.plan import CLASSES, COPIES, GROUPS
from mrclab.switches.ebpf.runtime.entries import ExistsError, NotThereError
from mrclab.switches.ebpf.runtime.replication import Replica, Replication
from mrclab.switches.ebpf.runtime.transaction import Transaction

_INSTANCES = 1 << 16  # egress_rid is a bit<16>
_PORT_BITS = 32
_LONGEST = 1 << 16


def _bad(message: str) -> P4RuntimeError:
    return P4RuntimeError(Code.INVALID_ARGUMENT, message)


class ReplicationEntries:
    """Write and read multicast groups and clone sessions."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.running = running

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Insert, modify or delete a group or a session."""
        message = update.entity.packet_replication_engine_entry
        match message.WhichOneof("type"):
            case "multicast_group_entry":
                number, what = message.multicast_group_entry.multicast_group_id, "multicast group"
                state = self.running.multicast
            case "clone_session_entry":
                number, what = message.clone_session_entry.session_id, "clone session"
                state = self.running.clones
            case _:
                raise _bad("a replication entry without a group or a session")
        if not 0 < number < GROUPS:
            raise _bad(f"{what} {number} is not in 1..{GROUPS - 1}")
        try:
            if update.type == p4r.Update.DELETE:
                state.delete(number, tx)
                return
            entry = self._read_entry(message)
            if update.type == p4r.Update.INSERT:
                state.insert(number, entry, tx)
            elif update.type == p4r.Update.MODIFY:
                state.modify(number, entry, tx)
            else:
                raise _bad("an update without a type")
        except ExistsError as exc:
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"there is {what} {number} already") from exc
        except NotThereError as exc:
            raise P4RuntimeError(Code.NOT_FOUND, f"there is no {what} {number}") from exc

    def _read_entry(self, message: p4r.PacketReplicationEngineEntry) -> Replication:
        text = message.SerializeToString(deterministic=True)
        ports = self.running.copy_ports
        if message.HasField("multicast_group_entry"):
            return Replication(read_replicas(message.multicast_group_entry.replicas, ports), text)
        session = message.clone_session_entry
        if session.class_of_service >= CLASSES:
            raise _bad(f"class_of_service is not in 0..{CLASSES - 1}")
        if not 0 <= session.packet_length_bytes < _LONGEST:
            raise _bad(f"packet_length_bytes is not in 0..{_LONGEST - 1}")
        replicas, length = read_replicas(session.replicas, ports), session.packet_length_bytes
        return Replication(replicas, text, length, session.class_of_service)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield one group or session, or all of them."""
        wanted = entity.packet_replication_engine_entry
        kind = wanted.WhichOneof("type")
        groups, sessions = self.running.multicast.entries, self.running.clones.entries
        if kind in (None, "multicast_group_entry"):
            yield from self._found(groups, wanted.multicast_group_entry.multicast_group_id, "multicast group")
        if kind in (None, "clone_session_entry"):
            yield from self._found(sessions, wanted.clone_session_entry.session_id, "clone session")

    @staticmethod
    def _found(entries: dict[int, Replication], number: int, what: str) -> Iterator[p4r.Entity]:
        if number and number not in entries:
            raise P4RuntimeError(Code.NOT_FOUND, f"there is no {what} {number}")
        for key, entry in entries.items():
            if number in (0, key):
                out = p4r.Entity()
                out.packet_replication_engine_entry.ParseFromString(entry.message)
                yield out


def _port(message: p4r.Replica | p4r.BackupReplica, ports: Container[int]) -> int:
    if isinstance(message, p4r.Replica) and message.WhichOneof("port_kind") == "egress_port":
        port = message.egress_port
    elif message.port:
        port = decode(message.port, _PORT_BITS, "a replica's port")
    else:
        raise _bad("a replica without a port")
    if port not in ports:
        raise _bad(f"a replica to port {port}, which there is not")
    return port


def read_replicas(messages: Sequence[p4r.Replica], ports: Container[int]) -> tuple[Replica, ...]:
    """Read the copies of a group or a session from messages. Raise P4RuntimeError if a copy is invalid."""
    replicas = []
    for m in messages:
        backups = tuple(Replica(_port(b, ports), b.instance) for b in m.backup_replicas)
        replica = Replica(_port(m, ports), m.instance, backups)
        if replica.port in {b.port for b in backups}:
            raise _bad(f"a replica to port {replica.port} with the same port as a backup")
        replicas.append(replica)
    pairs = [(c.port, c.instance) for r in replicas for c in (r, *r.backups)]
    if len(set(pairs)) != len(pairs):
        raise _bad("two replicas have the same port and instance")
    if any(not 0 <= instance < _INSTANCES for _, instance in pairs):
        raise _bad(f"an instance is not in 0..{_INSTANCES - 1}")
    if len(replicas) > COPIES:
        raise P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"more than {COPIES} replicas")
    return tuple(replicas)
