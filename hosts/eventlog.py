"""The event log: the events of an endpoint and their times, written during the run.

docs/event-log.md describes the format.

The NIC's process neither formats nor writes events. It sends them in small batches over a non-blocking socket
to a second process (``python -m mrclab.hosts.eventlog``), which formats and writes them. If the second
process is slow, events wait in a bounded buffer. If the buffer is full, events are lost; the last line of the
log has their number.

As in qlog (draft-ietf-quic-qlog-main-schema), an event is a dictionary with time, name and data. The file has
a `header` and then one `record` per line. This is "JSON-SEQ" without the separator bytes, so that every tool
for JSON lines can read it. As qlog requires, times are in ms since `reference_ns`.
"""

from __future__ import annotations

import json
import marshal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, get_type_hints

from mrclab.hosts.mrc import events
from mrclab.hosts.rdma.events import (
    Event,
    PacketLost,
    QpError,
    ReceiveCompleted,
    Retransmitted,
    SendCompleted,
)
from mrclab.linux.scheduling import stand_back

CATEGORY: dict[type[Event], str] = {
    SendCompleted: "application",
    ReceiveCompleted: "application",
    QpError: "connectivity",
    events.PlaneDown: "connectivity",
    events.PlaneUp: "connectivity",
    events.PortStatusUnanswered: "connectivity",
    events.EndpointAnswered: "connectivity",
    events.EvRetired: "path",
    events.EvReplaced: "path",
    events.EvRestored: "path",
    events.EvSkipped: "path",
    events.EvProbed: "path",
    events.ProbeSent: "recovery",
    events.ProbeAnswered: "recovery",
    PacketLost: "recovery",
    Retransmitted: "recovery",
    events.SpuriousLoss: "recovery",
    events.WindowChanged: "congestion",
}


def header(title: str, vantage_point: str, reference_ns: int) -> dict[str, Any]:
    """Return the first record of a log. `vantage_point` names the NIC; times count from `reference_ns`."""
    return {
        "qlog_version": "0.4",
        "qlog_format": "JSON-SEQ",
        "title": title,
        "trace": {
            "vantage_point": {"name": vantage_point},
            "common_fields": {"time_format": "relative", "reference_time_ns": reference_ns},
        },
    }


def record(event: Event, reference_ns: int = 0) -> dict[str, Any]:
    """Return one event: `time` in ms, `name` as `mrc:category:event_class`, its other fields as `data`."""
    name, keys = _SHAPES[type(event)]
    data: dict[str, Any] = {}
    for key in keys:
        value = getattr(event, key)
        data[key] = value.name.lower() if isinstance(value, Enum) else value
    return {"time": (event.t_ns - reference_ns) / 1e6, "name": name, "data": data}


def lost_record(count: int) -> dict[str, Any]:
    """Return the last line of a log that lacks `count` events because the buffer was full."""
    return {"name": "mrc:log:events_lost", "data": {"count": count}}


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


_SHAPES = {
    kind: (
        f"mrc:{category}:{_snake(kind.__name__)}",
        tuple(field.name for field in fields(kind) if field.name != "t_ns"),
    )
    for kind, category in CATEGORY.items()
}


BUFFER_EVENTS = 1 << 16
BATCH_EVENTS = 32
BACKLOG_EVENTS, BACKLOG_BATCH = 1024, 256
FLUSH_NS = 100_000_000
BLOCKED_NS = 10_000_000
SOCKET_BYTES = 1 << 20
SO_SNDBUFFORCE = 32
CLOSE_S = 60.0
COMPLETIONS = (SendCompleted, ReceiveCompleted)


def _hints(kind: type[Event]) -> dict[str, Any]:
    """Return the types of an event's fields. Look up the types' names in the module that has the class."""
    return get_type_hints(kind, vars(sys.modules[kind.__module__]))


_KINDS: tuple[type[Event], ...] = tuple(sorted(CATEGORY, key=lambda kind: kind.__name__))
_ENUMS: dict[type[Event], dict[int, type[Enum]]] = {
    kind: {
        number: hint
        for number, field in enumerate(fields(kind))
        if isinstance(hint := _hints(kind)[field.name], type) and issubclass(hint, Enum)
    }
    for kind in _KINDS
}


def _packer(kind: type[Event]) -> Callable[[Event], tuple[Any, ...]]:
    enums = _ENUMS[kind]
    names = [f"{f.name}.name" if n in enums else f.name for n, f in enumerate(fields(kind))]
    getter: Callable[[Event], tuple[Any, ...]] = attrgetter(*names)
    return getter


_PACKERS = {kind: (code, _packer(kind)) for code, kind in enumerate(_KINDS)}


def pack(batch: Iterable[Event]) -> bytes:
    """Serialise events for the writing process. This takes about a microsecond per event."""
    packed = []
    for event in batch:
        code, getter = _PACKERS[type(event)]
        packed.append((code, getter(event)))
    return marshal.dumps(packed)


def unpack(message: bytes) -> list[Event]:
    """Return the events from a message that ``pack`` made."""
    found: list[Event] = []
    for code, values in marshal.loads(message):
        kind, enums = _KINDS[code], _ENUMS[_KINDS[code]]
        if enums:
            values = [enums[n][v] if n in enums else v for n, v in enumerate(values)]
        found.append(kind(*values))
    return found


class EventLog:
    """The NIC's side of an event log. ``close`` completes the log and waits until it is written.

    If ``completions`` is false, the log leaves out work completions, because every message causes one. If
    ``keep_bytes`` is given, the log keeps only its newest bytes, about ``keep_bytes`` of them. These bytes
    are in the file and in an older file, whose name ends in ``.1``.
    """

    def __init__(
        self, path: Path, host: str, now_ns: int, *, completions: bool = True, keep_bytes: int | None = None
    ) -> None:
        self.written = 0
        self.lost = 0
        self._left_out = () if completions else COMPLETIONS
        self._waiting: deque[Event] = deque()
        self._since_ns = 0
        self._blocked_until_ns = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [
            sys.executable,
            "-m",
            "mrclab.hosts.eventlog",
            str(theirs.fileno()),
            str(path),
            host,
            str(now_ns),
        ]
        with theirs:
            self._writer = subprocess.Popen(
                [*argv, str(keep_bytes or 0)], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        try:
            ours.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SOCKET_BYTES)
        except PermissionError:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        ours.setblocking(False)
        self._socket = ours

    def add(self, event: Event, now_ns: int) -> None:
        """Add an event to the log."""
        if self._left_out and isinstance(event, self._left_out):
            return
        if len(self._waiting) >= BUFFER_EVENTS:
            self.lost += 1
            return
        if not self._waiting:
            self._since_ns = now_ns
        self._waiting.append(event)

    def next_due(self) -> int | None:
        """Return the latest time to call ``hand_over``, or None if no event waits."""
        return self._since_ns + FLUSH_NS if self._waiting else None

    def hand_over(self, now_ns: int) -> None:
        """Send a batch to the second process, if it is full or its first event has waited for FLUSH_NS."""
        waiting = self._waiting
        if now_ns < self._blocked_until_ns:
            return
        if len(waiting) < BATCH_EVENTS and (not waiting or now_ns < self._since_ns + FLUSH_NS):
            return
        count = min(BATCH_EVENTS if len(waiting) < BACKLOG_EVENTS else BACKLOG_BATCH, len(waiting))
        self._since_ns = now_ns
        try:
            self._pass_on(count)
        except BlockingIOError:
            # The writing process is slow. Wait, because each new attempt packs the batch again, which takes
            # much time.
            self._blocked_until_ns = now_ns + BLOCKED_NS
        except OSError:
            self.lost += len(waiting)
            waiting.clear()

    def _pass_on(self, count: int) -> None:
        self._socket.send(pack([self._waiting[n] for n in range(count)]))
        for _ in range(count):
            self._waiting.popleft()
        self.written += count

    def close(self) -> None:
        """Send the remaining events and wait until all of them are in the file."""
        self._socket.setblocking(True)
        self._socket.settimeout(CLOSE_S)
        try:
            while self._waiting:
                self._pass_on(min(BATCH_EVENTS, len(self._waiting)))
            self._socket.send(marshal.dumps(self.lost))
        except OSError:
            self.lost += len(self._waiting)
        self._socket.close()
        try:
            self._writer.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._writer.kill()
            self._writer.wait()


class LogFile:
    """The log file: a header, then a line for each event.

    If the file has ``keep_bytes`` / 2 bytes, its name gets the suffix ``.1``, and a new file begins. So the
    two files have about ``keep_bytes`` bytes. With 0 there is no limit.
    """

    def __init__(self, path: Path, host: str, reference_ns: int, keep_bytes: int = 0) -> None:
        self._path = path
        self._header = json.dumps(header("mrclab", host, reference_ns)) + "\n"
        self._reference_ns = reference_ns
        self._limit = keep_bytes // 2
        self._size = 0
        self._file: IO[str] = self._begin()

    def _begin(self) -> IO[str]:
        file = self._path.open("w", encoding="utf-8", newline="\n")
        self._size = file.write(self._header)
        return file

    def write(self, batch: Iterable[Event]) -> None:
        """Write events and flush the file."""
        for event in batch:
            line = record(event, self._reference_ns)
            self._size += self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()
        if self._limit and self._size >= self._limit:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._begin()

    def close(self, lost: int = 0) -> None:
        """Complete the log. If events were lost, the last line has their number."""
        if lost:
            self._file.write(json.dumps(lost_record(lost)) + "\n")
        self._file.close()


def write_log(log: Sequence[Event], path: Path, host: str = "") -> None:
    """Write a whole log from memory to a file."""
    file = LogFile(path, host, log[0].t_ns if log else 0)
    file.write(log)
    file.close()


def write_from(connection: socket.socket, log: LogFile) -> None:
    """Write the events that arrive until the other end closes the connection."""
    lost = 0
    while message := connection.recv(SOCKET_BYTES):
        found = marshal.loads(message)
        if isinstance(found, int):
            lost = found
        else:
            log.write(unpack(message))
    log.close(lost)


def main() -> None:
    """Run the writing process."""
    stand_back()
    fd, path, host, reference_ns, keep_bytes = sys.argv[1:]
    log = LogFile(Path(path), host, int(reference_ns), int(keep_bytes))
    with socket.socket(fileno=int(fd)) as connection:
        write_from(connection, log)


if __name__ == "__main__":
    main()
