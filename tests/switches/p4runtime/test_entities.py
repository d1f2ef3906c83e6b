"""Registers, multicast groups and clone sessions, written and read by P4Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4i, p4r

from mrclab.switches.ebpf.runtime.replication import (
    Replica,
    Replication,
    ReplicationState,
    encode_replication,
)
from mrclab.switches.ebpf.runtime.transaction import Transaction
from mrclab.switches.ebpf.target import EbpfTarget
from mrclab.switches.spec import SwitchSpec
from tests.support.switch_kit import (
    DATA,
    Client,
    Namespace,
    error_codes,
    forwarded,
    read_p4info,
    receive,
)

pytestmark = pytest.mark.parallel

Code = grpc.StatusCode
INFO = read_p4info(DATA / "registers.p4info.txtpb")


@pytest.fixture
def client(namespace: Namespace, tmp_path: Path) -> Iterator[Client]:
    for i in (1, 2):
        namespace.pair(f"s{i}", f"h{i}")
    target = EbpfTarget()
    specs = [SwitchSpec("s", 1, {1: "s1", 2: "s2"})]
    (running,) = target.start(specs, netns=namespace.name, log_dir=tmp_path)
    try:
        with forwarded(namespace, running.grpc_address) as address:
            client = Client(address, 1)
            client.become_primary()
            client.set_pipeline((DATA / "registers.json").read_bytes(), INFO)
            yield client
            client.close()
    finally:
        target.stop()


def register(name: str, index: int | None, value: bytes | None = None) -> p4r.Entity:
    out = p4r.Entity()
    ids = {r.preamble.name: r.preamble.id for r in INFO.registers}
    out.register_entry.register_id = ids[name]
    if index is not None:
        out.register_entry.index.index = index
    if value is not None:
        out.register_entry.data.bitstring = value
    return out


def change(entity: p4r.Entity, kind: p4r.Update.Type.ValueType = p4r.Update.MODIFY) -> p4r.Update:
    return p4r.Update(type=kind, entity=entity)


@pytest.mark.root
def test_registers_are_shared_with_the_program(client: Client, namespace: Namespace) -> None:
    wide = (1 << 99 | 5).to_bytes(13, "big")
    client.write(change(register("I.sums", 3, b"\x07")), change(register("I.wide", None, wide)))
    out, back = namespace.packet_socket("h1"), namespace.packet_socket("h2")
    out.send(bytes([1]) + (3).to_bytes(4, "big") + bytes(60))  # this adds 1 to I.sums[3]
    assert len(receive(back, 1)) == 1
    assert client.read(register("I.sums", 3)) == [register("I.sums", 3, b"\x08")]
    assert client.read(register("I.wide", 63)) == [register("I.wide", 63, wide)]
    assert len(client.read(p4r.Entity(register_entry=p4r.RegisterEntry()))) == 64 + 64 + 1
    for s in (out, back):
        s.close()
    nobody = register("I.sums", 1, b"\x01")
    nobody.register_entry.register_id += 1
    updates = [
        (change(register("I.sums", 64, b"\x01")), Code.OUT_OF_RANGE),
        (change(register("I.sums", -1, b"\x01")), Code.INVALID_ARGUMENT),
        (change(register("I.last", 0, b"\x02\x00")), Code.OUT_OF_RANGE),
        (change(register("I.last", 0)), Code.INVALID_ARGUMENT),
        (change(register("I.last", 0, b"\x01"), p4r.Update.INSERT), Code.INVALID_ARGUMENT),
        (change(nobody), Code.NOT_FOUND),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        client.write(*(u for u, _ in updates))
    assert error_codes(caught.value) == [code for _, code in updates]


@pytest.mark.root
def test_a_signed_register_takes_and_gives_signed_numbers(client: Client, namespace: Namespace) -> None:
    info = p4i.P4Info()
    info.CopyFrom(INFO)
    (sums,) = [r for r in info.registers if r.preamble.name == "I.sums"]
    sums.type_spec.bitstring.int.bitwidth = 64
    client.set_pipeline((DATA / "registers.json").read_bytes(), info)
    client.write(change(register("I.sums", 3, b"\xfe")), change(register("I.sums", 4, b"\xff" * 9 + b"\x01")))
    with namespace.packet_socket("h1") as out, namespace.packet_socket("h2") as back:
        out.send(bytes([1]) + (3).to_bytes(4, "big") + bytes(60))  # this adds 1 to I.sums[3]
        assert len(receive(back, 1)) == 1
    assert client.read(register("I.sums", 3)) == [register("I.sums", 3, b"\xff")]
    assert client.read(register("I.sums", 4)) == [register("I.sums", 4, b"\xff\x01")]


def group(number: int, *copies: tuple[int, int]) -> p4r.Entity:
    out = p4r.Entity()
    entry = out.packet_replication_engine_entry.multicast_group_entry
    entry.multicast_group_id = number
    for port, instance in copies:
        entry.replicas.add(port=bytes([port]), instance=instance)
    return out


def session(number: int, *copies: tuple[int, int], length: int = 0) -> p4r.Entity:
    out = p4r.Entity()
    entry = out.packet_replication_engine_entry.clone_session_entry
    entry.session_id, entry.packet_length_bytes = number, length
    for port, instance in copies:
        entry.replicas.add(egress_port=port, instance=instance)
    return out


@pytest.mark.root
def test_groups_and_sessions_read_back_and_break_rules(client: Client) -> None:
    insert, modify, delete = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
    tagged = group(1, (1, 1), (2, 1))
    tagged.packet_replication_engine_entry.multicast_group_entry.metadata = b"tag"
    client.write(change(tagged, insert), change(session(1, (2, 0), length=100), insert))
    assert client.read(group(0)) == [tagged]
    assert client.read(session(0), group(1)) == [session(1, (2, 0), length=100), tagged]
    stand_in = group(5, (1, 1))
    replicas = stand_in.packet_replication_engine_entry.multicast_group_entry.replicas
    replicas[0].backup_replicas.add(port=b"\x01", instance=2)
    urgent = session(3, (1, 0))
    urgent.packet_replication_engine_entry.clone_session_entry.class_of_service = 8  # only 0 to 7 are allowed
    updates = [
        (change(group(1, (1, 1)), insert), Code.ALREADY_EXISTS),
        (change(group(0, (1, 1)), insert), Code.INVALID_ARGUMENT),
        (change(group(1 << 15, (1, 1)), insert), Code.INVALID_ARGUMENT),
        (change(group(2, (1, 1), (1, 1)), insert), Code.INVALID_ARGUMENT),
        (change(group(2, (1, 1 << 16)), insert), Code.INVALID_ARGUMENT),
        (change(stand_in, insert), Code.INVALID_ARGUMENT),
        (change(group(3, (1, 1)), modify), Code.NOT_FOUND),
        (change(group(3), delete), Code.NOT_FOUND),
        (change(session(0, (1, 1)), insert), Code.INVALID_ARGUMENT),
        (change(session(3, (600, 1)), insert), Code.INVALID_ARGUMENT),
        (change(session(3, (1, 0), length=-1), insert), Code.INVALID_ARGUMENT),
        (change(urgent, insert), Code.INVALID_ARGUMENT),
        (change(group(1, (2, 5)), modify), Code.OK),
        (change(session(1), delete), Code.OK),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        client.write(*(u for u, _ in updates))
    assert error_codes(caught.value) == [code for _, code in updates]
    assert client.read(group(0), session(0)) == [group(1, (2, 5))]


def test_copies_go_by_instance_and_backups_stand_in() -> None:
    down: set[int] = set()
    entry = Replication(
        (Replica(3, 2), Replica(1, 2), Replica(9, 1, (Replica(8, 1), Replica(7, 1)))), b"", length=64
    )

    def copies() -> list[tuple[int, int]]:
        raw = encode_replication(entry, lambda port: port not in down)
        numbers = memoryview(raw).cast("I")
        assert numbers[1] == 64
        return [(numbers[4 + 2 * i], numbers[5 + 2 * i]) for i in range(numbers[0])]

    assert copies() == [(9, 1), (1, 2), (3, 2)]
    down |= {9, 8, 3}
    assert copies() == [(7, 1), (1, 2), (3, 2)]  # without backups a copy still goes to its port
    down.add(7)
    assert copies() == [(1, 2), (3, 2)]
    state, tx = ReplicationState(5, lambda port: port not in down), Transaction()
    state.insert(1, entry, tx)
    state.link_changed(8, tx)
    state.link_changed(1, tx)
    assert len(tx.changes) == 2
    tx.undo()
    assert state.entries == {}
    assert [c.current() for c in tx.changes] == [None, None]
