"""Recordings of programs' requests to a NIC: a JSON line for each request and each received immediate.

`mrclab exec --record` writes the header of a file and passes the file to the service. docs/programs.md has
the format; `mrclab.hosts.workloads.recorded` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

MOST_LINES = 1_000_000
"""Limit for the lines of a recording. One more line at the end has the number of omitted lines."""
BUFFER_BYTES = 1 << 16


@dataclass(slots=True)
class _File:
    """A file that is being written. ``lines`` also counts lines that were left out."""

    out: IO[str]
    lines: int = 0


@dataclass(slots=True)
class Recordings:
    """The unfinished recordings of a NIC's programs. ``now`` returns the time in ns."""

    now: Callable[[], int]
    _files: dict[int, _File] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Return True if anything is being recorded."""
        return bool(self._files)

    def begin(self, key: int, fd: int) -> None:
        """Begin a recording in the file of a descriptor. This object closes the descriptor."""
        self._files[key] = _File(os.fdopen(fd, "w", BUFFER_BYTES, encoding="ascii"))

    def end(self, key: int) -> None:
        """Complete the recording with this key, if there is one."""
        found = self._files.pop(key, None)
        if found is None:
            return
        if (left_out := found.lines - MOST_LINES) > 0:
            self._write(found, f'{{"left_out":{left_out}}}\n')
        with suppress(OSError):  # if the disk is full, the last line is incomplete
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
        """Record a request that is complete. ``peer`` is the host and the queue pair of the other end."""
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
            found.lines = MOST_LINES + 1  # no further line is written
