"""A frame sees all changes of a batch or none (P4Runtime specification, section 12.2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4i, p4r

from tests.support.switch_kit import (
    DATA,
    Client,
    Names,
    Namespace,
    delete,
    error_codes,
    insert,
    modify,
    read_p4info,
    receive,
    three_ports,
)

pytestmark = [pytest.mark.root, pytest.mark.parallel]
Code = grpc.StatusCode
FRAME = bytes([2]) + bytes(8) + bytes(7) + b"\1" + bytes(43)
RESULT = 20  # the offset of the result's last byte


@pytest.fixture(scope="module")
def info() -> p4i.P4Info:
    return read_p4info(DATA / "match.p4info.txtpb")


@pytest.fixture
def client(namespace: Namespace, tmp_path: Path, info: p4i.P4Info) -> Iterator[Client]:
    with three_ports("ebpf", namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline((DATA / "match.json").read_bytes(), info)
        yield client


def write(client: Client, *updates: p4r.Update) -> None:
    request = p4r.WriteRequest(
        device_id=client.device_id, updates=updates, atomicity=p4r.WriteRequest.DATAPLANE_ATOMIC
    )
    request.election_id.low = client.election
    client.stub.Write(request)


def held(client: Client, table: p4i.Table) -> Sequence[p4r.TableEntry]:
    wanted = p4r.Entity(table_entry=p4r.TableEntry(table_id=table.preamble.id))
    return [e.table_entry for e in client.read(wanted)]


@pytest.mark.slow
def test_no_frame_sees_a_part_of_a_batch(client: Client, namespace: Namespace, info: p4i.P4Info) -> None:
    names = Names(info)
    one = names.entry("I.scan", {"hdr.key.a": 2}, "I.mark", 0, 0x11, priority=2)
    two = names.entry("I.scan", {"hdr.key.a": 2}, "I.mark", 0, 0x22, priority=3)
    write(client, insert(one))
    sender, taker = namespace.packet_socket("h1"), namespace.packet_socket("h2")
    done, seen = threading.Event(), set()

    def send() -> None:
        while not done.is_set():
            sender.send(FRAME)

    def take() -> None:
        while frames := receive(taker, 100, 1):
            seen.update(f[RESULT] for f in frames)

    threads = [threading.Thread(target=work) for work in (send, take)]
    for t in threads:
        t.start()
    for _ in range(100):
        write(client, delete(one), insert(two))
        write(client, delete(two), insert(one))
    done.set()
    for t in threads:
        t.join()
    sender.close()
    taker.close()
    assert seen == {0x11, 0x22}  # without an entry the result would be 1


def test_one_update_is_always_a_whole(client: Client, info: p4i.P4Info) -> None:
    names = Names(info)
    entry = names.entry("I.pair", {"hdr.key.a": 1, "hdr.key.d": 1}, "I.note")
    write(client, insert(entry))
    other = names.entry("I.pair", {"hdr.key.a": 1, "hdr.key.d": 1}, "I.mark", 1, 2)
    write(client, modify(other))
    assert held(client, names.tables["I.pair"]) == [other]
    write(client, modify(entry), delete(entry), insert(other), delete(other))
    write(client, insert(entry), delete(entry))
    assert held(client, names.tables["I.pair"]) == []


def test_what_takes_several_changes_is_refused_and_not_begun(client: Client, info: p4i.P4Info) -> None:
    names = Names(info)
    entries = [names.entry("I.pair", {"hdr.key.a": i, "hdr.key.d": 1}, "I.note") for i in (1, 2)]
    with pytest.raises(grpc.RpcError) as caught:
        write(client, *(insert(e) for e in entries))
    assert caught.value.code() is Code.UNIMPLEMENTED
    assert "DATAPLANE_ATOMIC: this batch comes to 2 updates of the kernel's maps" in caught.value.details()
    assert held(client, names.tables["I.pair"]) == []
    client.write(*(insert(e) for e in entries))


def test_one_that_fails_takes_the_others_with_it(client: Client, info: p4i.P4Info) -> None:
    names = Names(info)
    good = [names.entry("I.scan", {"hdr.key.a": i}, "I.note", priority=1) for i in (1, 2)]
    with pytest.raises(grpc.RpcError) as caught:
        write(client, insert(good[0]), delete(good[1]))
    assert error_codes(caught.value) == [Code.ABORTED, Code.NOT_FOUND]
    assert held(client, names.tables["I.scan"]) == []
    write(client, *(insert(e) for e in good))
    assert len(held(client, names.tables["I.scan"])) == 2


def pipeline(client: Client, name: str) -> p4i.P4Info:
    info = read_p4info(DATA / f"{name}.p4info.txtpb")
    client.set_pipeline((DATA / f"{name}.json").read_bytes(), info)
    return info


def test_one_update_is_a_whole_with_its_meter_timeout_and_one_shot(client: Client) -> None:
    names = Names(pipeline(client, "resources"))
    entries = [names.entry("I.limited", {"hdr.key.a": a}, "I.note") for a in (1, 2)]
    for entry in entries:
        entry.idle_timeout_ns = 10**12
        entry.meter_config.cir = entry.meter_config.pir = 1
    write(client, insert(entries[0]))
    with pytest.raises(grpc.RpcError) as caught:  # a frame could still hit the entry whose meter is changed
        write(client, delete(entries[0]), insert(entries[1]))
    assert caught.value.code() is Code.UNIMPLEMENTED
    with pytest.raises(grpc.RpcError) as caught:  # the action and the meter of an entry in use
        write(client, modify(entries[0]))
    assert caught.value.code() is Code.UNIMPLEMENTED
    wanted = p4r.TableEntry(table_id=entries[0].table_id)
    wanted.meter_config.SetInParent()
    assert [e.table_entry for e in client.read(p4r.Entity(table_entry=wanted))] == [entries[0]]
    names = Names(pipeline(client, "select"))
    shots = [names.entry("I.same", {"hdr.key.d": (1, "&", 1)}, priority=1) for _ in range(2)]
    for shot, weights in zip(shots, ((1,), (2, 3)), strict=True):
        for weight in weights:
            action = shot.action.action_profile_action_set.action_profile_actions.add(weight=weight).action
            action.action_id = names.actions["I.note"].preamble.id
    for kind, shot in ((insert, shots[0]), (modify, shots[1]), (modify, shots[0])):
        write(client, kind(shot))
        assert held(client, names.tables["I.same"]) == [shot]
    write(client, delete(shots[0]))
    assert held(client, names.tables["I.same"]) == []


def test_cells_of_registers_count_as_values(client: Client) -> None:
    info = pipeline(client, "registers")
    (number,) = [r.preamble.id for r in info.registers if r.preamble.name == "I.sums"]

    def change(value: bytes, *index: int) -> p4r.Update:
        entry = p4r.RegisterEntry(register_id=number)
        entry.data.bitstring = value
        for i in index:
            entry.index.index = i
        return p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(register_entry=entry))

    write(client, change(b"\x05", 2))
    for updates in ([change(b"\x06")], [change(b"\x06", 2), change(b"\x06", 3)]):
        with pytest.raises(grpc.RpcError) as caught:
            write(client, *updates)
        assert caught.value.code() is Code.UNIMPLEMENTED
    wanted = p4r.Entity(register_entry=p4r.RegisterEntry(register_id=number))
    values = [e.register_entry.data.bitstring for e in client.read(wanted)]
    assert values == [b"\0", b"\0", b"\x05", *[b"\0"] * 61]
