"""Recordings of what programs request of a NIC: a JSON line for each request and each received immediate.

`mrclab exec --record` asks for one and passes the file, whose header it has written itself. docs/programs.md
has the form, and `mrclab.hosts.workloads.recorded` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

MOST_LINES = 1_000_000
"""Of a recording; its last line counts those beyond."""
BUFFER_BYTES = 1 << 16


@dataclass(slots=True)
class _File:
    """A file under way; ``lines`` also counts those beyond ``MOST_LINES``."""

    out: IO[str]
    lines: int = 0


@dataclass(slots=True)
class Recordings:
    """The recordings of a NIC's programs that are under way. ``now`` is the clock, ns."""

    now: Callable[[], int]
    _files: dict[int, _File] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Return True if a recording is under way."""
        return bool(self._files)

    def begin(self, key: int, fd: int) -> None:
        """Begin to write to a descriptor, which is this object's from now on."""
        self._files[key] = _File(os.fdopen(fd, "w", BUFFER_BYTES, encoding="ascii"))

    def end(self, key: int) -> None:
        """Complete the recording of that key, if there is one."""
        found = self._files.pop(key, None)
        if found is None:
            return
        if (left_out := found.lines - MOST_LINES) > 0:
            self._write(found, f'{{"left_out":{left_out}}}\n')
        with suppress(OSError):  # the disk is full: the file ends in the middle of a line
            found.out.close()

    def sent(
        self,
        qpn: int,
        peer: tuple[str, int],
        length: int,
        posted_ns: int,
        status: int,
        *,
        imm: bool,
        signaled: bool,
    ) -> None:
        """Record a request that is complete; ``peer`` is the host and the queue pair at the other end."""
        host, peer_qpn = peer
        self._line(
            f'{{"posted_ns":{posted_ns},"completed_ns":{self.now()},"qpn":{qpn},"peer":"{host}",'
            f'"peer_qpn":{peer_qpn},"bytes":{length},"imm":{int(imm)},"signaled":{int(signaled)},'
            f'"status":{status}}}\n'
        )

    def received(self, qpn: int, length: int) -> None:
        """Record the completion of a program's receive."""
        self._line(f'{{"received_ns":{self.now()},"qpn":{qpn},"bytes":{length}}}\n')

    def _line(self, text: str) -> None:
        for found in self._files.values():
            found.lines += 1
            if found.lines <= MOST_LINES:
                self._write(found, text)

    def _write(self, found: _File, text: str) -> None:
        try:
            found.out.write(text)
        except OSError:
            found.lines = MOST_LINES + 1  # nothing more of it
