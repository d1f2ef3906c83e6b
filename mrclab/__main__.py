"""``mrclab``, and ``python -m mrclab``: from its first moment on a signal ends it in a line.

The commands import much, which takes a second on a busy machine. So signals have their meaning before that.
"""

from __future__ import annotations

import sys

from mrclab.linux.life import signals

INTERRUPTED = 130


def main() -> int:
    """Run the command line; return the exit code."""
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
