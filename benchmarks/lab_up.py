"""Measure how long a fabric takes to come up (with programmed switches) and to go down, and its memory.

    python benchmarks/lab_up.py [--topology lab ...] [--target ebpf] [--runs 5]

Times are those of the whole commands `mrclab up` and `mrclab down`, including the start of Python. Memory is
the proportional set size (PSS) of all processes of the testbed, and the fall of MemAvailable. MemAvailable
includes the kernel's memory (interfaces, programs, maps), but also changes by other programs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from mrclab.linux.namespaces import Identity, Markers
from mrclab.testbed.clean import testbed_processes
from mrclab.testbed.names import PREFIX_VARIABLE, Names
from mrclab.testbed.state import markers_dir

MIB = 1 << 20


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 if it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))


def available_bytes() -> int:
    """Return MemAvailable of /proc/meminfo, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def timed(words: list[str], environment: dict[str, str]) -> float:
    """Return the time that a command of mrclab takes, in s."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mrclab", *words], env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--topology", nargs="+", default=["tiny", "lab", "wide"])
    parser.add_argument("--target", default="ebpf")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    names = Names.of_prefix(f"bench{os.getpid()}")

    def inside() -> set[Identity]:
        return set(Markers(markers_dir(names)).identities())

    environment = {**os.environ, PREFIX_VARIABLE: names.prefix}
    print(f"target {args.target}, {args.runs} runs each, {os.cpu_count()} CPUs; medians (worst)")
    print(f"{'topology':10} {'up s':>14} {'down s':>14} {'PSS MiB':>16} {'MemAvailable MiB':>18}")
    for topology in args.topology:
        columns: list[list[float]] = [[], [], [], []]
        for _ in range(args.runs):
            before = available_bytes()
            try:
                columns[0].append(timed(["up", "--topology", topology, "--target", args.target], environment))
                columns[2].append(sum(pss_bytes(p.pid) for p in testbed_processes(names, inside())) / MIB)
                columns[3].append((before - available_bytes()) / MIB)
                columns[1].append(timed(["down"], environment))
            finally:
                subprocess.run(
                    [sys.executable, "-m", "mrclab", "clean"],
                    env=environment,
                    check=False,
                    capture_output=True,
                )
        cells = [f"{statistics.median(c):.2f} ({max(c):.2f})" for c in columns]
        print(f"{topology:10} {cells[0]:>14} {cells[1]:>14} {cells[2]:>16} {cells[3]:>18}")


if __name__ == "__main__":
    main()
