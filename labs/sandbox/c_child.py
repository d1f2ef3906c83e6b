"""``python -m mrclab.labs.sandbox.c_child FOLDER STAGE CPU_S RUNS``: compile C files and run the program.

The program runs without rights. The compiler runs without rights too, because it reads every file that a
source includes. The first line of output has the rights that could not be removed. The second line has the
compiler's messages. Both lines are JSON. Then the program runs ``RUNS`` times with standard input and output.
A line ``X CODE`` after each run has the exit code of the run, negative for a signal.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from mrclab.labs.sandbox.confine import Limits, confine

COMPILER = "gcc"
OPTIONS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fmax-errors=5")
_COMPILERS_PROCESSES = 256
_PROGRAM = "./program.out"


def main(folder: Path, stage: Path, cpu_s: int, runs: int) -> int:
    """Compile and run the program. Return 0."""
    limits = Limits(cpu_s=cpu_s, processes=_COMPILERS_PROCESSES)
    missing = confine(folder, stage, Path(__file__).parents[2], limits)
    _say({"missing": missing})
    sources = sorted(path.name for path in folder.glob("*.c"))
    argv = [COMPILER, *OPTIONS, "-o", _PROGRAM, *sources]
    compiled = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    _say({"compiled": compiled.returncode == 0, "messages": compiled.stderr})
    for _ in range(runs if compiled.returncode == 0 else 0):
        ran = subprocess.run([_PROGRAM], preexec_fn=_alone, check=False)  # safe: this process has one thread
        print(f"X {ran.returncode}", flush=True)
    return 0


def _alone() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _say(value: dict[str, object]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
    os._exit(code)
