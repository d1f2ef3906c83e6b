"""The compiled switch program between veth pairs, run by P4Runtime: real frames over real interfaces."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4i, p4r

from mrclab.switches.ebpf.target import EbpfTarget
from mrclab.switches.spec import SwitchSpec
from tests.support.switch_kit import (
    DATA,
    DST,
    IN_FAULT,
    JSON,
    MY_SID,
    NEXT_HOP,
    OUT_FAULT,
    P4INFO,
    Client,
    Names,
    Namespace,
    delete,
    error_codes,
    forwarded,
    insert,
    ipv6_frame,
    modify,
    mrc_frame,
    read_p4info,
    receive,
    sid,
)

pytestmark = [pytest.mark.root, pytest.mark.parallel]
SIZES = (55, 60, 154, 1500, 4200, 8900, 9014)


class Chain:
    """h1 - s1 - s2 - s3 - h2. Each switch has one neighbour on port 1 and one on port 2."""

    def __init__(self, ns: Namespace, log_dir: Path, info: p4i.P4Info, json: bytes) -> None:
        self.ns, self.names = ns, Names(info)
        self.stack = ExitStack()
        ns.pair("h1", "s1p1")
        ns.pair("s1p2", "s2p1")
        ns.pair("s2p2", "s3p1")
        ns.pair("s3p2", "h2")
        self.target = EbpfTarget()
        specs = [SwitchSpec(f"s{i}", 10 + i, {1: f"s{i}p1", 2: f"s{i}p2"}) for i in (1, 2, 3)]
        running = self.target.start(specs, netns=ns.name, log_dir=log_dir)
        self.stack.callback(self.target.stop)
        self.address = self.stack.enter_context(forwarded(ns, running[0].grpc_address))
        self.clients = {}
        for i in (1, 2, 3):
            client = self.clients[i] = Client(self.address, 10 + i)
            self.stack.callback(client.close)
            client.become_primary()
            client.set_pipeline(json, info)
            client.write(insert(self.names.entry(MY_SID, {DST: (sid(i), 48)}, "MrcIngress.micro_segment.un")))
            self.route(i, i + 1, 2)
            self.route(i, i - 1 if i > 1 else 99, 1)
        self.h1, self.h2 = ns.packet_socket("h1"), ns.packet_socket("h2")
        self.stack.callback(self.h1.close)
        self.stack.callback(self.h2.close)

    def route(self, switch: int, usid: int, port: int) -> None:
        action = "MrcIngress.micro_segment.forward"
        macs = (0x0200_0000_0000 + switch, 0x0400_0000_0000 + usid)
        entry = self.names.entry(NEXT_HOP, {DST: (sid(usid), 48)}, action, port, *macs)
        self.clients[switch].write(insert(entry))

    def fault(self, switch: int, control: str, port: int, action: str, *args: int) -> p4r.TableEntry:
        entry = self.names.entry(f"{control}.fault", {"port": port}, f"{control}.{action}", *args)
        asked = time.monotonic_ns()
        before, after = self.clients[switch].write(insert(entry))
        assert asked < before < after < time.monotonic_ns()
        return entry

    def count(self, switch: int, name: str, index: int) -> tuple[int, int]:
        (entity,) = self.clients[switch].read(self.names.counter(name, index))
        data = entity.counter_entry.data
        return data.packet_count, data.byte_count


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    ns = Namespace()
    try:
        chain = Chain(ns, tmp_path_factory.mktemp("log"), read_p4info(P4INFO), JSON.read_bytes())
        try:
            yield chain
        finally:
            chain.stack.close()
            assert "clsact" not in ns.qdiscs()
    finally:
        ns.delete()


@pytest.mark.parametrize("size", SIZES)
def test_the_segment_list_shifts_hop_by_hop(chain: Chain, size: int) -> None:
    frame = ipv6_frame(sid(1, 2, 3, 4), size)
    before = [chain.count(i, "MrcEgress.port_tx", 2) for i in (1, 2, 3)]
    chain.h1.send(frame)
    (got,) = receive(chain.h2, 1)
    assert got[38:54] == sid(4).to_bytes(16, "big")
    assert got[21] == 64 - 3
    assert got[0:6].hex() == "040000000004"
    assert got[6:12].hex() == "020000000003"
    assert got[12:21] + got[22:38] + got[54:] == frame[12:21] + frame[22:38] + frame[54:]
    after = [chain.count(i, "MrcEgress.port_tx", 2) for i in (1, 2, 3)]
    assert [(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before, strict=True)] == [(1, size)] * 3


def test_both_directions(chain: Chain) -> None:
    chain.h2.send(ipv6_frame(sid(3, 2, 1, 99)))
    (got,) = receive(chain.h1, 1)
    assert got[38:54] == sid(99).to_bytes(16, "big")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x02" * 6 + b"\x04" * 6 + b"\x88\xb5" + bytes(19), 1),  # 33 bytes, not IPv6
        (b"\x02" * 6 + b"\x04" * 6 + b"\x86\xdd" + bytes(19), 1),  # ends inside the IPv6 header
        (ipv6_frame(sid(1, 2), hop_limit=1), 2),
        (ipv6_frame(sid(7, 2)), 3),
        (ipv6_frame(sid(1, 7)), 4),
    ],
    ids=["33 bytes", "half a header", "hop limit", "not our SID", "no route"],
)
def test_what_cannot_go_on_is_dropped_and_counted(chain: Chain, frame: bytes, reason: int) -> None:
    before = chain.count(1, "MrcIngress.drops", reason)
    chain.h1.send(frame)
    # A valid frame follows on the same path. When it arrives, no earlier frame can still come.
    chain.h1.send(ipv6_frame(sid(1, 2, 3, 4)))
    (got,) = receive(chain.h2, 1)
    assert got[38:54] == sid(4).to_bytes(16, "big")
    after = chain.count(1, "MrcIngress.drops", reason)
    assert (after[0] - before[0], after[1] - before[1]) == (1, len(frame))


@pytest.mark.parametrize(
    ("control", "port", "forward", "backward"),
    [
        (IN_FAULT, 1, False, True),
        (IN_FAULT, 2, True, False),
        (OUT_FAULT, 1, True, False),
        (OUT_FAULT, 2, False, True),
    ],
)
def test_a_blackhole_takes_one_direction(
    chain: Chain, control: str, port: int, forward: bool, backward: bool
) -> None:
    entry = chain.fault(2, control, port, "blackhole")
    try:
        for _ in range(20):
            chain.h1.send(ipv6_frame(sid(1, 2, 3, 4)))
            chain.h2.send(ipv6_frame(sid(3, 2, 1, 99)))
        there, back = receive(chain.h2, 20, 0.5), receive(chain.h1, 20, 0.5)
        assert (len(there), len(back)) == (20 * forward, 20 * backward)
        wanted = p4r.Entity(
            table_entry=p4r.TableEntry(table_id=entry.table_id, counter_data=p4r.CounterData())
        )
        (found,) = chain.clients[2].read(wanted)
        assert found.table_entry.counter_data.packet_count == 20
    finally:
        chain.clients[2].write(delete(entry))
    chain.h1.send(ipv6_frame(sid(1, 2, 3, 4)))
    chain.h2.send(ipv6_frame(sid(3, 2, 1, 99)))
    assert len(receive(chain.h2, 1)) == len(receive(chain.h1, 1)) == 1


def test_a_loss_ratio_is_binomial(chain: Chain) -> None:
    n, p = 4000, 0.25
    entry = chain.fault(2, IN_FAULT, 1, "lose", int(p * 2**32))
    lost = chain.count(2, "MrcIngress.drops", 5)[0]
    try:
        got = 0
        for _ in range(n // 100):
            for _ in range(100):
                chain.h1.send(ipv6_frame(sid(1, 2, 3, 4)))
            # The drops that s2 counted show how many frames are still on their way.
            done = chain.count(2, "MrcIngress.drops", 5)[0] - lost
            got += len(receive(chain.h2, 100, 0.05))
        done = chain.count(2, "MrcIngress.drops", 5)[0] - lost
        got += len(receive(chain.h2, n - done - got, 2)) if n - done - got else 0
    finally:
        chain.clients[2].write(delete(entry))
    assert got + done == n
    assert abs(done - n * p) < 5 * math.sqrt(n * p * (1 - p))


def test_corruption_flips_one_bit_that_the_icrc_covers(chain: Chain) -> None:
    entry = chain.fault(2, OUT_FAULT, 2, "corrupt", 2**32 - 1)
    flipped = set()
    try:
        for _ in range(200):
            frame = mrc_frame(sid(1, 2, 3, 4), 64)
            chain.h1.send(frame)
            (got,) = receive(chain.h2, 1)
            assert got[54:111] + got[114:] == frame[54:111] + frame[114:]
            flip = int.from_bytes(got[111:114], "big") ^ int.from_bytes(frame[111:114], "big")
            assert flip.bit_count() == 1
            flipped.add(flip)
        plain = ipv6_frame(sid(1, 2, 3, 4))
        chain.h1.send(plain)
        (got,) = receive(chain.h2, 1)
        other = int.from_bytes(got[22:38], "big") ^ int.from_bytes(plain[22:38], "big")
        assert (other.bit_count(), got[54:]) == (1, plain[54:])
    finally:
        chain.clients[2].write(delete(entry))
    assert len(flipped) > 15  # of 24 possible bits, all equally likely


def test_a_rate_cut_lets_a_burst_through_and_loses_the_rest(chain: Chain) -> None:
    """The rate is so low that almost no frame becomes due during the test."""
    byte_time = 2**32 - 1  # 64 us for a byte, the lowest rate there is
    entry = chain.fault(2, OUT_FAULT, 2, "limit_rate", byte_time, 1024 * 10**6)  # a backlog of one second
    lost = chain.count(2, "MrcEgress.egress_drops", 6)[0]
    try:
        for _ in range(40):  # each frame takes 64 ms
            chain.h1.send(ipv6_frame(sid(1, 2, 3, 4), 1000))
        got = receive(chain.h2, 40, 0.5)
    finally:
        chain.clients[2].write(delete(entry))
    lost = chain.count(2, "MrcEgress.egress_drops", 6)[0] - lost
    assert len(got) + lost == 40
    assert 16 <= len(got) <= 24  # 16 fill a second; on a slow machine some more become due
    chain.h1.send(ipv6_frame(sid(1, 2, 3, 4)))
    assert len(receive(chain.h2, 1)) == 1


def test_registers_can_be_read(chain: Chain) -> None:
    registers = {r.preamble.name: r.preamble.id for r in chain.names.info.registers}
    entity = p4r.Entity()
    entity.register_entry.register_id = registers["MrcIngress.port_queue.longest_wait"]
    assert len(chain.clients[1].read(entity)) == 512
    entity.register_entry.index.index = 511
    (found,) = chain.clients[1].read(entity)
    assert int.from_bytes(found.register_entry.data.bitstring, "big") == 0
    entity.register_entry.index.index = 512
    with pytest.raises(grpc.RpcError) as caught:
        chain.clients[1].read(entity)
    assert error_codes(caught.value) == [grpc.StatusCode.OUT_OF_RANGE]


def test_a_modified_entry_goes_on_counting(chain: Chain) -> None:
    blackhole = chain.fault(2, IN_FAULT, 1, "blackhole")
    try:
        chain.h1.send(ipv6_frame(sid(1, 2, 3, 4), 200))
        healthy = chain.names.entry(f"{IN_FAULT}.fault", {"port": 1}, f"{IN_FAULT}.healthy")
        wanted = p4r.Entity(
            table_entry=p4r.TableEntry(table_id=blackhole.table_id, counter_data=p4r.CounterData())
        )
        chain.h1.send(ipv6_frame(sid(1, 2, 3, 4), 100))
        assert receive(chain.h2, 1, 0.3) == []
        chain.clients[2].write(modify(healthy))
        chain.h1.send(ipv6_frame(sid(1, 2, 3, 4), 300))
        assert len(receive(chain.h2, 1)) == 1
        (found,) = chain.clients[2].read(wanted)
        data = found.table_entry.counter_data
        assert (data.packet_count, data.byte_count) == (3, 600)
    finally:
        chain.clients[2].write(delete(blackhole))


def test_counters_can_be_reset(chain: Chain) -> None:
    chain.h1.send(ipv6_frame(sid(1, 2, 3, 4)))
    receive(chain.h2, 1)
    assert chain.count(2, "MrcIngress.port_rx", 1)[0] > 0
    update = p4r.Update(type=p4r.Update.MODIFY, entity=chain.names.counter("MrcIngress.port_rx"))
    update.entity.counter_entry.data.SetInParent()
    chain.clients[2].write(update)
    everything = chain.clients[2].read(chain.names.counter("MrcIngress.port_rx"))
    assert len(everything) == 512
    assert all(e.counter_entry.data.packet_count == 0 for e in everything)
    chain.h1.send(ipv6_frame(sid(1, 2, 3, 4), 777))
    receive(chain.h2, 1)
    assert chain.count(2, "MrcIngress.port_rx", 1) == (1, 777)


def test_changes_close_together_are_stamped_closely(chain: Chain) -> None:
    entry = chain.names.entry(f"{IN_FAULT}.fault", {"port": 400}, f"{IN_FAULT}.blackhole")
    spans = []
    for _ in range(50):
        for update in (insert(entry), delete(entry)):
            before, after = chain.clients[1].write(update)
            spans.append(after - before)
    assert sorted(spans)[len(spans) // 2] < 50_000


def test_a_failed_write_still_says_when(chain: Chain) -> None:
    good = chain.names.entry(f"{IN_FAULT}.fault", {"port": 401}, f"{IN_FAULT}.healthy")
    with pytest.raises(grpc.RpcError) as caught:
        chain.clients[1].write(insert(good), insert(good))
    assert int(dict(caught.value.trailing_metadata())["mrclab-t-after-ns"]) > 0
    chain.clients[1].write(delete(good))


def test_vlan_tags_and_labels_on_real_frames(namespace: Namespace, tmp_path: Path) -> None:
    """Add tags and labels to small and large frames, and remove tags and labels."""
    info = read_p4info(DATA / "stacks.p4info.txtpb")
    names = Names(info)
    for i in (1, 2):
        namespace.pair(f"s{i}", f"h{i}")
    target = EbpfTarget()
    running = target.start([SwitchSpec("s", 1, {1: "s1", 2: "s2"})], netns=namespace.name, log_dir=tmp_path)
    try:
        with forwarded(namespace, running[0].grpc_address) as address:
            client = Client(address, 1)
            client.become_primary()
            client.set_pipeline((DATA / "stacks.json").read_bytes(), info)
            for what, action, args in (
                (1, "I.untag", ()),
                (2, "I.tag", (5,)),
                (3, "I.push", (99,)),
                (4, "I.pop", ()),
            ):
                client.write(insert(names.entry("I.act", {"what": what}, action, *args)))
            h1, h2 = namespace.packet_socket("h1"), namespace.packet_socket("h2")
            for size in (64, 1500, 4200, 8900):
                payload = bytes(i * 13 & 0xFF for i in range(size - 22))
                macs = b"\x02" * 5, b"\x04" * 6

                def exchange(what: int, rest: bytes, macs: tuple[bytes, bytes] = macs) -> bytes:
                    h1.send(macs[0] + bytes([what]) + macs[1] + rest)
                    (got,) = receive(h2, 1)
                    return got[12:]

                label = (7 << 12 | 1 << 8 | 64).to_bytes(4, "big")
                tag = b"\x81\x00\x00\x07"
                assert exchange(1, tag + b"\x12\x34" + payload) == b"\x12\x34" + payload
                assert exchange(4, b"\x88\x47" + label + payload) == b"\x88\x47" + payload
                new = (99 << 12 | 64).to_bytes(4, "big")
                assert exchange(3, b"\x88\x47" + label + payload) == b"\x88\x47" + new + label + payload
                tagged = b"\x81\x00\x00\x05\x12\x34" + payload
                assert exchange(2, b"\x12\x34" + payload) == tagged
            client.close()
            h1.close()
            h2.close()
    finally:
        target.stop()
