"""The entry point of ``mrclab`` and ``python -m mrclab``.

It sets the signal handlers before it imports the commands, because their import can take a second. So a
signal in this second ends the program with a message of one line.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from mrclab.linux.life import signals

INTERRUPTED = 130
URGENT = ("fault", "restore")
"""Commands that run at the highest priority. Otherwise their start could take ten seconds on busy CPUs."""
MOST_NICE = -20


def _open_standard_streams() -> None:
    """Let closed standard streams read and write nothing.

    Otherwise a pipe that is opened later gets the number of a closed stream, and a child process that should
    write to the pipe writes elsewhere.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def main() -> int:
    """Run the command line; return the exit code."""
    _open_standard_streams()
    if sys.argv[1:2] and sys.argv[1] in URGENT:
        with suppress(AttributeError, OSError):  # no setpriority on this system, or not root
            os.setpriority(os.PRIO_PROCESS, 0, MOST_NICE)
    try:
        with signals.as_exceptions():
            from mrclab.cli import main as run

            return run()
    except signals.Ended as ended:
        said, code = str(ended), 128 + ended.number
    except KeyboardInterrupt:
        said, code = "interrupted", INTERRUPTED
    finally:
        signals.ignore_interrupt()
    print(f"mrclab: {said}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
