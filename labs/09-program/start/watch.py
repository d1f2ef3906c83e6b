"""Show what your program does and what its NIC answers: python watch.py [send|receive] [SEED].

There are three queue pairs, and the second one fails. Change SETTING to try other cases.
"""

import dataclasses
import sys
from pathlib import Path

from mrclab.labs.programming import LIMIT_S, Setting, Wrong, nic_of, run, sources_of
from mrclab.labs.sandbox.program import CompileError, Program, ProgramEnd

SETTING = Setting(qps=3, depth=2, length=12_000, message_bytes=1024, fail={1: 1})


def main(words):
    """Run transfer.c once. ``words`` are the arguments of the command line."""
    receiving = "receive" in words
    seed = next((int(word) for word in words if word.isdigit()), 1)
    setting = dataclasses.replace(SETTING, receiving=receiving, seed=seed)
    try:
        with Program(sources_of(Path.cwd(), Path("transfer.c").read_bytes()), LIMIT_S) as program:
            run(program, setting, nic_of(setting, print))
    except (CompileError, ProgramEnd, Wrong) as error:
        print(error)
        return 1
    print("done: every byte is there" if not receiving else "done: every message has come")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
