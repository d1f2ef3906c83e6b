"""Measure the time in which a topology's namespaces and links come up and go down, and their memory.

    python benchmarks/testbed_up.py [--topology lab] [-n 20] [--json]

Times are wall-clock times of FabricNetwork.up and .down in one process, without switch programs: median and
p90 of n trials. "namespaces" and "links" are the parts of "up". "mininet" is the time to make Mininet's
objects for the fabric. "first_mib" is the fall of MemAvailable in /proc/meminfo when the topology comes up
the first time. It includes the kernel's memory, and changes by other programs in that time. Later trials
reuse memory that the kernel has not freed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mrclab.linux import namespaces
from mrclab.testbed import links, state
from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import load_fabric

MEASURES = ("up_ms", "namespaces_ms", "links_ms", "mininet_ms", "down_ms")


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def timed_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def trial(topology: str, names: Names) -> dict[str, float]:
    fabric = load_fabric(topology)
    parts = {"namespaces_ms": 0.0}
    markers = namespaces.Markers(state.markers_dir(names))
    made = names.of(fabric)

    def parts_of_up() -> None:
        with state.locked(names):
            parts["namespaces_ms"] = timed_ms(lambda: [namespaces.create(name, markers) for name in made])
            parts["links_ms"] = timed_ms(lambda: links.lay(fabric, names))
            links.cut(names.fabric)
            for name in made:
                namespaces.delete(name, markers)
            state.forget(names)

    parts_of_up()
    gc.collect()
    before = available_bytes()
    networks: list[FabricNetwork] = []
    parts["up_ms"] = timed_ms(lambda: networks.append(FabricNetwork.up(fabric, names=names)))
    try:
        parts["memory_mib"] = (before - available_bytes()) / 2**20
        parts["mininet_ms"] = timed_ms(lambda: networks[0].mininet)
    finally:
        parts["down_ms"] = timed_ms(networks[0].down)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--topology", action="append", help="a shipped name or a file; default: tiny, lab and wide"
    )
    parser.add_argument("-n", type=int, default=20, help="trials of each (default 20)")
    parser.add_argument("--json", action="store_true", help="print JSON with every trial")
    args = parser.parse_args()
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, {system}"
    result: dict[str, object] = {"machine": machine, "n": args.n}
    if not args.json:
        print(f"{machine}; n = {args.n}; median (p90)")
        print(f"{'topology':10}" + "".join(f"{measure:>20}" for measure in MEASURES) + f"{'first_mib':>12}")
    for topology in args.topology or ("tiny", "lab", "wide"):
        with tempfile.TemporaryDirectory() as scratch:
            names = Names(f"b{os.getpid()}", Path(scratch) / "state")
            first_mib = trial(topology, names)["memory_mib"]  # and the imports
            trials = [trial(topology, names) for _ in range(args.n)]
        result[topology] = {"first_mib": first_mib, "trials": trials}
        cells = []
        for measure in MEASURES:
            values = sorted(found[measure] for found in trials)
            p90 = values[min(len(values) - 1, int(0.9 * len(values)))]
            cells.append(f"{statistics.median(values):.1f} ({p90:.1f})")
        if not args.json:
            print(f"{topology:10}" + "".join(f"{cell:>20}" for cell in cells) + f"{first_mib:12.1f}")
    if args.json:
        json.dump(result, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
