"""Send frames from one CPU, as fast as possible or at a fixed rate, by `sendmmsg` without a qdisc.

    blaster.py FD CPU FRAME_BYTES    (frames come on standard input, one after the other; then runs)

`Blaster` starts this script and passes the socket FD to it. The frames are sent again and again. A line
`SECONDS RATE` starts a run, and `SENT NANOSECONDS` is the answer. A RATE of 0 means as fast as possible.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20
BATCH = 64
TICK_S = 0.0005  # with a RATE, each batch has the frames that are due in this time
PR_SET_PDEATHSIG, SIGKILL = 1, 9


@dataclass(frozen=True)
class Sent:
    """The number of frames that a run sent, and its time."""

    frames: int
    seconds: float

    @property
    def per_s(self) -> float:
        """The number of sent frames per second."""
        return self.frames / self.seconds


class Blaster:
    """The script as a process that waits for runs. All `frames` have the same length."""

    def __init__(self, on: socket.socket, frames: Sequence[bytes], cpu: int) -> None:
        on.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        argv = [sys.executable, __file__, str(on.fileno()), str(cpu), str(len(frames[0])), str(len(frames))]
        self._process = subprocess.Popen(
            argv, pass_fds=[on.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._in.write(b"".join(frames))
        self._in.flush()
        self._out.readline()

    def begin(self, seconds: float, per_s: float = 0) -> None:
        """Start a run."""
        self._in.write(f"{seconds} {per_s}\n".encode())
        self._in.flush()

    def end(self) -> Sent:
        """Wait for the end of the run."""
        frames, ns = self._out.readline().split()
        return Sent(int(frames), int(ns) / 1e9)

    def run(self, seconds: float, per_s: float = 0) -> Sent:
        """Do a run from start to end."""
        self.begin(seconds, per_s)
        return self.end()

    def close(self) -> None:
        """End the process."""
        self._in.close()
        self._process.wait()
        self._out.close()


def _messages(frames: ctypes.Array[ctypes.c_char], size: int, count: int) -> tuple[object, int, object]:
    """Return an array of mmsghdr (sendmmsg(2)), its address, and the buffers that it points to."""
    start = ctypes.addressof(frames)
    vectors = ctypes.create_string_buffer(
        b"".join(struct.pack("=QQ", start + i * size, size) for i in range(count))
    )
    at = ctypes.addressof(vectors)
    heads = b"".join(struct.pack("=QI4xQQQQi4xI4x", 0, 0, at + 16 * i, 1, 0, 0, 0, 0) for i in range(count))
    table = ctypes.create_string_buffer(heads)
    return table, ctypes.addressof(table), vectors


def main() -> None:
    fd, cpu, size, count = (int(word) for word in sys.argv[1:5])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    os.sched_setaffinity(0, {cpu})
    frames = ctypes.create_string_buffer(sys.stdin.buffer.read(size * count))
    table, address, vectors = _messages(frames, size, count)
    send = ctypes.CDLL(None, use_errno=True).sendmmsg
    send.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
    clock = time.perf_counter_ns
    print("ready", flush=True)
    while line := sys.stdin.buffer.readline():
        seconds, per_s = (float(word) for word in line.split())
        batch = BATCH if not per_s else max(1, min(BATCH, int(per_s * TICK_S)))
        gap = 0 if not per_s else batch / per_s * 1e9
        sent = at = 0
        due: float = clock()
        start, end = clock(), clock() + seconds * 1e9
        while (now := clock()) < end:
            if now < due:  # sleep, because the switch may need this CPU
                time.sleep((due - now) / 1e9)
                continue
            done = send(fd, address + 64 * at, min(batch, count - at), 0)
            if done > 0:
                sent += done
                at = (at + done) % count
                due += gap * done / batch
        print(sent, clock() - start, flush=True)
    del table, vectors


if __name__ == "__main__":
    main()
