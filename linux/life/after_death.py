"""Run a command when a process has ended, however it ended.

``python -S -m mrclab.linux.life.after_death PID START COMMAND...`` waits for the end of the process with that
pid and start time (clock ticks since boot). Then it replaces itself by the command. It imports very few
modules to save memory, because one such process runs for every testbed. SIGTERM ends it without running the
command. It ignores Ctrl-C and the end of its terminal.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def wait(pid: int, start: int) -> None:
    """Wait until the process with this pid and start time has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            if int(stat.read().rpartition(")")[2].split()[19]) != start:
                return  # another process has this pid now
    except OSError:
        return
    select.select([fd], [], [])


def main() -> None:
    """Wait until the given process has ended, then run the given command."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wait(int(sys.argv[1]), int(sys.argv[2]))
    os.execv(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
