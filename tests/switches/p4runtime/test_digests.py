"""Digests: the primary gets each requested message once, and again only after its acknowledgement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4i, p4r

from mrclab.switches.ebpf.runtime.digests import DigestConfig, DigestQueue
from mrclab.switches.p4_model import Interpreter
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    DATA,
    Client,
    Namespace,
    compare_frames,
    error_codes,
    read_p4info,
    three_ports,
)

pytestmark = pytest.mark.parallel

Code = grpc.StatusCode
INFO = read_p4info(DATA / "digests.p4info.txtpb")
JSON = (DATA / "digests.json").read_bytes()
IDS = {d.preamble.name: d.preamble.id for d in INFO.digests}
MS = 1_000_000


def test_lists_are_of_different_messages_and_wait_no_longer_than_they_may() -> None:
    queue = DigestQueue()
    assert queue.offer(1, (5,), 0) == []  # no client has requested this digest
    queue.configure(1, DigestConfig(10, 3, 100))
    assert queue.offer(1, (5,), 0) == queue.offer(1, (5,), 1) == queue.offer(1, (6,), 2) == []
    assert queue.due(9) == []
    (first,) = queue.due(10)
    assert (first.digest, first.messages) == (1, ((5,), (6,)))
    assert queue.offer(1, (5,), 11) == []  # the digest is not acknowledged yet
    assert queue.due(50) == []
    queue.acknowledge(1, first.number)
    assert queue.offer(1, (5,), 51) == queue.offer(1, (7,), 52) == []
    (second,) = queue.offer(1, (8,), 53)
    assert second.messages == ((5,), (7,), (8,))
    assert second.number != first.number
    assert queue.offer(1, (5,), 152) == []
    assert queue.offer(1, (5,), 153) == []  # the wait for an acknowledgement is over, so it may be sent again
    (third,) = queue.due(163)
    assert third.messages == ((5,),)
    queue.configure(1, DigestConfig(0, 0, 0))
    assert [r.messages for _ in range(2) for r in queue.offer(1, (5,), 200)] == [((5,),), ((5,),)]
    queue.configure(1, None)
    assert queue.offer(1, (9,), 300) == []


def frame(what: int, mac: int = 7, address: int = 9) -> bytes:
    return bytes([what]) + mac.to_bytes(6, "big") + address.to_bytes(16, "big") + bytes(37)


def want(name: str, *, size: int = 1, wait: int = 0, ack: int = 0) -> p4r.Entity:
    out = p4r.Entity()
    out.digest_entry.digest_id = IDS[name]
    out.digest_entry.config.max_list_size = size
    out.digest_entry.config.max_timeout_ns = wait
    out.digest_entry.config.ack_timeout_ns = ack
    return out


@pytest.fixture(params=TARGETS)
def client(request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path) -> Iterator[Client]:
    with three_ports(request.param, namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline(JSON, INFO)
        yield client


def contents(client: Client) -> tuple[int, int, list[list[int]]]:
    message = client.hear().digest
    data = [[int.from_bytes(m.bitstring, "big") for m in d.struct.members] for d in message.data]
    return message.digest_id, message.list_id, data


@pytest.mark.root
def test_a_message_is_sent_once_until_acknowledged(client: Client, namespace: Namespace) -> None:
    model = Interpreter(read_program(JSON))
    insert = p4r.Update.INSERT
    client.write(
        p4r.Update(type=insert, entity=want("learn_t", ack=10**12)),
        p4r.Update(type=insert, entity=want("seen_t", ack=10**12)),
    )
    big = (1 << 128) - 3
    frames = [frame(0), frame(1), frame(1), frame(1, mac=(1 << 48) - 1), frame(3, address=big), frame(6)]
    compare_frames(namespace, model, frames)
    received = [contents(client) for _ in range(4)]
    names = {number: name for name, number in IDS.items()}
    expected = list(dict.fromkeys((name, values) for name, values in model.learned))
    assert [(names[digest], tuple(*data)) for digest, _, data in received] == expected
    # After its acknowledgement, a digest is sent again. Other digests are not sent again.
    ack = p4r.StreamMessageRequest()
    ack.digest_ack.digest_id, ack.digest_ack.list_id = received[0][:2]
    client.send(ack)
    client.read(want("learn_t"))  # this read comes after the acknowledgement on the same connection
    compare_frames(namespace, model, [frame(1, mac=(1 << 48) - 1), frame(1)])
    assert contents(client)[2] == [[7, 1]]


@pytest.mark.root
@pytest.mark.parametrize("client", ["ebpf"], indirect=True)
def test_frames_from_before_a_digest_is_configured_make_no_message(
    client: Client, namespace: Namespace
) -> None:
    model = Interpreter(read_program(JSON))
    entity = want("learn_t", ack=10**12)
    compare_frames(namespace, model, [frame(1, mac=11), frame(1, mac=12)])
    client.write(p4r.Update(type=p4r.Update.INSERT, entity=entity))
    compare_frames(namespace, model, [frame(1, mac=13)])
    assert contents(client)[2] == [[13, 1]]
    client.write(p4r.Update(type=p4r.Update.DELETE, entity=entity))
    compare_frames(namespace, model, [frame(1, mac=14)])
    client.write(p4r.Update(type=p4r.Update.INSERT, entity=entity))
    compare_frames(namespace, model, [frame(1, mac=15)])
    assert contents(client)[2] == [[15, 1]]


@pytest.mark.root
@pytest.mark.parametrize("client", ["ebpf"], indirect=True)
def test_digests_read_back_and_break_rules(client: Client) -> None:
    insert, modify, delete = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
    entry = want("learn_t", size=3, wait=5 * MS, ack=MS)
    nobody = want("learn_t")
    nobody.digest_entry.digest_id += 1
    updates = [
        (p4r.Update(type=modify, entity=entry), Code.NOT_FOUND),
        (p4r.Update(type=delete, entity=entry), Code.NOT_FOUND),
        (p4r.Update(type=insert, entity=want("learn_t", wait=-1)), Code.INVALID_ARGUMENT),
        (p4r.Update(type=insert, entity=nobody), Code.NOT_FOUND),
        (p4r.Update(type=insert, entity=want("learn_t")), Code.OK),
        (p4r.Update(type=insert, entity=entry), Code.ALREADY_EXISTS),
        (p4r.Update(type=modify, entity=entry), Code.OK),
        (p4r.Update(type=insert, entity=want("seen_t")), Code.OK),
        (p4r.Update(type=delete, entity=want("seen_t")), Code.OK),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        client.write(*(u for u, _ in updates))
    assert error_codes(caught.value) == [code for _, code in updates]
    assert client.read(p4r.Entity(digest_entry=p4r.DigestEntry())) == [entry]
    stray = p4r.StreamMessageRequest()
    stray.digest_ack.digest_id = 1
    client.send(stray)
    error = client.hear().error
    assert error.canonical_code == Code.INVALID_ARGUMENT.value[0]
    assert error.digest_list_ack.digest_list_ack.digest_id == 1


@pytest.mark.root
@pytest.mark.parametrize("client", ["ebpf"], indirect=True)
def test_a_signed_field_keeps_its_sign(client: Client, namespace: Namespace) -> None:
    info = p4i.P4Info()
    info.CopyFrom(INFO)
    mac = info.type_info.structs["learn_t"].members[0]
    mac.type_spec.bitstring.int.bitwidth = 48
    client.set_pipeline(JSON, info)
    client.write(p4r.Update(type=p4r.Update.INSERT, entity=want("learn_t")))
    macs = [-1, 255, -256, (1 << 47) - 1]
    frames = [frame(1, mac=mac % (1 << 48)) for mac in macs]
    compare_frames(namespace, Interpreter(read_program(JSON)), frames)
    fields = [client.hear().digest.data[0].struct.members[0].bitstring for _ in macs]
    assert [int.from_bytes(f, "big", signed=True) for f in fields] == macs
    del info.type_info.structs["learn_t"].members[1]
    with pytest.raises(grpc.RpcError, match="differ in the fields of digest learn_t"):
        client.set_pipeline(JSON, info)
