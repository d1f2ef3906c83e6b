"""The event log: what an endpoint did and when, written while it happens. The format is in docs/event-log.md.

The NIC's process neither formats nor writes: it hands events in small batches to a process that does both
(``python -m hosts.eventlog``), through a socket that never blocks it. What that process cannot take yet waits
in a bounded buffer; what finds the buffer full is counted and named in the log's last line, not written.
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

from hosts.mrc import qlog
from hosts.rdma.events import Event, ReceiveCompleted, SendCompleted
from linux.scheduling import stand_back

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
    """Return the types of an event's fields. Compiled classes do not find their module's names themselves."""
    return get_type_hints(kind, vars(sys.modules[kind.__module__]))


_KINDS: tuple[type[Event], ...] = tuple(sorted(qlog.CATEGORY, key=lambda kind: kind.__name__))
_ENUMS: dict[type[Event], dict[int, type[Enum]]] = {
    kind: {
        number: hint
        for number, field in enumerate(fields(kind))
        if isinstance(hint := get_type_hints(kind, vars(sys.modules[kind.__module__]))[field.name], type)
        and issubclass(hint, Enum)
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
    """Events for the way to the writing process: about a microsecond each."""
    packed = []
    for event in batch:
        code, getter = _PACKERS[type(event)]
        packed.append((code, getter(event)))
    return marshal.dumps(packed)


def unpack(message: bytes) -> list[Event]:
    """The inverse of ``pack``."""
    found: list[Event] = []
    for code, values in marshal.loads(message):
        kind, enums = _KINDS[code], _ENUMS[_KINDS[code]]
        if enums:
            values = [enums[n][v] if n in enums else v for n, v in enumerate(values)]
        found.append(kind(*values))
    return found


class EventLog:
    """Where a NIC's process puts its events; ``close`` ends the log and waits until it is written.

    ``completions`` says whether work completions are written, which come with every message. With
    ``keep_bytes`` only about as much of the newest is kept, in the file and a ``.1`` with what was before it.
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
        argv = [sys.executable, "-m", "hosts.eventlog", str(theirs.fileno()), str(path), host, str(now_ns)]
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
        """Takes an event."""
        if self._left_out and isinstance(event, self._left_out):
            return
        if len(self._waiting) >= BUFFER_EVENTS:
            self.lost += 1
            return
        if not self._waiting:
            self._since_ns = now_ns
        self._waiting.append(event)

    def next_due(self) -> int | None:
        """When ``hand_over`` wants to be called, at the latest."""
        return self._since_ns + FLUSH_NS if self._waiting else None

    def hand_over(self, now_ns: int) -> None:
        """Passes one batch on, where there is a whole one or what there is has waited long."""
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
            # The writer is behind. To pack a batch anew with every event would take all the NIC's time.
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
        """Passes the rest on and waits until all of it is in the file."""
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
    """The file: a header, then a line for each event. With ``keep_bytes`` it begins anew at half of that."""

    def __init__(self, path: Path, host: str, reference_ns: int, keep_bytes: int = 0) -> None:
        self._path = path
        self._header = json.dumps(qlog.header("mrclab", host, reference_ns)) + "\n"
        self._reference_ns = reference_ns
        self._limit = keep_bytes // 2
        self._size = 0
        self._file: IO[str] = self._begin()

    def _begin(self) -> IO[str]:
        file = self._path.open("w", encoding="utf-8")
        self._size = file.write(self._header)
        return file

    def write(self, batch: Iterable[Event]) -> None:
        """Writes events, up to the last one."""
        for event in batch:
            record = qlog.record(event, self._reference_ns)
            self._size += self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()
        if self._limit and self._size >= self._limit:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._begin()

    def close(self, lost: int = 0) -> None:
        """Ends the log; ``lost`` events are told in its last line."""
        if lost:
            self._file.write(json.dumps(qlog.lost_record(lost)) + "\n")
        self._file.close()


def write_log(log: Sequence[Event], path: Path, host: str = "") -> None:
    """Writes a whole log at once, for whoever has one in memory."""
    file = LogFile(path, host, log[0].t_ns if log else 0)
    file.write(log)
    file.close()


def write_from(connection: socket.socket, log: LogFile) -> None:
    """Writes what comes until the other end is gone."""
    lost = 0
    while message := connection.recv(SOCKET_BYTES):
        found = marshal.loads(message)
        if isinstance(found, int):
            lost = found
        else:
            log.write(unpack(message))
    log.close(lost)


def main() -> None:
    """Entry point of the writing process."""
    stand_back()
    fd, path, host, reference_ns, keep_bytes = sys.argv[1:]
    log = LogFile(Path(path), host, int(reference_ns), int(keep_bytes))
    with socket.socket(fileno=int(fd)) as connection:
        write_from(connection, log)


if __name__ == "__main__":
    main()
