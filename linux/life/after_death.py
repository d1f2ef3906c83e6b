"""Run a command when a process has ended, however it ended.

``python -S -m mrclab.linux.life.after_death PID START COMMAND...`` waits for the process of that pid and
start time (clock ticks since boot) and then becomes the command. It imports almost nothing, because every
testbed has one.
SIGTERM ends it without the command; Ctrl-C and the end of a terminal do not concern it.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def wait(pid: int, start: int) -> None:
    """Return when the process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            if int(stat.read().rpartition(")")[2].split()[19]) != start:
                return  # the pid is another process's by now
    except OSError:
        return
    select.select([fd], [], [])


def main() -> None:
    """Wait, then run the command of the command line."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wait(int(sys.argv[1]), int(sys.argv[2]))
    os.execv(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
