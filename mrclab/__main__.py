"""``mrclab``, and ``python -m mrclab``: from its first moment on a signal ends it in a line.

The commands import much, which takes a second on a busy machine. So signals have their meaning before that.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from mrclab.linux.life import signals

INTERRUPTED = 130
URGENT = ("fault", "restore")
"""Short commands: their start took up to ten seconds while programs polled on every CPU."""
MOST_NICE = -20


def main() -> int:
    """Run the command line; return the exit code."""
    if sys.argv[1:2] and sys.argv[1] in URGENT:
        with suppress(AttributeError, OSError):  # not every system has it, and not everyone may
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
