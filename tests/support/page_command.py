"""In tests, the code blocks of pages call this module instead of the command ``mrclab``.

If a command runs until Ctrl-C, this module ends it. If PAGES_FABRIC is set, one fabric is up for all blocks,
so ``up`` and ``down`` do nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

ENDLESS = (["status", "--watch"], ["clustermapper"])
INTERRUPTED = (0, 130, -signal.SIGINT)


def main(words: list[str]) -> int:
    """Run the command and return its exit code."""
    command = [sys.executable, "-m", "mrclab", *words]
    if words[:1] in (["up"], ["down"]) and "PAGES_FABRIC" in os.environ:
        return 0
    if words not in ENDLESS:
        os.execv(command[0], command)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read(1)  # the command's first output shows that it works
        child.send_signal(signal.SIGINT)
        child.stdout.read()
    return 0 if child.returncode in INTERRUPTED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
