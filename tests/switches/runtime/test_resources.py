"""Meters and counters, of arrays and of table entries, and idle timeouts."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from finsy.proto import p4i, p4r

from mrclab.linux import bpf
from mrclab.switches.p4_model import Exact, Interpreter, Meter, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_bench import Bench, bench_of
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    DATA,
    Client,
    Names,
    Namespace,
    compare_frames,
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
RECONCILE_AND_COMMIT = p4r.SetForwardingPipelineConfigRequest.RECONCILE_AND_COMMIT
SIZE = 60
GREEN, YELLOW, RED = 0, 1, 2


def frame(kind: int, a: int) -> bytes:
    return bytes([kind, a >> 8, a & 0xFF]).ljust(SIZE, b"\0")


@pytest.mark.parametrize(
    ("sizes", "colours"),
    [
        # RFC 2698, section 3. If the peak bucket has too few tokens, a packet is red and takes none. If the
        # committed bucket has too few, the packet is yellow and takes tokens only from the peak bucket.
        ([100, 100, 100, 100], [GREEN, GREEN, YELLOW, RED]),
        ([250, 100, 50], [YELLOW, RED, GREEN]),
        ([301, 300, 1], [RED, YELLOW, RED]),
    ],
)
def test_colours_are_those_of_rfc_2698(sizes: list[int], colours: list[int]) -> None:
    meter = Meter(0, 200, 0, 300)
    assert [meter.colour(s, 0) for s in sizes] == colours


def test_buckets_fill_at_their_rates_up_to_their_bursts() -> None:
    meter = Meter(1_000, 100, 2_000, 200)
    assert [meter.colour(100, 0) for _ in range(3)] == [GREEN, YELLOW, RED]
    assert meter.colour(100, 49_000) == RED  # the peak bucket has 98
    assert meter.colour(100, 50_000) == YELLOW  # the buckets have 100 and 50
    assert meter.colour(100, 10_000_000) == GREEN
    assert meter.tokens == [100, 0]


class Switch:
    def __init__(self, client: Client) -> None:
        info, json = read_p4info(DATA / "resources.p4info.txtpb"), (DATA / "resources.json").read_bytes()
        self.client, self.names = client, Names(info)
        self.meters = {m.preamble.name: m.preamble.id for m in info.meters}
        self.model = Interpreter(read_program(json))
        client.become_primary()
        client.set_pipeline(json, info)

    def meter(self, name: str, index: int | None, rates: tuple[int, int, int, int] | None) -> p4r.Update:
        out = p4r.Update(type=p4r.Update.MODIFY)
        out.entity.meter_entry.meter_id = self.meters[name]
        if index is not None:
            out.entity.meter_entry.index.index = index
        if rates is not None:
            config(out.entity.meter_entry.config, rates)
        return out

    def entry(self, a: int, *, rates: Any = None, action: str = "I.mark") -> p4r.TableEntry:
        out = self.names.entry("I.limited", {"hdr.key.a": a}, action, *((7,) if action == "I.mark" else ()))
        if rates is not None:
            config(out.meter_config, rates)
        return out


def config(to: p4r.MeterConfig, rates: tuple[int, int, int, int]) -> None:
    to.cir, to.cburst, to.pir, to.pburst = rates


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports(request.param, namespace, tmp_path) as client:
        yield Switch(client)


@pytest.fixture
def ebpf(namespace: Namespace, tmp_path: Path) -> Iterator[Switch]:
    with three_ports("ebpf", namespace, tmp_path) as client:
        yield Switch(client)


# A token takes more than eleven days, so no token comes back during a test.
SLOW = 1


def test_bursts_are_marked_alike(switch: Switch, namespace: Namespace) -> None:
    s, rng = switch, random.Random(5)
    for name, index, rates in (
        ("I.by_packets", 1, (0, 3, 0, 5)),
        ("I.by_packets", 2, (0, 0, 0, 2)),
        ("I.by_bytes", 1, (0, 3 * SIZE, 0, 5 * SIZE - 1)),
        ("I.by_bytes", 2, (0, SIZE - 1, 0, SIZE)),
    ):
        s.client.write(s.meter(name, index, rates))
        s.model.meters[name, index] = Meter(*rates)
    for a, rates in ((1, (0, 2 * SIZE, 0, 4 * SIZE)), (2, None)):
        s.client.write(insert(s.entry(a, rates=rates)))
        rule = Rule((Exact(a),), "I.mark", (7,))
        s.model.rules["I.limited"] = [*s.model.rules.get("I.limited", []), rule]
        if rates is not None:
            s.model.direct_meters["I.limited", rule] = Meter(*rates)
    compare_frames(namespace, s.model, [frame(rng.randrange(4), rng.randrange(4)) for _ in range(40)])
    # After a new configuration, buckets are full again. Without a configuration, every packet is green.
    s.client.write(s.meter("I.by_packets", 1, (0, 1, 0, 2)), s.meter("I.by_bytes", 1, None))
    s.model.meters["I.by_packets", 1] = Meter(0, 1, 0, 2)
    del s.model.meters["I.by_bytes", 1]
    compare_frames(namespace, s.model, [frame(1, 2) for _ in range(5)])


def test_fast_meters_fill_again_between_two_frames(switch: Switch, namespace: Namespace) -> None:
    s, rate = switch, 10**9
    s.client.write(s.meter("I.by_bytes", 3, (rate, SIZE, rate, SIZE)))
    s.client.write(s.meter("I.by_packets", 3, (rate, 1, rate, 1)))
    compare_frames(namespace, s.model, [frame(3, 9) for _ in range(20)])


def test_what_is_counted_reads_back(ebpf: Switch, namespace: Namespace) -> None:
    s = ebpf
    first = s.entry(1)
    first.counter_data.packet_count = 10
    s.client.write(insert(first), insert(s.entry(2)))
    s.model.rules["I.limited"] = [Rule((Exact(a),), "I.mark", (7,)) for a in (1, 2)]
    compare_frames(namespace, s.model, [frame(1, 1)] * 3 + [frame(2, 2)] * 2 + [frame(3, 9)])
    read = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry())
    found = [e.direct_counter_entry.data for e in s.client.read(read)]
    assert [(d.packet_count, d.byte_count) for d in found] == [(13, 3 * SIZE), (2, 2 * SIZE)]
    kinds = s.client.read(s.names.counter("I.kinds"))
    assert [e.counter_entry.data.packet_count for e in kinds] == [0, 3, 2, 1, 0, 0, 0, 0]
    assert kinds[1].counter_entry.data.byte_count == 3 * SIZE


def test_meters_read_back_and_break_rules(ebpf: Switch) -> None:
    s, rates = ebpf, (1_000, 10, 2_000, 20)
    s.client.write(s.meter("I.by_packets", None, rates), s.meter("I.by_packets", 7, None))
    everything = p4r.Entity(meter_entry=p4r.MeterEntry())
    read = [e.meter_entry for e in s.client.read(everything)]
    assert len(read) == 16
    written = s.meter("I.by_packets", 0, rates).entity.meter_entry
    assert read[0] == written
    assert sum(m.HasField("config") for m in read) == 7
    limited = s.entry(1, rates=rates)
    s.client.write(insert(limited))
    wanted = p4r.TableEntry(table_id=limited.table_id, meter_config=p4r.MeterConfig())
    assert [e.table_entry for e in s.client.read(p4r.Entity(table_entry=wanted))] == [limited]
    direct = p4r.Update(type=p4r.Update.MODIFY)
    direct.entity.direct_meter_entry.table_entry.CopyFrom(s.entry(1))
    config(direct.entity.direct_meter_entry.config, (1, 1, 1, 1))
    s.client.write(direct)
    (again,) = s.client.read(p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry()))
    assert again.direct_meter_entry.config.pburst == 1
    # MODIFY without a configuration restores the default (specification, section 9.1.7).
    s.client.write(modify(s.entry(1, action="I.note")))
    (again,) = s.client.read(p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry()))
    assert not again.direct_meter_entry.HasField("config")
    absent = p4r.Update(type=p4r.Update.MODIFY)
    absent.entity.direct_meter_entry.table_entry.CopyFrom(s.entry(5))
    wrong = s.meter("I.by_bytes", 1, rates)
    wrong.type = p4r.Update.INSERT
    excess = s.meter("I.by_bytes", 1, rates)
    excess.entity.meter_entry.config.eburst = 1
    nobody = s.meter("I.by_bytes", 1, rates)
    nobody.entity.meter_entry.meter_id += 1
    updates = [
        (s.meter("I.by_bytes", 8, rates), Code.OUT_OF_RANGE),
        (s.meter("I.by_bytes", -1, rates), Code.INVALID_ARGUMENT),
        (s.meter("I.by_bytes", 1, (2, 1, 1, 1)), Code.INVALID_ARGUMENT),
        (s.meter("I.by_bytes", 1, (-1, 1, 1, 1)), Code.INVALID_ARGUMENT),
        (excess, Code.INVALID_ARGUMENT),
        (wrong, Code.INVALID_ARGUMENT),
        (nobody, Code.NOT_FOUND),
        (absent, Code.NOT_FOUND),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        s.client.write(*(u for u, _ in updates))
    assert error_codes(caught.value) == [code for _, code in updates]


def counts(data: p4r.CounterData) -> tuple[int, int]:
    return data.packet_count, data.byte_count


def test_colours_are_counted(ebpf: Switch, namespace: Namespace) -> None:
    s = ebpf
    s.client.write(s.meter("I.by_packets", 1, (0, 1, 0, 3)))
    s.client.write(insert(s.entry(1, rates=(0, 0, 0, SIZE))))
    sent = [frame(1, 1)] * 5
    s.model.meters["I.by_packets", 1] = Meter(0, 1, 0, 3)
    rule = Rule((Exact(1),), "I.mark", (7,))
    s.model.rules["I.limited"] = [rule]
    s.model.direct_meters["I.limited", rule] = Meter(0, 0, 0, SIZE)
    compare_frames(namespace, s.model, sent)
    wanted = s.meter("I.by_packets", 1, None).entity
    (plain,) = s.client.read(wanted)
    assert not plain.meter_entry.HasField("counter_data")
    wanted.meter_entry.counter_data.SetInParent()
    (read,) = s.client.read(wanted)
    data = read.meter_entry.counter_data
    assert [counts(c) for c in (data.green, data.yellow, data.red)] == [
        (1, SIZE), (2, 2 * SIZE), (2, 2 * SIZE),
    ]  # fmt: skip
    direct = p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry())
    direct.direct_meter_entry.counter_data.SetInParent()
    (read,) = s.client.read(direct)
    data = read.direct_meter_entry.counter_data
    assert [counts(c) for c in (data.green, data.yellow, data.red)] == [(0, 0), (1, SIZE), (4, 4 * SIZE)]
    writing = p4r.Update(type=p4r.Update.MODIFY)
    writing.entity.direct_meter_entry.table_entry.CopyFrom(s.entry(1))
    writing.entity.direct_meter_entry.counter_data.green.byte_count = 8
    s.client.write(writing)
    (read,) = s.client.read(direct)
    assert counts(read.direct_meter_entry.counter_data.green) == (0, 8)
    # A configuration does not change the counters. Counters that are written continue from the new value.
    s.client.write(s.meter("I.by_packets", 1, (0, 1, 0, 3)))
    again = s.meter("I.by_packets", 1, (0, 9, 0, 9))
    again.entity.meter_entry.counter_data.red.packet_count = 40
    (read,) = s.client.read(wanted)
    assert counts(read.meter_entry.counter_data.yellow) == (2, 2 * SIZE)
    s.client.write(again)
    (read,) = s.client.read(wanted)
    assert counts(read.meter_entry.counter_data.red) == (40, 0)
    assert counts(read.meter_entry.counter_data.green) == (0, 0)
    # Another entry in the same place begins at zero.
    s.client.write(delete(s.entry(1)), insert(s.entry(2)))
    (read,) = s.client.read(direct)
    assert counts(read.direct_meter_entry.counter_data.red) == (0, 0)


def test_the_frames_of_a_deleted_entry_are_not_counted_for_a_new_one(
    ebpf: Switch, namespace: Namespace
) -> None:
    s, old, done = ebpf, ebpf.entry(1), threading.Event()
    others = [s.entry(a) for a in range(100, 160)]  # no frame hits them
    wanted = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry())
    s.client.write(insert(old))

    def send() -> None:
        with namespace.packet_socket("h1") as out:
            while not done.is_set():
                out.send(frame(0, 1))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for _ in range(5):
            s.client.write(delete(old), *(insert(e) for e in others))
            read = [e.direct_counter_entry.data for e in s.client.read(wanted)]
            s.client.write(*(delete(e) for e in others), insert(old))
            assert [counts(data) for data in read] == [(0, 0)] * len(others)
    finally:
        done.set()
        sender.join()


def test_a_default_entry_has_a_counter_and_a_meter(ebpf: Switch, namespace: Namespace) -> None:
    s = ebpf
    s.client.write(insert(s.entry(1)))
    s.model.rules["I.limited"] = [Rule((Exact(1),), "I.mark", (7,))]
    # A meter without a configuration leaves the colour that the program had set, as in BMv2.
    compare_frames(namespace, s.model, [frame(1, 1), frame(1, 9), frame(1, 9)])
    default = s.names.entry("I.limited", {})
    default.is_default_action = True
    wanted = p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=default))
    (read,) = s.client.read(wanted)
    assert counts(read.direct_counter_entry.data) == (2, 2 * SIZE)
    assert read.direct_counter_entry.table_entry.is_default_action
    setting = p4r.Update(type=p4r.Update.MODIFY)
    setting.entity.direct_counter_entry.table_entry.CopyFrom(default)
    setting.entity.direct_counter_entry.data.packet_count = 100
    metering = p4r.Update(type=p4r.Update.MODIFY)
    metering.entity.direct_meter_entry.table_entry.CopyFrom(default)
    config(metering.entity.direct_meter_entry.config, (0, SIZE, 0, 2 * SIZE))
    s.client.write(setting, metering)
    one, two = namespace.packet_socket("h1"), namespace.packet_socket("h2")
    colours = []
    for _ in range(3):
        one.send(frame(1, 9))
        colours.append(receive(two, 1)[0][5])
    for sock in (one, two):
        sock.close()
    assert colours == [GREEN, YELLOW, RED]
    asked = p4r.TableEntry(table_id=default.table_id, is_default_action=True)
    asked.counter_data.SetInParent()
    asked.meter_config.SetInParent()
    asked.meter_counter_data.SetInParent()
    (read,) = s.client.read(p4r.Entity(table_entry=asked))
    entry = read.table_entry
    assert counts(entry.counter_data) == (103, 3 * SIZE)
    assert entry.meter_config.pburst == 2 * SIZE
    assert counts(entry.meter_counter_data.yellow) == (1, SIZE)
    # Each entry has a separate counter.
    (hit,) = s.client.read(p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry()))
    assert counts(hit.direct_counter_entry.data) == (1, SIZE)


def test_reconciling_keeps_the_counters_and_meters_of_default_and_const_entries(ebpf: Switch) -> None:
    client, names = ebpf.client, ebpf.names
    program = json.loads((DATA / "resources.json").read_bytes())
    (table,) = [t for t in program["pipelines"][0]["tables"] if t["name"] == "I.limited"]
    default = names.entry("I.limited", {}, "I.note")  # the default action of the program
    default.is_default_action = True
    config(default.meter_config, (1, 2, 3, 4))
    default.counter_data.packet_count = 5
    asked = p4r.TableEntry(table_id=default.table_id)
    asked.meter_config.SetInParent()
    asked.counter_data.SetInParent()
    asked_default = p4r.TableEntry()
    asked_default.CopyFrom(asked)
    asked_default.is_default_action = True
    wanted = [p4r.Entity(table_entry=e) for e in (asked, asked_default)]
    const = names.entry("I.limited", {"hdr.key.a": 3})
    config(const.meter_config, (5, 6, 7, 8))
    const.counter_data.packet_count = 9
    info = p4i.P4Info()
    info.CopyFrom(names.info)
    names.tables["I.limited"].is_const_table = True
    table["entries"] = [
        {
            "match_key": [{"match_type": "exact", "key": "0x3"}],
            "action_entry": {"action_id": table["action_ids"][1], "action_data": []},
        }
    ]
    client.set_pipeline(json.dumps(program).encode(), names.info)
    other = names.entry("I.limited", {}, "I.mark", 8)
    other.is_default_action = True
    other.counter_data.packet_count = 5
    config(other.meter_config, (1, 2, 3, 4))
    for number, entry in enumerate((default, other)):
        client.write(modify(const), modify(entry))
        before = client.read(*wanted)
        assert [e.table_entry.counter_data.packet_count for e in before] == [9, 5]
        program["program"] = f"another{number}.p4"
        client.set_pipeline(json.dumps(program).encode(), names.info, RECONCILE_AND_COMMIT)
        assert client.read(*wanted) == before
    del table["entries"]  # the counters of a const entry go with the entry
    client.set_pipeline(json.dumps(program).encode(), info, RECONCILE_AND_COMMIT)
    assert client.read(*wanted) == before[1:]


def test_idle_entries_are_notified(ebpf: Switch, namespace: Namespace) -> None:
    s, entry = ebpf, ebpf.entry(1)
    entry.idle_timeout_ns = 20_000_000
    entry.metadata, entry.controller_metadata = b"tag", 77
    s.client.write(insert(entry), insert(s.entry(2)))
    note = s.client.hear().idle_timeout_notification
    (notified,) = note.table_entry
    assert (notified.match, notified.idle_timeout_ns, notified.metadata) == (entry.match, 20_000_000, b"tag")
    assert notified.controller_metadata == 77
    wanted = p4r.Entity(table_entry=p4r.TableEntry(table_id=entry.table_id))
    wanted.table_entry.time_since_last_hit.SetInParent()
    before = {e.table_entry.match[0].exact.value: e.table_entry for e in s.client.read(wanted)}
    assert all(e.HasField("time_since_last_hit") for e in before.values())
    s.model.rules["I.limited"] = [Rule((Exact(a),), "I.mark", (7,)) for a in (1, 2)]
    compare_frames(namespace, s.model, [frame(1, 2)])
    hit = next(e.table_entry for e in s.client.read(wanted) if e.table_entry.match[0].exact.value == b"\x02")
    third = s.client.read(wanted)[0].table_entry
    assert hit.time_since_last_hit.elapsed_ns < third.time_since_last_hit.elapsed_ns


@pytest.fixture
def locked() -> Iterator[Bench]:
    yield from bench_of(DATA / "locked.json")


def test_counting_under_the_lock_of_registers(locked: Bench) -> None:
    """A frame is counted after the lock is released, at the index that was valid at the count statement."""
    frames = [bytes([op, cell]) + bytes(60) for op in (0, 1, 1, 2) for cell in (0, 3, 9)]
    seen: set[int] = set()
    for f in frames:
        code, out, _ = locked.ns.run(lambda f=f: bpf.run_once(locked.path.fd, f, locked.index))  # type: ignore[misc]
        ((_, want),) = locked.model.run(1, f)
        assert code == 7
        assert out[:2] + out[10:] == want[:2] + want[10:]
        if f[0]:
            assert 5 <= out[9] <= 9
            seen.add(out[9])
    layout = locked.path.compiled.plan.counters["I.seen"]
    cells = locked.path.cells(layout.map, layout.size)
    want_cells = {i: (c.packets, c.bytes) for (n, i), c in locked.model.counters.items() if n == "I.seen"}
    assert {i: c for i, c in enumerate(cells) if c != (0, 0)} == want_cells
    assert len(want_cells) > 1
    assert len(seen) > 1
