"""The channel over the kernel's TCP or MPTCP, for a comparison with RDMA.

Two ranks share ``streams`` connections, which are distributed over the planes. With MPTCP the kernel adds a
subflow in each plane to each connection. A put is split into records, one for each stream. The receiver reads
each payload directly into the region, and answers with a record when the put is complete. A record has these
fields (sizes in bytes):

    | kind (1) | 0 (1) | region (2) | tag (4) | offset (8) | length (8) | ticket (4) | parts (4) | payload |

The rank with the lower number connects, and identifies itself in a record.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from mrclab.hosts.collectives.channel import Arrived, ChannelEvent, Done
from mrclab.topologies import Fabric

IPPROTO_MPTCP = 262
SOL_MPTCP = 284
MPTCP_INFO = 1
MAX_STREAMS = 64
MIN_PART_BYTES = 16384
"""Smallest part of a put, bytes. Smaller parts cost more time than an additional stream saves."""

_RECORD = struct.Struct(">BBHIQQII")
_HELLO, _PUT, _THERE = 1, 2, 3
_ROUND_BYTES = 1 << 20
"""The number of bytes to receive from one stream before the next stream is read."""
_MAX_BUFFERS = 16
# Fields of struct tcp_info: total retransmissions, segments sent.
_TCP_INFO = struct.Struct("=100xI32xI")
# Field of struct mptcp_info: additional subflows.
_MPTCP_INFO = struct.Struct("=B")


class StreamError(Exception):
    """A peer's stream has ended, or has an invalid record."""


class MptcpMissingError(OSError):
    """The kernel has no MPTCP. The error's message names the remedy."""


def open_socket(mptcp: bool) -> socket.socket:
    """Open a socket for TCP or MPTCP. Raise MptcpMissingError if the kernel has no MPTCP."""
    if not mptcp:
        return socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        return socket.socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, IPPROTO_MPTCP)
    except OSError as error:
        raise MptcpMissingError(
            error.errno, "this kernel has no MPTCP: use one with CONFIG_MPTCP and net.mptcp.enabled=1"
        ) from None


@dataclass(slots=True)
class _Peer:
    """Another rank: its streams by number, and the data for streams that are not established yet."""

    host: str
    streams: dict[int, Stream] = field(default_factory=dict)
    waiting: dict[int, list[memoryview]] = field(default_factory=dict)
    error: str | None = None


class Stream:
    """One connection, which sends and receives records."""

    def __init__(self, connection: socket.socket, channel: TcpChannel, *, connected: bool) -> None:
        self.socket = connection
        self.peer: int | None = None
        self._channel = channel
        self._out: deque[memoryview] = deque()
        self._connected = connected
        self._head = memoryview(bytearray(_RECORD.size))
        self._head_bytes = 0
        self._record: tuple[int, ...] | None = None
        self._rest = memoryview(b"")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.socket.fileno()

    @property
    def wants_to_send(self) -> bool:
        """True if the stream has work to do when the socket is writable."""
        return bool(self._out) or not self._connected

    def queue(self, buffers: Sequence[memoryview]) -> None:
        """Send these buffers as soon as the kernel accepts them."""
        self._out.extend(buffer for buffer in buffers if len(buffer))
        self.send()

    def send(self) -> None:
        """Send as many bytes as the kernel accepts. Raise StreamError if the connection has failed."""
        if not self._connected:
            failed = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                raise StreamError(errno.errorcode.get(failed, str(failed)))
            try:
                self.socket.getpeername()
            except OSError:
                return
            self._connected = True
        while self._out:
            try:
                sent = self.socket.sendmsg([self._out[i] for i in range(min(_MAX_BUFFERS, len(self._out)))])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise StreamError(error.strerror or str(error)) from None
            while sent:
                first = self._out[0]
                if sent < len(first):
                    self._out[0] = first[sent:]
                    break
                sent -= len(first)
                self._out.popleft()

    def receive(self) -> None:
        """Receive the bytes that have arrived. Raise StreamError for a bad record or a failed connection."""
        budget = _ROUND_BYTES
        while budget > 0:
            target = self._rest if self._record is not None else self._head[self._head_bytes :]
            try:
                count = self.socket.recv_into(target)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise StreamError(error.strerror or str(error)) from None
            if count == 0:
                raise StreamError("the peer closed the connection")
            budget -= count
            if self._record is None:
                self._head_bytes += count
                if self._head_bytes == _RECORD.size:
                    self._head_bytes = 0
                    self._begin(_RECORD.unpack(self._head))
            else:
                self._channel.count_delivered(count, self.peer)
                self._rest = self._rest[count:]
                self._end_if_whole()

    def _begin(self, record: tuple[int, ...]) -> None:
        kind, _, region, _, offset, length, _, _ = record
        if kind == _PUT:
            self._rest = self._channel.place(region, offset, length)
        elif kind in (_HELLO, _THERE):
            self._rest = memoryview(b"")
        else:
            raise StreamError(f"record of kind {kind}")
        self._record = record
        self._end_if_whole()

    def _end_if_whole(self) -> None:
        if not len(self._rest):
            record, self._record = self._record, None
            assert record is not None
            self._channel.take_record(self, record)


class TcpChannel:
    """One rank's side of TCP connections to its peers. See Channel.

    The kernel must have the host's addresses and routes (mrclab.testbed.kernel_ip). The calling thread must
    be in the host's namespace.
    """

    def __init__(
        self, fabric: Fabric, host: str, rank: int, *, streams: int = 1, mptcp: bool = False
    ) -> None:
        """Open a listening socket.

        Raise ValueError for a bad number of streams. Raise MptcpMissingError if ``mptcp`` is set and the
        kernel has no MPTCP.
        """
        if not 1 <= streams <= MAX_STREAMS:
            raise ValueError(f"streams to a peer: 1 to {MAX_STREAMS}, not {streams}")
        self._fabric = fabric
        self._host = host
        self._rank = rank
        self._count = streams
        self._mptcp = mptcp
        self._listener = open_socket(mptcp)
        self._listener.bind(("::", 0))
        self._listener.listen(1024)
        self._regions: list[memoryview] = []
        self._peers: dict[int, _Peer] = {}
        self._streams: set[Stream] = set()
        self._puts: dict[int, int] = {}
        """The peer of each put in flight, by ticket."""
        self._parts: dict[tuple[int, int], tuple[int, int]] = {}
        self._tickets = 0
        self._ready: list[ChannelEvent] = []
        self._answers: list[tuple[Stream, int]] = []
        self._delivered = 0
        self._delivered_from: dict[int, int] = {}
        self._log: list[dict[str, Any]] = []

    def expose(self, buffer: memoryview) -> int:
        """See Channel."""
        self._regions.append(buffer.cast("B") if buffer.format != "B" or buffer.ndim != 1 else buffer)
        return len(self._regions) - 1

    def attributes(self, peer: int) -> dict[str, Any]:
        """See Channel."""
        port = self._listener.getsockname()[1]
        return {"host": self._host, "port": port, "streams": self._count}

    def connect(self, peer: int, attributes: dict[str, Any]) -> None:
        """See Channel.

        Raise KeyError, TypeError or ValueError if ``attributes`` is not valid. Raise OSError if the kernel
        has no address or no route to the peer.
        """
        if attributes["streams"] != self._count:
            raise ValueError(f"rank {peer} has {attributes['streams']} streams to a peer, we {self._count}")
        host = attributes["host"]
        known = self._peers.setdefault(peer, _Peer(host))
        if self._rank > peer:
            return
        for number in range(self._count):
            plane = self._plane(peer, number)
            ours, theirs = (self._fabric.host(name).ports[plane].address for name in (self._host, host))
            self._start(peer, known, number, ours, (str(theirs), int(attributes["port"])))

    def _plane(self, peer: int, number: int) -> int:
        """Return the plane of a connection: round robin over the planes, or always the first for MPTCP."""
        return 0 if self._mptcp else (self._rank + peer + number) % self._fabric.planes

    def _start(
        self, peer: int, known: _Peer, number: int, ours: IPv6Address, theirs: tuple[str, int]
    ) -> None:
        connection = open_socket(self._mptcp)
        try:
            connection.bind((str(ours), 0))
            with contextlib.suppress(BlockingIOError):
                connection.connect(theirs)
        except OSError as error:
            connection.close()
            error.filename = f"{ours} to {theirs[0]}"
            raise
        stream = Stream(connection, self, connected=False)
        stream.peer = peer
        self._streams.add(stream)
        known.streams[number] = stream
        hello = _RECORD.pack(_HELLO, 0, number, self._rank, 0, 0, 0, 0)
        self._queue(stream, [memoryview(hello)])

    def put(self, peer: int, region: int, offset: int, data: memoryview, tag: int) -> int:
        """See Channel."""
        ticket = self._tickets
        self._tickets = ticket + 1 & 0xFFFFFFFF
        known = self._peers[peer]
        if known.error is not None:
            self._ready.append(Done(peer, ticket, time.monotonic_ns(), known.error))
            return ticket
        data = data.cast("B") if data.format != "B" or data.ndim != 1 else data
        parts = _cut(len(data), self._count)
        self._puts[ticket] = peer
        for turn, (start, end) in enumerate(parts):
            number = (tag + turn) % self._count
            head = _RECORD.pack(_PUT, 0, region, tag, offset + start, end - start, ticket, len(parts))
            buffers = [memoryview(head), data[start:end]]
            stream = known.streams.get(number)
            if stream is None:
                known.waiting.setdefault(number, []).extend(buffers)
            else:
                self._queue(stream, buffers)
        return ticket

    def _queue(self, stream: Stream, buffers: Sequence[memoryview]) -> None:
        try:
            stream.queue(buffers)
        except StreamError as error:
            self._lose(stream, str(error))

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """See Channel."""
        if not self._ready:
            self._answer()
        timeout: float | None = 0.0
        if not self._ready:
            timeout = None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9
        writers = [stream for stream in self._streams if stream.wants_to_send]
        sources: list[socket.socket | Stream | int] = [self._listener, *self._streams, *others]
        readable, writable, _ = select.select(sources, writers, [], timeout)
        for stream in writable:
            if stream in self._streams:
                self._queue(stream, ())
        came: list[int] = []
        for item in readable:
            if isinstance(item, int):
                came.append(item)
            elif isinstance(item, Stream):
                if item in self._streams:
                    self._receive(item)
            else:
                self._accept()
        return came

    def _receive(self, stream: Stream) -> None:
        try:
            stream.receive()
        except StreamError as error:
            self._lose(stream, str(error))

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            connection.setblocking(False)
            self._streams.add(Stream(connection, self, connected=True))

    # The streams of this channel call the next three methods.

    def place(self, region: int, offset: int, length: int) -> memoryview:
        """Return the memory that a put writes to. Raise StreamError if the put leaves the region."""
        if region >= len(self._regions) or offset + length > len(self._regions[region]):
            raise StreamError(f"a put of {length} bytes at {offset} of region {region} is out of bounds")
        return self._regions[region][offset : offset + length]

    def count_delivered(self, count: int, peer: int | None) -> None:
        """Count payload bytes from a peer that were placed in memory."""
        self._delivered += count
        if peer is not None:
            self._delivered_from[peer] = self._delivered_from.get(peer, 0) + count

    def take_record(self, stream: Stream, record: tuple[int, ...]) -> None:
        """Process a complete record. Raise StreamError if it is invalid."""
        kind, _, number, tag, _, length, ticket, parts = record
        if kind == _HELLO:
            self._welcome(stream, tag, number)
            return
        peer = stream.peer
        if peer is None:
            raise StreamError("a record before the peer identified itself")
        if kind == _THERE:
            if self._puts.pop(ticket, None) is not None:
                self._ready.append(Done(peer, ticket, time.monotonic_ns()))
            return
        came, so_far = self._parts.pop((peer, ticket), (0, 0))
        if came + 1 < parts:
            self._parts[peer, ticket] = came + 1, so_far + length
            return
        self._ready.append(Arrived(peer, tag, so_far + length, time.monotonic_ns()))
        self._answers.append((stream, ticket))

    def _answer(self) -> None:
        """Acknowledge the peers' puts that have arrived.

        Call this only after this rank has processed the puts, because a peer may overwrite the data after the
        answer.
        """
        answers, self._answers = self._answers, []
        for stream, ticket in answers:
            if stream in self._streams:
                self._queue(stream, [memoryview(_RECORD.pack(_THERE, 0, 0, 0, 0, 0, ticket, 0))])

    def _welcome(self, stream: Stream, peer: int, number: int) -> None:
        if stream.peer is not None or number >= self._count:
            raise StreamError("the peer identified itself twice, or for a stream that does not exist")
        stream.peer = peer
        known = self._peers.setdefault(peer, _Peer(""))
        known.streams[number] = stream
        self._queue(stream, known.waiting.pop(number, []))

    def _lose(self, stream: Stream, why: str) -> None:
        """Remove a failed connection to a peer, and fail all puts to this peer."""
        if stream not in self._streams:
            return
        self._streams.remove(stream)
        now_ns = time.monotonic_ns()
        self._log.append({"t_ns": now_ns, "event": "StreamLost", "peer": stream.peer, "reason": why})
        stream.socket.close()
        if stream.peer is None:
            return
        known = self._peers.setdefault(stream.peer, _Peer(""))
        known.error = known.error or why
        for ticket in [t for t, peer in self._puts.items() if peer == stream.peer]:
            del self._puts[ticket]
            self._ready.append(Done(stream.peer, ticket, now_ns, why))

    def events(self) -> list[ChannelEvent]:
        """See Channel."""
        ready, self._ready = self._ready, []
        return ready

    def bytes_delivered(self) -> int:
        """See Channel."""
        return self._delivered

    def counters(self) -> dict[str, int]:
        """See Channel. For MPTCP the kernel reports only the number of subflows."""
        if self._mptcp:
            info = [s.socket.getsockopt(SOL_MPTCP, MPTCP_INFO, _MPTCP_INFO.size) for s in self._streams]
            return {"subflows": sum(1 + _MPTCP_INFO.unpack(found)[0] for found in info)}
        sent = retransmitted = 0
        for stream in self._streams:
            found = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            segments_again, segments = _TCP_INFO.unpack(found)
            sent, retransmitted = sent + segments, retransmitted + segments_again
        return {"sent_packets": sent, "retransmitted_packets": retransmitted}

    def event_columns(self) -> dict[str, list[int]]:
        """See Channel. The kernel reports no events."""
        return {}

    def news(self, paths_to: int | None, *, forget: bool = False) -> dict[str, Any]:
        """See Channel."""
        placed = {str(peer): count for peer, count in self._delivered_from.items()}
        return {"placed": placed, "events": [], "paths": []}

    def deny(self, links: Collection[str]) -> None:
        """See Channel. This does nothing, because the fabric chooses the paths."""

    def save_log(self, path: Path) -> int:
        """See Channel. The log contains counters and failed connections, but no packets."""
        lines = [*self._log, {"t_ns": time.monotonic_ns(), "event": "Counters", **self.counters()}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8", newline="\n")
        return len(lines)

    def close(self) -> None:
        """See Channel."""
        self._listener.close()
        for stream in self._streams:
            stream.socket.close()
        self._streams.clear()


def _cut(length: int, streams: int) -> list[tuple[int, int]]:
    """Return start and end of each part of a put: a part for each stream, or fewer parts for a small put."""
    parts = max(1, min(streams, length // MIN_PART_BYTES))
    size = -(-length // parts)
    return [(i * size, min((i + 1) * size, length)) for i in range(parts)]


def mptcp_channel(fabric: Fabric, host: str, rank: int, *, streams: int = 1) -> TcpChannel:
    """Open a channel over MPTCP, with a subflow in each plane. Raise the errors of `TcpChannel`."""
    return TcpChannel(fabric, host, rank, streams=streams, mptcp=True)
