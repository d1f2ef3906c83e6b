"""Send one frame again and again at a fixed rate, until SIGTERM. For benchmarks of links.

    paced_sender.py FD CPU INTERVAL_NS [FRAME in hex]

FD is an inherited packet socket. CPU is the CPU on which the script runs (-1: any CPU). An interval of 0
means as fast as possible. The script waits in a busy loop. After a delay it makes up for at most 1 ms of
missed time, so that it sends no long burst. On SIGTERM it prints how many frames it sent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

CATCH_UP_NS = 1_000_000
NICENESS = -15
PR_SET_PDEATHSIG = 1


class PacedSender:
    """The script as a process. ``stop`` ends the process and returns how many frames it sent."""

    def __init__(self, on: socket.socket, frame: bytes, interval_ns: float, cpu: int = -1) -> None:
        argv = [sys.executable, __file__, str(on.fileno()), str(cpu), repr(interval_ns), frame.hex()]
        self._process = subprocess.Popen(argv, pass_fds=[on.fileno()], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._said = self._process.stdout
        self._said.readline()

    def stop(self) -> int:
        """End the process and return how many frames it sent."""
        self._process.terminate()
        sent = int(self._said.readline())
        self._said.close()
        self._process.wait()
        return sent


def main() -> int:
    fd, cpu, interval_ns = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    frame = bytes.fromhex(sys.argv[4])
    going = True

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, stop)
    # This busy loop at high priority must not continue after the parent process has ended.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        return 1
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    if cpu >= 0:
        os.sched_setaffinity(0, {cpu})
    out = socket.socket(fileno=fd)
    send, clock = out.send, time.monotonic_ns
    print("ready", flush=True)
    sent = 0
    due: float = clock()
    while going:
        now = clock()
        if now < due:
            continue
        due = max(due, now - CATCH_UP_NS) + interval_ns
        try:
            send(frame)
        except OSError:  # the socket's buffer is full
            continue
        sent += 1
    print(sent, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
