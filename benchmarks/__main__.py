"""Run all benchmarks or some of them, one after another (`make bench`).

    python -m benchmarks [--full] [NAME ...]

By default each benchmark is shortened, so that all take some ten minutes. --full runs each benchmark with its
own defaults. The exit code is 1 if a benchmark failed or missed a bound. A benchmark that cannot run on this
machine ends with exit code 3 and says why. This is no failure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CANNOT = 3
# The arguments that shorten each benchmark.
SHORT: dict[str, Sequence[str]] = {
    "analysis": ("--trials", "20"),
    "class_server": ("--students", "3"),
    "clustermapper": ("faults", "-n", "10"),
    "cross_check": ("-n", "1", "--only", "cut-slow", "dead-2", "shared"),
    "disturbances": ("--runs", "1", "--only", "queue for a moment", "route", "capture damaged"),
    "endpoint": ("--rounds", "2", "--qps", "100"),
    "forged_frames": ("--frames", "5000"),
    "full_load": ("flows", "--seeds", "1", "--microseconds", "100", "--option", "skip_cap=0.125"),
    "hostile_client": ("--entries", "20000"),
    "kills": ("-n", "5"),
    "lab_up": ("--topology", "tiny", "lab", "--runs", "2"),
    "link_rate": ("--seconds", "1", "--rates", "10,100,1000"),
    "live_page": ("--topology", "tiny", "--rounds", "2", "--faults", "2"),
    "mrc_core": ("--megabytes", "8", "--rounds", "3"),
    "mrc_many_qps": ("--queue-pairs", "200", "--writes", "400", "--rounds", "3"),
    "native_programs": ("--pairs", "2", "--connects", "500"),
    "overload": ("--rates", "100", "--overloads", "2,10", "--seconds", "1", "--samples", "300"),
    "play_page": ("--loads", "2", "--runs", "1"),
    "raw_loop": ("--seconds", "1", "--rounds", "2"),
    "recovery_steps": (),
    "sham_faults": (),
    "shares": ("--nics", "4096,131072", "--dead", "1000"),
    "switch_forwarding": ("--switches", "8"),
    "switch_speed": ("--seconds", "0.3", "--rounds", "3", "--trips", "1000"),
    "switch_tables": ("--seconds", "0.3", "--rounds", "3"),
    "switch_versions": (),
    "testbed_up": ("-n", "3"),
    "validation": (),
    "validity": ("--trials", "4", "--only", "stop sender 50 ms", "freeze receiver 50 ms", "hog, one CPU"),
    "virtual_time": ("permutation", "--megabytes", "0.5"),
}


def run(name: str, words: Sequence[str]) -> int:
    """Run one benchmark and return its exit code."""
    print(f"== {' '.join([name, *words])}", flush=True)
    started = time.monotonic()
    done = subprocess.run([sys.executable, HERE / f"{name}.py", *words], cwd=HERE.parent, check=False)
    note = {0: "", CANNOT: ", cannot run here"}.get(done.returncode, f", exit code {done.returncode}")
    print(f"-- {name}: {time.monotonic() - started:.0f} s{note}\n", flush=True)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Runs the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHORT)}; default: all")
    parser.add_argument("--full", action="store_true", help="each with its own defaults")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(SHORT)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(SHORT)}")
    names = options.names or list(SHORT)
    codes = {name: run(name, () if options.full else SHORT[name]) for name in names}
    failed = [name for name, code in codes.items() if code not in (0, CANNOT)]
    if failed:
        print(f"failed or missed a bound: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
