"""Path probes: packets that follow a path out and back, and get a record from every switch on it.

The switch side is p4src/probe.p4. ``PathProber`` sends one probe at a time from a NIC of the network
namespace in which it is created. The functions that build and read probes do no input or output.
"""

from __future__ import annotations

import itertools
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mrclab.hosts.nic.ports import ETH_P_IPV6
from mrclab.linux.bpf import attach_filter, udp_filter
from mrclab.p4src.contract import (
    CONTROL_DSCP,
    PROBE_HEADER,
    PROBE_MAX_HOPS,
    PROBE_PORT,
    PROBE_RECORD,
    PROBE_VERSION,
    TICKS_PER_US,
)
from mrclab.topologies import Fabric

_HEAD = struct.Struct(PROBE_HEADER)
_HOP = struct.Struct(PROBE_RECORD)
_PROBE_AT = 14 + 40 + 8
_HOP_LIMIT = 64


@dataclass(frozen=True, slots=True)
class ProbedPath:
    """A path out and back: the host, the plane, and the switches in the order of the path."""

    host: str
    plane: int
    switches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hop:
    """The record of one switch in a probe.

    On the ebpf target all switches and hosts share the clock of ``arrived_us``.
    """

    switch: str
    port_in: int
    port_out: int
    queue_wait_us: float
    arrived_us: int


@dataclass(frozen=True, slots=True)
class Echo:
    """A probe that came back. Times are CLOCK_MONOTONIC, ns."""

    sent_ns: int
    back_ns: int
    hops: tuple[Hop, ...]

    @property
    def rtt_ns(self) -> int:
        """The time in ns from just before the probe was sent until it was read."""
        return self.back_ns - self.sent_ns


def probed_paths(fabric: Fabric, src: str, dst: str | None = None) -> tuple[ProbedPath, ...]:
    """Return the paths from a host to another host's T0 and back. Without ``dst``: to every T1 and back.

    A probe cannot go farther than the other T0, because its segment list has room for six uSIDs. Raise
    KeyError for an unknown host, ValueError if src is dst.
    """
    found = []
    if dst is not None:
        for path in fabric.paths(src, dst):
            out = path.nodes[1:-1]
            found.append(ProbedPath(src, path.plane, (*out, *reversed(out[:-1]))))
        return tuple(found)
    for port in fabric.host(src).ports:
        for t1 in fabric.t1s(port.plane):
            if fabric.has_link(port.t0, t1.name):
                found.append(ProbedPath(src, port.plane, (port.t0, t1.name, port.t0)))
    return tuple(found)


def build_probe(fabric: Fabric, path: ProbedPath, number: int, sent_ns: int) -> bytes:
    """Return the frame of a probe."""
    port = fabric.host(path.host).ports[path.plane]
    segments = [fabric.switch(name).usid for name in path.switches]
    destination = fabric.plan.container([*segments, port.usid]).packed
    capacity = len(path.switches)
    probe = _HEAD.pack(PROBE_VERSION, capacity, 0, 0, number, sent_ns) + bytes(capacity * _HOP.size)
    length = 8 + len(probe)
    ipv6 = (6 << 28 | CONTROL_DSCP << 22).to_bytes(4, "big") + length.to_bytes(2, "big")
    ipv6 += bytes((socket.IPPROTO_UDP, _HOP_LIMIT)) + port.address.packed + destination
    udp = struct.pack("!HHHH", PROBE_PORT, PROBE_PORT, length, 0)
    return port.t0_mac + port.mac + b"\x86\xdd" + ipv6 + udp + probe


def read_probe(fabric: Fabric, frame: bytes) -> tuple[int, int, tuple[Hop, ...]]:
    """Return number, send time (ns) and records of a probe. Raise ValueError if the frame is not a probe."""
    try:
        version, capacity, used, _, number, sent_ns = _HEAD.unpack_from(frame, _PROBE_AT)
        if version != PROBE_VERSION or used > min(capacity, PROBE_MAX_HOPS):
            raise ValueError(f"version {version}, {used} of {capacity} records")
        hops = []
        for index in range(used):
            node, port_in, port_out, wait, arrived = _HOP.unpack_from(
                frame, _PROBE_AT + _HEAD.size + index * _HOP.size
            )
            hops.append(Hop(fabric.node_of(node), port_in, port_out, wait / TICKS_PER_US, arrived))
        return number, sent_ns, tuple(hops)
    except (struct.error, KeyError, IndexError) as error:
        raise ValueError(f"not a path probe: {error}") from None


class PathProber:
    """A prober that sends probes from a host's NIC and waits for their return. A context manager.

    Create it inside the host's network namespace. Its sockets then belong to that namespace.
    """

    def __init__(self, fabric: Fabric, host: str) -> None:
        self._fabric = fabric
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
        self._receiver = socket.socket(socket.AF_PACKET, kind, socket.htons(ETH_P_IPV6))
        attach_filter(self._receiver, udp_filter(PROBE_PORT, 512))
        self._senders: list[socket.socket] = []
        for port in fabric.host(host).ports:
            sender = socket.socket(socket.AF_PACKET, kind, 0)
            self._senders.append(sender)
            sender.bind((port.ifname, 0))
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for s in (self._receiver, *self._senders):
            s.close()

    def probe(self, path: ProbedPath, timeout_s: float = 0.5) -> Echo | None:
        """Send one probe along a path. Return None if it does not come back in time or cannot be sent."""
        self._number += 1
        sent_ns = time.monotonic_ns()
        try:
            self._senders[path.plane].send(build_probe(self._fabric, path, self._number, sent_ns))
        except OSError:
            return None
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._receiver], (), (), left)[0]:
                return None
            frame = self._receiver.recv(512)
            back_ns = time.monotonic_ns()
            try:
                number, sent, hops = read_probe(self._fabric, frame)
            except ValueError:
                continue
            if number == self._number and sent == sent_ns:
                return Echo(sent_ns, back_ns, hops)
        return None


def since_previous_us(echo: Echo) -> list[float]:
    """Return the time from each hop to the next, in us. The last value is from the last hop to the host.

    All switches must share the host's clock. Their records have whole microseconds.
    """
    moments: Sequence[float] = [echo.sent_ns / 1000, *(h.arrived_us for h in echo.hops), echo.back_ns / 1000]
    return [b - a for a, b in itertools.pairwise(moments)]
