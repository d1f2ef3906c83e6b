"""Two NICs connected directly, plane by plane, in separate namespaces: real sockets, no switch."""

import itertools
import os
import pathlib
import random
import select
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from scapy.layers.l2 import Ether

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.nic.device import Device
from mrclab.hosts.nic.ports import Receiver
from mrclab.hosts.rdma.events import Event, ReceiveCompleted, SendCompleted
from mrclab.hosts.rdma.paths import Path, PlanePaths, PortAddress, RemotePaths
from mrclab.hosts.scapy_layers import TSETH
from mrclab.hosts.streams.stream import StreamPlan, StreamReceiver, StreamSender
from mrclab.linux.namespaces import inside

pytestmark = [pytest.mark.root, pytest.mark.parallel]

PLANES = 2
DEADLINE_S = 120


@dataclass
class Pair:
    sender: Device
    receiver: Device
    qpn: int
    namespaces: tuple[str, str]


def address(host: int, plane: int) -> PortAddress:
    return PortAddress(plane, bytes((2, 0, 0, 0, host, plane)), bytes((0xFD, *[0] * 13, plane, host + 1)))


def route(src: int, dst: int) -> RemotePaths:
    return RemotePaths(
        tuple(
            PlanePaths(
                port=plane,
                src_mac=address(src, plane).mac,
                dst_mac=address(dst, plane).mac,
                src=address(src, plane).address,
                dst=address(dst, plane).address,
                paths=tuple(Path(plane << 16 | t1, bytes(16)) for t1 in range(4)),
            )
            for plane in range(PLANES)
        )
    )


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    given: MrcConfig | int | None = getattr(request, "param", None)
    config = given if isinstance(given, MrcConfig) else MrcConfig()
    linger_ns = given if isinstance(given, int) else 0
    names = tuple(f"t{os.getpid()}{end}" for end in "ab")
    try:
        for name in names:
            ip("netns", "add", name)
            with inside(name):  # without IPv6, no frames of the kernel come in between
                pathlib.Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
        for plane in range(PLANES):
            ip("-n", names[0], "link", "add", f"eth{plane}", "mtu", "4500", "type", "veth")
            ip("-n", names[0], "link", "set", "veth0", "name", f"peer{plane}", "mtu", "4500")
            ip("-n", names[0], "link", "set", f"peer{plane}", "netns", names[1], "name", f"eth{plane}")
            for host, name in enumerate(names):
                mac = address(host, plane).mac.hex(":")
                ip("-n", name, "link", "set", f"eth{plane}", "address", mac, "up")
        devices = []
        for host, name in enumerate(names):
            with inside(name):
                devices.append(
                    Device(
                        [address(host, plane) for plane in range(PLANES)],
                        [f"eth{plane}" for plane in range(PLANES)],
                        config,
                        random.Random(host),
                        linger_ns=linger_ns,
                    )
                )
        a, b = devices
        qa, qb = a.endpoint.create_qp(), b.endpoint.create_qp()
        a.endpoint.connect(qa, b.endpoint.local_attributes(qb), route(0, 1))
        b.endpoint.connect(qb, a.endpoint.local_attributes(qa), route(1, 0))
        yield Pair(a, b, qa, (names[0], names[1]))
        a.close()
        b.close()
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def run_until_drained(pair: Pair, sender: StreamSender, receiver: StreamReceiver, messages: int) -> None:
    sender.start()
    deadline = time.monotonic() + DEADLINE_S
    while not (sender.posted >= messages and sender.drained):
        assert time.monotonic() < deadline, "the stream did not end"
        if sender.posted >= messages:
            sender.stop()
        sender.tick()
        for device in (pair.sender, pair.receiver):
            device.turn(device.now() + 100_000)
        for event in pair.sender.events():
            sender.on_event(event)
        for event in pair.receiver.events():
            receiver.on_event(event)


def stream(
    pair: Pair, rate_bps: int = 100_000_000, *, mixed: bool = False
) -> tuple[StreamSender, StreamReceiver]:
    plan = StreamPlan(message_bytes=20_000, rate_bps=rate_bps, seed=3, mixed=mixed)
    receiver = StreamReceiver(pair.receiver, plan, pair.qpn)
    return StreamSender(pair.sender, pair.qpn, receiver.remote, plan), receiver


def test_a_stream_arrives_whole_over_every_plane(pair: Pair) -> None:
    sender, receiver = stream(pair)
    run_until_drained(pair, sender, receiver, messages=200)
    assert receiver.problem is None
    assert sender.failed is None
    assert receiver.received == sender.posted >= 200
    assert all(port.counters.tx_frames > 100 for port in pair.sender.ports.values())


@pytest.mark.parametrize("pair", [1 << 40], indirect=True)
def test_a_nic_that_lingers_for_ever_still_ends_its_turns_and_sees_frames_and_timers(pair: Pair) -> None:
    sender, receiver = stream(pair)
    run_until_drained(pair, sender, receiver, messages=20)
    assert receiver.problem is None
    assert receiver.received == sender.posted >= 20


@pytest.mark.parametrize("pair", [MrcConfig(timestamps=True)], indirect=True)
def test_each_frame_of_a_batch_leaves_with_a_time_of_its_own(pair: Pair) -> None:
    with inside(pair.namespaces[1]):
        listener = Receiver({address(1, plane).mac: plane for plane in range(PLANES)})
    region = pair.receiver.endpoint.register_memory(bytearray(1 << 16))
    pair.sender.endpoint.post_write(pair.qpn, 1, bytes(6 * 4096), region.address, region.rkey)
    pair.sender.turn(pair.sender.now())
    packets = [Ether(bytes(frame)) for _, frame in listener.received(64)]
    listener.close()
    stamps = [packet[TSETH].tx_timestamp for packet in packets if TSETH in packet]
    assert len(stamps) == len(set(stamps)) == 6, "to send a frame takes longer than the 128 ns of a stamp"


def test_each_frame_is_stamped_when_it_is_read(pair: Pair) -> None:
    with inside(pair.namespaces[1]):
        listener = Receiver({address(1, plane).mac: plane for plane in range(PLANES)})
    for plane in (0, 1, 0):
        assert pair.sender.ports[plane].send(address(1, plane).mac + bytes(6) + b"\x86\xdd" + bytes(46))
    assert listener.waiting()
    read: list[tuple[int, int]] = []
    listener.hand_over(64, lambda plane, _, now_ns: read.append((plane, now_ns)), itertools.count(5).__next__)
    assert read == [(0, 5), (1, 6), (0, 7)]
    assert not listener.waiting()
    listener.close()


def test_reading_ends_when_something_is_to_be_sent_first(pair: Pair) -> None:
    with inside(pair.namespaces[1]):
        listener = Receiver({address(1, plane).mac: plane for plane in range(PLANES)})
    for plane in (0, 1, 0):
        assert pair.sender.ports[plane].send(address(1, plane).mac + bytes(6) + b"\x86\xdd" + bytes(46))
    read: list[int] = []
    listener.hand_over(64, lambda plane, *_: read.append(plane), lambda: 0, lambda: len(read) == 2)
    assert read == [0, 1]
    assert listener.waiting()
    listener.close()


def test_memory_does_not_change_before_its_message_was_told(pair: Pair) -> None:
    memory = bytearray(4)
    region = pair.receiver.endpoint.register_memory(memory)

    def write(number: int) -> None:
        data = bytes([number]) * 4
        pair.sender.endpoint.post_write(pair.qpn, number, data, region.address, region.rkey, imm=number)
        pair.sender.turn(pair.sender.now())

    write(1)
    while not pair.receiver.endpoint.message_waits:
        pair.receiver.turn()
    write(2)
    for _ in range(5):
        pair.receiver.turn(pair.receiver.now() + 1_000_000)
    assert memory == bytes([1]) * 4, "the next message was written over one that nobody has read"
    told = [event.imm for event in pair.receiver.events() if isinstance(event, ReceiveCompleted)]
    while not pair.receiver.endpoint.message_waits:
        pair.receiver.turn()
    told += [event.imm for event in pair.receiver.events() if isinstance(event, ReceiveCompleted)]
    assert told == [1, 2]
    assert memory == bytes([2]) * 4


def test_what_posting_read_is_told_without_a_wait(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A doorbell (flush) also reads frames. The next turn must handle their events without a wait."""
    memory = bytearray(16 * 4096)
    region = pair.receiver.endpoint.register_memory(memory)

    def write(data: bytes) -> None:
        pair.sender.endpoint.post_write(pair.qpn, 1, data, region.address, region.rkey)
        pair.sender.flush()

    def completions() -> list[Event]:
        return [event for event in pair.sender.events() if isinstance(event, SendCompleted)]

    write(b"a")
    while not pair.sender._receiver.waiting():  # the answer is here, and nobody has read it
        pair.receiver.turn(pair.receiver.now() + 1_000_000)
    write(bytes(len(memory)))
    waits: list[float | None] = []

    def note(readers: list[int], writers: list[int], others: list[int], timeout_s: float | None) -> Any:
        waits.append(timeout_s)
        return [], [], []

    monkeypatch.setattr(select, "select", note)
    pair.sender.turn()
    assert completions()
    assert waits == [0.0]
    for _ in range(1000):  # on a slow machine a timer may be due in the next turns
        pair.sender.turn()
        if waits[-1] != 0.0:
            break
    assert waits[-1] != 0.0


def test_a_stream_survives_a_dead_plane(pair: Pair) -> None:
    sender, receiver = stream(pair)
    run_until_drained(pair, sender, receiver, messages=20)
    ip("-n", pair.namespaces[0], "link", "set", "eth1", "down")
    run_until_drained(pair, sender, receiver, messages=100)
    assert receiver.problem is None
    assert receiver.received == sender.posted >= 100
    up = {plane.plane: plane.local_up for plane in pair.sender.endpoint.plane_counters(pair.qpn)}
    assert up == {0: True, 1: False}
    # The other end of the veth pair has no carrier either, and the peer notices this without a message.
    (qpn,) = pair.receiver.endpoint.qps
    up = {plane.plane: plane.local_up for plane in pair.receiver.endpoint.plane_counters(qpn)}
    assert up == {0: True, 1: False}


def test_a_mixed_stream_is_checked_to_the_last_byte_of_memory(pair: Pair) -> None:
    sender, receiver = stream(pair, mixed=True)
    run_until_drained(pair, sender, receiver, messages=500)
    assert receiver.problem is None
    assert receiver.received == sender.posted >= 500
    assert receiver.bytes_delivered == sender.posted_bytes
    assert receiver.memory_problem() is None
    receiver.region.view[70_001] ^= 1
    assert receiver.memory_problem() == "byte 10001 of slot 3 is not what the last message wrote"


def test_a_port_without_link_is_reported_to_the_core_and_to_the_peer_and_so_is_its_return(pair: Pair) -> None:
    sender, receiver = stream(pair)
    run_until_drained(pair, sender, receiver, messages=20)
    ip("-n", pair.namespaces[0], "link", "set", "eth1", "down")
    run_until_drained(pair, sender, receiver, messages=60)
    ip("-n", pair.namespaces[0], "link", "set", "eth1", "up")
    deadline = time.monotonic() + DEADLINE_S
    planes = pair.sender.endpoint.plane_counters
    while not all(plane.local_up and plane.peer_up for plane in planes(pair.qpn)):
        assert time.monotonic() < deadline, planes(pair.qpn)
        for device in (pair.sender, pair.receiver):
            device.turn(device.now() + 100_000)
    before = pair.sender.ports[1].counters.tx_frames
    run_until_drained(pair, sender, receiver, messages=sender.posted + 40)
    assert pair.sender.ports[1].counters.tx_frames - before > 50, "the plane is in use again"
    assert receiver.problem is None
    assert receiver.received == sender.posted
