"""The prober: it sends and receives the probes of all hosts. It does the I/O for ``inference``.

One process does this for all hosts, with sockets in each host's namespace. The hosts of a testbed share the
CPUs, and one loop needs much less CPU time than a process for each host.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from mrclab.hosts.clustermapper.heartbeat import Heartbeats
from mrclab.hosts.clustermapper.inference import Cleared, Deaf, Mapper, MapperConfig, MapperEvent, Verdict
from mrclab.hosts.clustermapper.probes import ID_OFFSET, MAGIC, PROBE_UDP_PORT, ProbePlan
from mrclab.hosts.nic.ports import ETH_P_IPV6, SO_RCVBUFFORCE, sharpen_timers
from mrclab.hosts.worker import freeze_heap
from mrclab.linux.bpf import attach_filter, udp_filter
from mrclab.linux.scheduling import before_others
from mrclab.topologies import Fabric

Enter = Callable[[str], AbstractContextManager[None]]
Say = Callable[[Mapping[str, Any]], None]

RECEIVE_BUFFER_BYTES = 4 << 20
MOST_AT_ONCE = 256
"""Largest number of frames that are read from one host before the prober reads from the next host."""
STILL_NS = 8_000_000  # after this time without a heartbeat, a CPU counts as stalled
REPORT_NS = 10_000_000_000
_ID = struct.Struct("!Q")
_MAGIC_AT = ID_OFFSET - len(MAGIC)


@dataclass(slots=True)
class Load:
    """Counters that show whether the prober was fast enough."""

    rounds: int = 0
    skipped: int = 0
    """Rounds that were not sent because their time had passed."""
    refused: int = 0
    """Probes that a port refused to send."""


class Prober:
    """The prober of a running fabric.

    ``enter(host)`` returns a context in which new sockets belong to that host's namespace. ``say`` is called
    when a verdict is new and when it ends. The argument is a dictionary with JSON's types.
    """

    def __init__(
        self,
        fabric: Fabric,
        enter: Enter,
        say: Say,
        *,
        interval_ns: int = 1_000_000,
        config: MapperConfig | None = None,
    ) -> None:
        self._plan = ProbePlan(fabric)
        self.mapper = Mapper(self._plan, config, lambda: secrets.randbits(64))
        self.load = Load()
        self._say = say
        self._interval_ns = interval_ns
        self._stack = contextlib.ExitStack()
        self._senders: dict[tuple[str, int], Callable[[bytes], int]] = {}
        self._receivers: list[socket.socket] = []
        self._buffer = bytearray(512)
        try:
            for host in fabric.hosts:
                with enter(host.name):
                    self._open(host.name, {port.plane: port.ifname for port in host.ports})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all sockets."""
        self._stack.close()

    def run(self, stop: Callable[[], bool]) -> None:
        """Probe until ``stop()`` returns True. Each round calls ``stop`` once."""
        sharpen_timers()
        freeze_heap()
        # The prober gets the same priority as agents, because it cannot measure while it waits for a CPU.
        with Heartbeats() as hearts, before_others():
            self._loop(stop, hearts)

    def _loop(self, stop: Callable[[], bool], hearts: Heartbeats) -> None:
        clock, mapper = time.monotonic_ns, self.mapper
        now = clock()
        due, report = now, now + REPORT_NS
        number = 0
        self._say({"event": "probing", "t_ns": now, **self._shape()})
        while not stop():
            now = clock()
            if hearts.longest_ns(now) > STILL_NS:
                mapper.stalled(now)
            if now >= due:
                self._send(number, now)
                number += 1
                due += self._interval_ns
                behind = clock() - due
                if behind > 0:
                    missed = behind // self._interval_ns + 1
                    self.load.skipped += missed
                    due += missed * self._interval_ns
            self._receive(due)
            for event in mapper.judge(clock()):
                self._say(as_dict(event))
            if now >= report:
                report = now + REPORT_NS
                self._say(self.report(now))

    def report(self, now_ns: int) -> dict[str, Any]:
        """Return counters of the probes so far."""
        return {
            "event": "report",
            "t_ns": now_ns,
            "timeout_us": self.mapper.timeout_ns(now_ns) // 1000,
            **asdict(self.load),
            **asdict(self.mapper.tally),
        }

    def _shape(self) -> dict[str, Any]:
        return {
            "links": len(self._plan.links),
            "probes_per_round": len(self._plan.round(0)),
            "interval_us": self._interval_ns // 1000,
        }

    def _send(self, number: int, now: int) -> None:
        routes = self._plan.round(number, self.mapper.suspects(now))
        self.load.rounds += 1
        for route, frame in self.mapper.send(routes, now):
            try:
                self._senders[route.host, route.plane](frame)
            except OSError as error:
                # A port that is full or down does not send the probe, which then counts as lost.
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS, errno.ENETDOWN, errno.ENXIO):
                    raise
                self.load.refused += 1

    def _receive(self, until: int) -> None:
        """Receive the frames that arrive until ``until``, and at least the frames that have already arrived.

        If frames arrive too fast, at most MOST_AT_ONCE frames of each host are read after ``until``.
        """
        clock, buffer, received = time.monotonic_ns, self._buffer, self.mapper.received
        while True:
            left = until - clock()
            # Use select, because epoll's timeout is in whole milliseconds.
            ready, _, _ = select.select(self._receivers, (), (), max(0, left) / 1e9)
            for receiver in ready:
                receive = receiver.recv_into
                with contextlib.suppress(BlockingIOError):
                    for _ in range(MOST_AT_ONCE):
                        size = receive(buffer)
                        if size >= ID_OFFSET + 8 and buffer[_MAGIC_AT:ID_OFFSET] == MAGIC:
                            received(_ID.unpack_from(buffer, ID_OFFSET)[0], clock())
            if left <= 0:
                return

    def _open(self, host: str, ifnames: Mapping[int, str]) -> None:
        for plane, ifname in ifnames.items():
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
            self._stack.callback(sender.close)
            sender.bind((ifname, 0))
            self._senders[host, plane] = sender.send
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
        receiver = socket.socket(socket.AF_PACKET, kind, socket.htons(ETH_P_IPV6))
        self._stack.callback(receiver.close)
        # Receive only probes: the filter drops all other frames.
        attach_filter(receiver, udp_filter(PROBE_UDP_PORT, 256))
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        self._receivers.append(receiver)


def as_dict(event: MapperEvent) -> dict[str, Any]:
    """Return an event as a log entry, with ``event`` as the first key."""
    state = "deaf" if getattr(event, "deaf", False) else "hearing"
    names = {Verdict: "verdict", Cleared: "cleared", Deaf: state}
    found = {"event": names[type(event)], **asdict(event)}
    found.pop("deaf", None)
    return found
