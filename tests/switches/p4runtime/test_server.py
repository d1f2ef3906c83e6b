"""The P4Runtime server as a client sees it, with real BPF maps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4i, p4r, rpc_status

from mrclab.switches.ebpf.target import EbpfTarget
from mrclab.switches.spec import SwitchSpec
from tests.support.switch_kit import (
    DATA,
    Client,
    Names,
    Namespace,
    delete,
    forwarded,
    insert,
    modify,
    read_p4info,
)

pytestmark = [pytest.mark.root, pytest.mark.parallel]
Code = grpc.StatusCode
Config = p4r.SetForwardingPipelineConfigRequest
MATCH_JSON = (DATA / "match.json").read_bytes()
ARITH_JSON = (DATA / "arith.json").read_bytes()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start one server with two switches: devices 1 and 2 with one port each. Yield its address."""
    ns = Namespace()
    target = EbpfTarget()
    try:
        for i in (1, 2):
            ns.pair(f"s{i}", f"h{i}")
        specs = [SwitchSpec(f"s{i}", i, {1: f"s{i}"}) for i in (1, 2)]
        running = target.start(specs, netns=ns.name, log_dir=tmp_path_factory.mktemp("log"))
        with forwarded(ns, running[0].grpc_address) as local:
            yield local
    finally:
        target.stop()
        ns.delete()


@pytest.fixture(scope="module")
def info() -> p4i.P4Info:
    return read_p4info(DATA / "match.p4info.txtpb")


@pytest.fixture(scope="module")
def names(info: p4i.P4Info) -> Names:
    return Names(info)


@pytest.fixture
def client(address: str, info: p4i.P4Info) -> Iterator[Client]:
    """Yield the primary client of device 1, with a new pipeline."""
    client = Client(address, 1)
    client.become_primary()
    client.set_pipeline(MATCH_JSON, info)
    yield client
    client.close()


def code_of(call: pytest.ExceptionInfo[grpc.RpcError]) -> grpc.StatusCode:
    return call.value.code()


def codes_of(call: pytest.ExceptionInfo[grpc.RpcError]) -> list[int]:
    data = dict(call.value.trailing_metadata())["grpc-status-details-bin"]
    out = []
    for detail in rpc_status.Status.FromString(data).details:
        error = p4r.Error()
        assert detail.Unpack(error)
        out.append(error.canonical_code)
    return out


def entries_of(client: Client, table: int = 0) -> list[p4r.TableEntry]:
    wanted = p4r.Entity(table_entry=p4r.TableEntry(table_id=table))
    return [e.table_entry for e in client.read(wanted)]


def own(client: Client, names: Names, table: str) -> list[p4r.TableEntry]:
    return entries_of(client, names.tables[table].preamble.id)


def test_capabilities_name_the_api(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        from finsy.proto import p4r_grpc

        stub = p4r_grpc.P4RuntimeStub(channel)
        for device_id in (0, 1):  # 0: of the server as a whole
            answer = stub.Capabilities(p4r.CapabilitiesRequest(device_id=device_id))
            assert answer.p4runtime_api_version.startswith("1.")
        with pytest.raises(grpc.RpcError) as caught:
            stub.Capabilities(p4r.CapabilitiesRequest(device_id=9))
    assert code_of(caught) is Code.NOT_FOUND


def test_writes_are_for_the_primary_only(
    client: Client, address: str, names: Names, info: p4i.P4Info
) -> None:
    entry = names.entry("I.pair", {"hdr.key.a": 1, "hdr.key.d": 1}, "I.note")
    backup = Client(address, 1)
    backup.arbitrate(0)
    assert backup.hear().arbitration.status.code == Code.ALREADY_EXISTS.value[0]
    backup.election = 7
    for act in (lambda: backup.write(insert(entry)), lambda: backup.set_pipeline(MATCH_JSON, info)):
        with pytest.raises(grpc.RpcError) as caught:
            act()
        assert code_of(caught) is Code.PERMISSION_DENIED
    assert own(backup, names, "I.pair") == []  # every client may read
    backup.close()


def test_the_backup_learns_that_the_primary_is_gone(address: str) -> None:
    first, second = Client(address, 2, 100), Client(address, 2, 90)
    first.become_primary()
    second.arbitrate()
    assert second.hear().arbitration.status.code == Code.ALREADY_EXISTS.value[0]
    first.close()
    assert second.hear().arbitration.status.code == Code.NOT_FOUND.value[0]
    second.arbitrate(101)
    assert second.hear().arbitration.status.code == 0
    second.close()


def test_streams_that_are_refused(address: str) -> None:
    stranger = Client(address, 77)
    stranger.arbitrate()
    with pytest.raises(grpc.RpcError) as caught:
        stranger.hear()
    assert code_of(caught) is Code.NOT_FOUND
    stranger.close()
    hasty = Client(address, 1)
    hasty.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"x")))
    with pytest.raises(grpc.RpcError) as caught:
        hasty.hear()
    assert code_of(caught) is Code.FAILED_PRECONDITION
    hasty.close()


def test_packet_out_without_a_cpu_port_is_answered_with_an_error(client: Client) -> None:
    client.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"x")))
    answer = client.hear()
    assert answer.error.canonical_code == Code.FAILED_PRECONDITION.value[0]
    assert answer.error.packet_out.packet_out.payload == b"x"


def test_without_a_pipeline_nothing_can_be_written_or_read(
    tmp_path: Path, namespace: Namespace, names: Names
) -> None:
    target = EbpfTarget()
    (running,) = target.start([SwitchSpec("s", 1, {})], netns=namespace.name, log_dir=tmp_path)
    try:
        with forwarded(namespace, running.grpc_address) as local:
            client = Client(local, 1)
            client.become_primary()
            request = p4r.GetForwardingPipelineConfigRequest(device_id=1)
            assert not client.stub.GetForwardingPipelineConfig(request).HasField("config")
            commit = Config(device_id=1, action=Config.COMMIT)
            commit.election_id.low = 1
            for act, code in (
                (lambda: entries_of(client), Code.FAILED_PRECONDITION),
                (lambda: client.write(), Code.FAILED_PRECONDITION),
                (lambda: client.stub.SetForwardingPipelineConfig(commit), Code.NOT_FOUND),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    act()
                assert code_of(caught) is code
            client.close()
    finally:
        target.stop()


def test_the_pipeline_config_reads_back_in_parts(client: Client, info: p4i.P4Info) -> None:
    request = p4r.GetForwardingPipelineConfigRequest
    seen = {}
    for kind in (
        request.ALL,
        request.COOKIE_ONLY,
        request.P4INFO_AND_COOKIE,
        request.DEVICE_CONFIG_AND_COOKIE,
    ):
        config = client.stub.GetForwardingPipelineConfig(request(device_id=1, response_type=kind)).config
        assert config.cookie.cookie == 1
        seen[kind] = (config.HasField("p4info"), bool(config.p4_device_config))
        assert not config.HasField("p4info") or config.p4info == info
        assert config.p4_device_config in (b"", MATCH_JSON)
    assert list(seen.values()) == [(True, True), (False, False), (True, False), (False, True)]


def test_verify_save_commit_and_reconcile(client: Client, info: p4i.P4Info, names: Names) -> None:
    entry = names.entry("I.pair", {"hdr.key.a": 1, "hdr.key.d": 1}, "I.note")
    client.write(insert(entry))
    other = read_p4info(DATA / "arith.p4info.txtpb")
    client.set_pipeline(ARITH_JSON, other, Config.VERIFY, 2)
    client.set_pipeline(MATCH_JSON, info, Config.RECONCILE_AND_COMMIT, 3)
    assert own(client, names, "I.pair") == [entry]
    with pytest.raises(grpc.RpcError) as caught:  # the program arith has no table I.pair
        client.set_pipeline(ARITH_JSON, other, Config.RECONCILE_AND_COMMIT)
    assert code_of(caught) is Code.INVALID_ARGUMENT
    assert own(client, names, "I.pair") == [entry]
    client.set_pipeline(MATCH_JSON + b"\n", info, Config.RECONCILE_AND_COMMIT, 3)
    assert own(client, names, "I.pair") == [entry]
    client.set_pipeline(MATCH_JSON, info, Config.VERIFY_AND_SAVE, 4)
    cookie_only = p4r.GetForwardingPipelineConfigRequest(device_id=1, response_type=1)
    assert client.stub.GetForwardingPipelineConfig(cookie_only).config.cookie.cookie == 3
    later = names.entry("I.pair", {"hdr.key.a": 2, "hdr.key.d": 2}, "I.note")
    client.write(insert(later))  # this goes to the saved pipeline, whose tables are empty
    assert own(client, names, "I.pair") == [later]
    commit = Config(device_id=1, action=Config.COMMIT)
    commit.election_id.low = 1
    with_config = Config()
    with_config.CopyFrom(commit)
    with_config.config.p4_device_config = MATCH_JSON
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.SetForwardingPipelineConfig(with_config)
    assert code_of(caught) is Code.INVALID_ARGUMENT
    client.stub.SetForwardingPipelineConfig(commit)
    assert client.stub.GetForwardingPipelineConfig(cookie_only).config.cookie.cookie == 4
    assert own(client, names, "I.pair") == [later]
    client.set_pipeline(MATCH_JSON, info)
    assert own(client, names, "I.pair") == []


def test_reconciling_keeps_what_a_client_has_done_to_initial_entries(
    client: Client, info: p4i.P4Info, names: Names
) -> None:
    mine = p4i.P4Info()
    mine.CopyFrom(info)
    (table,) = [t for t in mine.tables if t.preamble.name == "I.fixed"]
    table.is_const_table, table.has_initial_entries = False, True
    client.set_pipeline(MATCH_JSON, mine)
    first, second, third = own(client, names, "I.fixed")
    added = names.entry("I.fixed", {"hdr.key.b": (8, "&", 8)}, "I.note", priority=9)
    first.action.CopyFrom(third.action)
    client.write(modify(first), delete(second), insert(added))
    assert own(client, names, "I.fixed") == [first, third, added]
    client.set_pipeline(MATCH_JSON + b"\n", mine, Config.RECONCILE_AND_COMMIT)
    assert own(client, names, "I.fixed") == [first, third, added]


def test_pipelines_that_do_not_fit_are_refused_and_change_nothing(client: Client, info: p4i.P4Info) -> None:
    other = read_p4info(DATA / "arith.p4info.txtpb")
    for data, p4info in ((b"no json", info), (b"{}", info), (ARITH_JSON, info), (MATCH_JSON, other)):
        with pytest.raises(grpc.RpcError) as caught:
            client.set_pipeline(data, p4info)
        assert code_of(caught) is Code.INVALID_ARGUMENT
        assert "\n" not in caught.value.details()
    config = client.stub.GetForwardingPipelineConfig(
        p4r.GetForwardingPipelineConfigRequest(device_id=1)
    ).config
    assert config.p4_device_config == MATCH_JSON


def test_updates_are_done_in_order_and_fail_alone(client: Client, names: Names) -> None:
    def entry(a: int, action: str = "I.note") -> p4r.TableEntry:
        return names.entry("I.pair", {"hdr.key.a": a, "hdr.key.d": 1}, action)

    with pytest.raises(grpc.RpcError) as caught:
        client.write(
            insert(entry(1)),
            insert(entry(1)),
            modify(entry(2)),
            insert(entry(3)),
            delete(entry(4)),
            modify(entry(3, "I.leave")),
            delete(entry(1)),
        )
    assert code_of(caught) is Code.UNKNOWN
    assert codes_of(caught) == [0, 6, 5, 0, 5, 0, 0]
    assert own(client, names, "I.pair") == [entry(3, "I.leave")]


def test_a_batch_can_be_all_or_nothing(client: Client, names: Names) -> None:
    def entry(a: int, action: str = "I.note") -> p4r.TableEntry:
        return names.entry("I.pair", {"hdr.key.a": a, "hdr.key.d": 1}, action)

    client.write(insert(entry(1)), insert(entry(2)))
    request = p4r.WriteRequest(device_id=1, atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR)
    request.election_id.low = 1
    request.updates.extend([insert(entry(3)), modify(entry(1, "I.leave")), delete(entry(2))])
    request.updates.append(insert(entry(3)))
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.Write(request)
    aborted = Code.ABORTED.value[0]
    assert codes_of(caught) == [aborted, aborted, aborted, Code.ALREADY_EXISTS.value[0]]
    assert own(client, names, "I.pair") == [entry(1), entry(2)]
    del request.updates[3]
    client.stub.Write(request)
    assert own(client, names, "I.pair") == [entry(1, "I.leave"), entry(3)]


def test_a_table_has_its_size(client: Client, names: Names) -> None:
    def entry(i: int) -> p4r.TableEntry:
        return names.entry("I.span", {"hdr.key.b": (i, "..", i)}, "I.note", priority=1)

    client.write(*(insert(entry(i)) for i in range(20)))
    with pytest.raises(grpc.RpcError) as caught:
        client.write(insert(entry(20)))
    assert codes_of(caught) == [Code.RESOURCE_EXHAUSTED.value[0]]
    client.write(delete(entry(3)), insert(entry(20)))
    assert len(own(client, names, "I.span")) == 20


def test_default_entries(client: Client, names: Names) -> None:
    table = names.tables["I.pair"].preamble.id
    wanted = p4r.Entity(table_entry=p4r.TableEntry(table_id=table, is_default_action=True))

    def default() -> p4r.TableEntry:
        (found,) = client.read(wanted)
        assert found.table_entry.is_default_action
        return found.table_entry

    first = default()
    assert first.action.action.action_id == names.actions["I.note"].preamble.id
    new = names.entry("I.pair", {}, "I.mark", 2, 200)
    new.is_default_action = True
    client.write(modify(new))
    assert default() == new
    client.write(modify(p4r.TableEntry(table_id=table, is_default_action=True)))
    assert default() == first
    for update in (insert(new), delete(new)):
        with pytest.raises(grpc.RpcError) as caught:
            client.write(update)
        assert codes_of(caught) == [Code.INVALID_ARGUMENT.value[0]]
    everywhere = client.read(p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True)))
    assert len(everywhere) == len(names.tables)


def test_constant_entries_are_read_only(client: Client, names: Names) -> None:
    fixed = own(client, names, "I.fixed")
    assert [e.priority for e in fixed] == [3, 2, 1]
    assert all(e.is_const for e in fixed)
    plain = p4r.TableEntry()
    plain.CopyFrom(fixed[0])
    plain.is_const = False
    with pytest.raises(grpc.RpcError) as caught:
        client.write(delete(fixed[0]), delete(plain), modify(plain), insert(plain))
    denied = Code.PERMISSION_DENIED.value[0]
    assert codes_of(caught) == [Code.INVALID_ARGUMENT.value[0], denied, denied, denied]


def test_reads_with_wildcards(client: Client, names: Names) -> None:
    pair = names.entry("I.pair", {"hdr.key.a": 1, "hdr.key.d": 1}, "I.note")
    low = names.entry("I.scan", {"hdr.key.a": 2}, "I.note", priority=1)
    high = names.entry("I.scan", {"hdr.key.a": 2}, "I.mark", 1, 1, priority=2)
    client.write(insert(pair), insert(low), insert(high))
    found = entries_of(client)
    assert [e for e in found if e.table_id == pair.table_id] == [pair]
    assert len(found) == 3 + 3  # three written and three constant entries
    only = p4r.Entity(table_entry=p4r.TableEntry(table_id=low.table_id, priority=2))
    assert [e.table_entry for e in client.read(only)] == [high]
    exact = p4r.TableEntry(table_id=low.table_id, match=low.match, priority=1)
    assert [e.table_entry for e in client.read(p4r.Entity(table_entry=exact))] == [low]
    direct = client.read(p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry()))
    assert [e.direct_counter_entry.table_entry.priority for e in direct] == [1, 2]
    assert all(e.direct_counter_entry.data.packet_count == 0 for e in direct)
    with pytest.raises(grpc.RpcError) as caught:
        client.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=4711)))
    assert (code_of(caught), codes_of(caught)) == (Code.UNKNOWN, [Code.NOT_FOUND.value[0]])


def test_counters_are_written_and_read(client: Client, names: Names) -> None:
    update = p4r.Update(type=p4r.Update.MODIFY, entity=names.counter("I.seen", 1999))
    update.entity.counter_entry.data.packet_count = 5
    update.entity.counter_entry.data.byte_count = 700
    client.write(update)
    (found,) = client.read(names.counter("I.seen", 1999))
    assert (found.counter_entry.data.packet_count, found.counter_entry.data.byte_count) == (5, 700)
    assert len(client.read(names.counter("I.seen"))) == 2000
    with pytest.raises(grpc.RpcError) as caught:
        client.read(names.counter("I.seen", 3), names.counter("I.seen", 2000), names.counter("I.seen", -1))
    assert codes_of(caught) == [0, Code.OUT_OF_RANGE.value[0], Code.INVALID_ARGUMENT.value[0]]
    for kind in (p4r.Update.INSERT, p4r.Update.DELETE):
        update.type = kind
        with pytest.raises(grpc.RpcError) as caught:
            client.write(update)
        assert codes_of(caught) == [Code.INVALID_ARGUMENT.value[0]]


def test_what_the_target_has_not_got(client: Client) -> None:
    register = p4r.Entity(register_entry=p4r.RegisterEntry(register_id=1))
    with pytest.raises(grpc.RpcError) as caught:
        client.read(register)
    assert codes_of(caught) == [Code.NOT_FOUND.value[0]]  # this program has no such entry
    with pytest.raises(grpc.RpcError) as caught:
        client.write(p4r.Update(type=p4r.Update.MODIFY, entity=register))
    assert codes_of(caught) == [Code.NOT_FOUND.value[0]]


def test_devices_are_apart(client: Client, address: str, names: Names, info: p4i.P4Info) -> None:
    other = Client(address, 2, 200)
    other.become_primary()
    other.set_pipeline(MATCH_JSON, info)
    entry = names.entry("I.pair", {"hdr.key.a": 1, "hdr.key.d": 1}, "I.note")
    other.write(insert(entry))
    assert own(client, names, "I.pair") == []
    assert own(other, names, "I.pair") == [entry]
    other.close()
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stub.Read(p4r.ReadRequest(device_id=9)))
    assert code_of(caught) is Code.NOT_FOUND


@pytest.mark.parametrize("size", [1 << 31, 1 << 32, 1 << 70])
def test_a_table_of_an_impossible_size_is_refused_in_a_line(
    client: Client, names: Names, info: p4i.P4Info, size: int
) -> None:
    entry = names.entry("I.pair", {"hdr.key.a": 1, "hdr.key.d": 2}, "I.note")
    client.write(insert(entry))
    raw = json.loads(MATCH_JSON)
    (table,) = [table for table in raw["pipelines"][0]["tables"] if table["name"] == "I.pair"]
    table["max_size"] = size
    for action in (Config.VERIFY, Config.VERIFY_AND_SAVE, Config.VERIFY_AND_COMMIT):
        with pytest.raises(grpc.RpcError) as caught:
            client.set_pipeline(json.dumps(raw).encode(), info, action)
        assert code_of(caught) is Code.RESOURCE_EXHAUSTED
        assert caught.value.details() == "the kernel does not take the program: Argument list too long"
    assert own(client, names, "I.pair") == [entry]
