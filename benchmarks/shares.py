"""The time and memory for computing max-min shares, by the number of NICs, with dead links.

    python benchmarks/shares.py [--nics N,...] [--dead K,...] [--spread even|adaptive]

The traffic is a permutation or all-to-all. Each row is computed in a separate process, so that its peak
memory is measured alone. The time does not include the start of Python. A permutation of 131,072 NICs must
take at most 60 s and 8 GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.kit.results import bound, machine  # noqa: E402

BOUND_NICS, MOST_SECONDS, MOST_MIB = 131_072, 60, 8 * 1024
PATTERNS = ("permutation", "all-to-all", "ecmp")


def measure(pattern: str, nics: int, dead: int, spread: str) -> dict[str, float]:
    """Compute shares once and return seconds, steps, the peak of memory, and the shares."""
    import numpy as np

    from mrclab.scale.fabric import smallest_design
    from mrclab.scale.parts import Parts
    from mrclab.scale.shares import Fabric, all_to_all, ecmp_permutation, max_min, permutation

    parts, rng = Parts(), np.random.default_rng(1)
    began = time.perf_counter()
    if pattern == "ecmp":
        shares = ecmp_permutation(smallest_design(nics, 1, parts).built(nics), rng, dead)
    else:
        fabric = Fabric.of(smallest_design(nics, 8, parts).built(nics)).with_dead_links(dead, rng)
        flows = permutation(fabric, rng) if pattern == "permutation" else all_to_all(fabric)
        shares = max_min(fabric, flows, "adaptive" if spread == "adaptive" else "even")
    return {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time(),
        "steps": shares.steps,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "mean": shares.total,
        "least": shares.least,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nics", default="1024,4096,16384,65536,131072", help="of fabrics of 8 planes")
    parser.add_argument("--dead", default="0,1000,10000", help="T0-T1 links")
    parser.add_argument("--spread", choices=("even", "adaptive"), default="even")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        pattern, nics, dead, spread = options.one.split(",")
        print(json.dumps(measure(pattern, int(nics), int(dead), spread)))
        return 0
    print(machine())
    heads = ("s", "CPU s"), ("steps",), ("MiB", "mean", "least")
    widths = (8, 6, 7)
    columns = " ".join(
        f"{name:>{width}}" for names, width in zip(heads, widths, strict=True) for name in names
    )
    print(f"{'traffic':12} {'NICs':>8} {'dead':>6} {columns}")
    worst_s, worst_mib = 0.0, 0.0
    for pattern in PATTERNS:
        for nics in (int(word) for word in options.nics.split(",")):
            for dead in (int(word) for word in options.dead.split(",")):
                if dead >= nics:  # a plane has only as many links as NICs
                    continue
                case = f"{pattern},{nics},{dead},{options.spread}"
                command = [sys.executable, __file__, "--one", case]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                print(
                    f"{pattern:12} {nics:8,} {dead:6,} {found['seconds']:8.2f} {found['cpu']:8.2f} "
                    f"{found['steps']:6.0f} {found['peak_mib']:7.0f} {found['mean']:7.4f} "
                    f"{found['least']:7.4f}",
                    flush=True,
                )
                if (pattern, nics) == ("permutation", BOUND_NICS):
                    worst_s = max(worst_s, found["seconds"])
                    worst_mib = max(worst_mib, found["peak_mib"])
    kept = bound(f"slowest permutation of {BOUND_NICS:,} (s)", worst_s, most=MOST_SECONDS)
    kept &= bound(f"largest permutation of {BOUND_NICS:,} (MiB)", worst_mib, most=MOST_MIB)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
