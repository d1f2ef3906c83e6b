"""The channel over the kernel's TCP: records over loopback addresses, and invalid records."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address
from types import SimpleNamespace
from typing import Any

import pytest

from mrclab.hosts.collectives import tcp_channel
from mrclab.hosts.collectives.channel import Arrived, Done
from mrclab.hosts.collectives.tcp_channel import MptcpMissingError, TcpChannel, _cut, open_socket

DEADLINE_S = 120
LOOPBACK = IPv6Address("::1")
Make = Callable[..., list[TcpChannel]]


class Loopback:
    """A fake fabric: every port of every host has the loopback address."""

    planes = 2

    def host(self, _name: str) -> Any:
        return SimpleNamespace(ports=[SimpleNamespace(address=LOOPBACK)] * self.planes)


@pytest.fixture
def make() -> Iterator[Make]:
    """Yield a function that makes connected channels. Close all channels at the end."""
    made: list[TcpChannel] = []

    def channels(count: int, region_bytes: int = 1 << 20, **options: Any) -> list[TcpChannel]:
        fabric: Any = Loopback()
        new = [TcpChannel(fabric, f"h{rank}", rank, **options) for rank in range(count)]
        made.extend(new)
        for channel in new:
            assert channel.expose(memoryview(bytearray(region_bytes))) == 0
        told = [[channel.attributes(peer) for peer in range(count)] for channel in new]
        for rank, channel in enumerate(new):
            for peer in range(count):
                if peer != rank:
                    channel.connect(peer, told[peer][rank])
        return new

    yield channels
    for channel in made:
        channel.close()


def run(channels: list[TcpChannel], until: Callable[[], bool], seen: list[list[Any]]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < deadline, "it did not end"
        for rank, channel in enumerate(channels):
            channel.turn(time.monotonic_ns() + 1_000_000)
            seen[rank] += channel.events()


def region(channel: TcpChannel) -> bytes:
    return bytes(channel._regions[0])


@pytest.mark.parametrize("streams", [1, 3])
def test_puts_arrive_whole_and_are_confirmed(make: Make, streams: int) -> None:
    channels = make(3, streams=streams)
    data = [bytes([rank + 1]) * 300_001 for rank in range(3)]
    tickets = [channels[rank].put(1, 0, 302_000 * (rank // 2), memoryview(data[rank]), 7) for rank in (0, 2)]
    empty = channels[1].put(0, 0, 5, memoryview(b""), 9)
    seen: list[list[Any]] = [[], [], []]
    run(channels, lambda: sum(map(len, seen)) >= 6, seen)
    arrived = [(e.peer, e.tag, e.length_bytes) for e in seen[1] if isinstance(e, Arrived)]
    assert sorted(arrived) == [(0, 7, 300_001), (2, 7, 300_001)]
    assert [(e.peer, e.tag, e.length_bytes) for e in seen[0] if isinstance(e, Arrived)] == [(1, 9, 0)]
    for rank, ticket in ((0, tickets[0]), (2, tickets[1])):
        assert [(e.ticket, e.error) for e in seen[rank] if isinstance(e, Done)] == [(ticket, None)]
    assert [(e.ticket, e.error) for e in seen[1] if isinstance(e, Done)] == [(empty, None)]
    assert region(channels[1])[:300_001] == data[0]
    assert region(channels[1])[302_000:602_001] == data[2]
    assert channels[1].bytes_delivered() == 600_002
    assert channels[0].counters()["sent_packets"] > 0


def test_many_puts_both_ways_keep_their_order_and_bytes(make: Make) -> None:
    channels = make(2)
    words = [struct.pack(">I", n) * 1000 for n in range(200)]
    for rank in (0, 1):
        for n, word in enumerate(words):
            channels[rank].put(1 - rank, 0, n * 4000, memoryview(word), n)
    seen: list[list[Any]] = [[], []]
    run(channels, lambda: all(len(s) == 400 for s in seen), seen)
    for rank in (0, 1):
        assert [e.tag for e in seen[rank] if isinstance(e, Arrived)] == list(range(200))
        assert [e.ticket for e in seen[rank] if isinstance(e, Done)] == list(range(200))
        assert region(channels[rank])[:800_000] == b"".join(words)


def test_a_put_beyond_the_region_ends_the_connection(make: Make) -> None:
    channels = make(2, region_bytes=100)
    ticket = channels[0].put(1, 0, 90, memoryview(bytes(11)), 0)
    seen: list[list[Any]] = [[], []]
    run(channels, lambda: bool(seen[0]), seen)
    [done] = seen[0]
    assert (done.ticket, done.peer) == (ticket, 1)
    assert done.error is not None
    late = channels[0].put(1, 0, 0, memoryview(b"x"), 0)
    [done] = channels[0].events()
    assert (done.ticket, done.error is not None) == (late, True)
    assert not seen[1]
    assert region(channels[1]) == bytes(100)


def test_a_peer_that_goes_away_fails_what_was_on_its_way(make: Make) -> None:
    channels = make(2, region_bytes=1 << 24)
    channels[0].put(1, 0, 0, memoryview(bytes(1 << 24)), 0)
    channels[0].turn(0)
    channels[1].turn(0)
    channels[1].close()
    seen: list[list[Any]] = [[]]
    run(channels[:1], lambda: bool(seen[0]), seen)
    assert seen[0][0].error


@pytest.mark.parametrize(
    "noise",
    [b"\x09" + bytes(31), b"\x02" + bytes(31), b"\x01" + bytes(3) + b"\xff" * 28, b"\x03" * 64, b"GET /"],
)
def test_strangers_do_no_harm(make: Make, noise: bytes) -> None:
    channels = make(2)
    port = channels[0].attributes(1)["port"]
    with socket.create_connection(("::1", port)) as stranger:
        stranger.sendall(noise)
        stranger.shutdown(socket.SHUT_WR)
        channels[1].put(0, 0, 0, memoryview(b"still here"), 3)
        seen: list[list[Any]] = [[], []]
        run(channels, lambda: len(seen[0]) == 1 and len(seen[1]) == 1, seen)
    assert region(channels[0])[:10] == b"still here"


def test_other_descriptors_end_a_turn(make: Make) -> None:
    [channel] = make(1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        assert list(channel.turn(None, (ours.fileno(),))) == [ours.fileno()]
    assert list(channel.turn(time.monotonic_ns())) == []


def test_cuts_cover_a_put() -> None:
    for length in (0, 1, 16383, 16384, 100_000, 1 << 20):
        for streams in (1, 3, 64):
            cuts = _cut(length, streams)
            assert cuts[0][0] == 0
            assert cuts[-1][1] == length
            assert all(a[1] == b[0] for a, b in zip(cuts, cuts[1:], strict=False))  # noqa: RUF007
            assert len(cuts) <= streams


def test_options_that_make_no_sense_are_refused() -> None:
    fabric: Any = Loopback()
    with pytest.raises(ValueError, match="1 to 64, not 65"):
        TcpChannel(fabric, "h0", 0, streams=65)


def test_a_kernel_without_mptcp_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_channel, "IPPROTO_MPTCP", 263)
    with pytest.raises(MptcpMissingError, match=r"no MPTCP: use one with CONFIG_MPTCP"):
        open_socket(True)


def test_nothing_is_confirmed_while_its_receiver_has_not_looked(make: Make) -> None:
    sender, receiver = make(2)
    ticket = sender.put(1, 0, 0, memoryview(b"first"), 1)
    for _ in range(50):
        sender.turn(time.monotonic_ns() + 1_000_000)
        receiver.turn(time.monotonic_ns() + 1_000_000)
        assert sender.events() == []
    assert region(receiver)[:5] == b"first"
    assert [e.tag for e in receiver.events() if isinstance(e, Arrived)] == [1]
    seen: list[list[Any]] = [[], []]
    run([sender, receiver], lambda: bool(seen[0]), seen)
    assert [e.ticket for e in seen[0] if isinstance(e, Done)] == [ticket]
