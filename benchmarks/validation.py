"""Compare the simulator with formulas, with the model of `mrclab scale`, and with a user's own htsim.

    python benchmarks/validation.py [--points] [--htsim PATH] [--hosts 64,256,1024] [--pairs 5] [--speed]

Prints a row for each of the fourteen forms of docs/validation.md: the point that is nearest to its bound, or
with `--points` all points. With `--htsim` (a path to `htsim_uec`) the same permutation runs in both
simulators in turns. A table follows: CPU time per data packet, memory, and the slowest flow. "least" is our
least CPU time divided by htsim's least CPU time, because other programs can only make a run slower. `--speed`
prints our part of the table without htsim. Ends with exit code 1 if a bound is missed. CPU times have no
bound.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.kit.closed_forms import FORMS, Point  # noqa: E402
from benchmarks.kit.htsim import Run, ours_alone, packets_of, radix_of, theirs  # noqa: E402
from benchmarks.kit.results import machine  # noqa: E402
from benchmarks.kit.shares_and_packets import shares_points  # noqa: E402
from mrclab.hosts import compiled  # noqa: E402
from mrclab.linux.errors import InputError  # noqa: E402

GIGABITS = 400
MEGABYTES = {64: 2.0, 256: 2.0}
"""The size of a flow in MB, by the number of hosts. It is 1 MB for any other number."""
VARIANTS: dict[str, dict[str, Any]] = {"": {}, "rare SACKs": {"sack_threshold_bytes": 14_336}}
"""Options of our runs: the defaults, and a SACK for each 14 kB, which is about as often as in htsim."""
SLOWEST_WITHIN = 0.1


def form_row(number: int, name: str, points: Sequence[Point]) -> None:
    """Print the point of a form that is nearest to its bound."""
    point = max(points, key=lambda p: (abs(p.deviation) / p.bound if p.bound else 0.0, p.expected))
    holds = all(p.holds for p in points)
    note = "" if holds else "  DOES NOT HOLD"
    print(
        f"{number:3} {name:34} {point.what:28} {point.expected:10.4g} {point.found:10.4g} "
        f"{point.deviation:+8.2%} {point.bound:8.2%} {len(points):4}{note}",
        flush=True,
    )


def forms(*, all_points: bool) -> bool:
    """Print the forms. Return True if all bounds hold."""
    title = f"{'':3} {'form':34} {'nearest to its bound':28} {'expected':>10} {'simulated':>10} "
    print(title + f"{'off by':>8} {'bound':>8} {'n':>4}")
    holds = True
    for number, (name, function) in enumerate((*FORMS, ("shares of `mrclab scale`", shares_points)), 1):
        points = list(function())
        holds &= all(point.holds for point in points)
        for some in [[point] for point in points] if all_points else [points]:
            form_row(number, name, some)
    return holds


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Return the median, the least and the largest value as text."""
    found = sorted(values)
    return f"{statistics.median(found):.{digits}f} [{found[0]:.{digits}f}, {found[-1]:.{digits}f}]"


def permutations(binary: Path | None, sizes: Sequence[int], pairs: int) -> bool:
    """Print the permutation for each number of hosts, also by htsim if given. Return True if both agree."""
    agree = True
    print(
        f"\npermutation, {GIGABITS} Gbit/s, NSCC; n {pairs}: median [least, most]; us are CPU a data packet"
    )
    title = f"{'hosts':>6} {'':10} {'us':>18} {'events':>7} {'k events/s':>10} {'MB':>5} {'slowest, us':>12}"
    theirs_title = f" {'htsim: us':>18} {'MB':>5} {'slowest':>8} {'CPU, ours/htsim':>18} {'least':>6}"
    print(title + (theirs_title if binary else ""))
    for hosts in sizes:
        size = round(MEGABYTES.get(hosts, 1.0) * 10**6)
        packets = packets_of(hosts, size)
        mine: dict[str, list[Run]] = {name: [] for name in VARIANTS}
        other: list[Run] = []
        for seed in range(1, pairs + 1):
            for name, options in VARIANTS.items():
                mine[name].append(ours_alone(hosts, GIGABITS, size, seed, options))
            if binary:
                with tempfile.TemporaryDirectory() as folder:
                    other.append(theirs(binary, Path(folder), hosts, GIGABITS, size, seed))
        for name, runs in mine.items():
            us = [run.cpu_s / packets * 1e6 for run in runs]
            events = statistics.median(run.events for run in runs)
            row = f"{hosts:6} {name:10} {spread(us):>18} {events:7.2f} "
            row += f"{1e3 * events / statistics.median(us):10.0f} "
            slowest = statistics.median(run.slowest_us for run in runs)
            row += f"{statistics.median(run.memory_mb for run in runs):5.0f} {slowest:12.1f}"
            if other:
                htsim_us = [run.cpu_s / packets * 1e6 for run in other]
                ratios = [a / b for a, b in zip(us, htsim_us, strict=True)]
                theirs_us = statistics.median(run.slowest_us for run in other)
                row += f" {spread(htsim_us):>18} {statistics.median(run.memory_mb for run in other):5.0f} "
                row += f"{theirs_us:8.1f} {spread(ratios):>18} {min(us) / min(htsim_us):6.2f}"
                if abs(slowest / theirs_us - 1) > SLOWEST_WITHIN:
                    agree = False
                    row += f"  slowest flows differ by more than {SLOWEST_WITHIN:.0%}"
            print(row, flush=True)
    return agree


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", action="store_true", help="all points of each form")
    parser.add_argument("--htsim", type=Path, help="path to htsim_uec, for the side-by-side table")
    parser.add_argument("--speed", action="store_true", help="our half of that table")
    parser.add_argument("--only-speed", action="store_true", help="the table of speed without the forms")
    parser.add_argument("--hosts", default="64,256,1024")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    try:
        sizes = [int(word) for word in args.hosts.split(",")]
        for hosts in sizes:
            radix_of(hosts)
        if args.htsim and not args.htsim.is_file():
            raise InputError(f"HTSIM={args.htsim}: no such file: give the path of htsim_uec")
        print(f"{machine()}; {compiled.describe()}", flush=True)
        holds = args.only_speed or forms(all_points=args.points)
        if args.htsim or args.speed or args.only_speed:
            binary = args.htsim.resolve() if args.htsim else None
            holds &= permutations(binary, sizes, args.pairs)
    except (InputError, ValueError) as error:
        print(f"validation: {error}", file=sys.stderr)
        return 2
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
