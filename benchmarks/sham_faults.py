"""Measure whether the making of a fault disturbs the traffic, by faults that have almost no effect.

    python benchmarks/sham_faults.py [--trials 150] [DIR ...]

A sham fault is written to the switch like a real fault, but it loses only one frame in a million. Without
DIR, the benchmark makes a link-kill with sham faults, which needs root. Each DIR is the result directory of
such a run. The benchmark looks at the moments at which faults and their repairs are written.

It prints the mean number of packets that the sender sends in intervals of 50 us around these moments, and in
the 100 us before and after them. It divides this number by the usual number: the mean at 20 times as many
random moments of the same stream, at least 5 ms away from any write. z is the difference of both means in
standard errors. The benchmark fails if |z| is above 5, which happens by chance once in two million.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.results import machine  # noqa: E402
from benchmarks.kit.run_files import read_run  # noqa: E402

Ints = npt.NDArray[np.int64]

AWAY_NS = 5_000_000
CONTROLS = 20
BIN_NS = 50_000
MOST_Z = 5.0
INTERVALS = (
    *((at, at + BIN_NS) for at in range(-200_000, 200_000, BIN_NS)),
    (-100_000, 0),
    (0, 100_000),
)
"""The start and the end of each interval, in ns after the moment."""
SHAM = ("kind=loss", "ratio=0.000001", "hold=15 ms", "settle=10 ms")


def counts(sent_ns: Ints, moments_ns: Ints, start_ns: int, end_ns: int) -> Ints:
    """Return how many packets were sent in the interval around each moment. ``sent_ns`` is in order."""
    edges = np.searchsorted(sent_ns, np.stack([moments_ns + start_ns, moments_ns + end_ns]))
    difference: Ints = edges[1] - edges[0]
    return difference


def control_moments(sent_ns: Ints, moments_ns: Ints, rng: np.random.Generator) -> Ints:
    """Return random moments between the first and the last write, each at least AWAY_NS from any write."""
    wanted = CONTROLS * len(moments_ns)
    drawn = rng.integers(moments_ns.min(), moments_ns.max(), 4 * wanted)
    nearest = np.searchsorted(moments_ns, drawn)
    gaps = [np.abs(drawn - moments_ns[np.clip(nearest + by, 0, len(moments_ns) - 1)]) for by in (-1, 0)]
    away: Ints = drawn[np.minimum(*gaps) > AWAY_NS][:wanted]
    return away


def judge(directory: Path) -> bool:
    """Print the table of a run; return True if the rate is usual in all intervals."""
    run = read_run(directory)
    sent_ns = np.unique(run.trace.sent.t_ns)
    stamps = [(f.t_before_ns + f.t_after_ns) // 2 for f in run.faults]
    stamps += [
        (f.restore_before_ns + f.restore_after_ns) // 2
        for f in run.faults
        if f.restore_before_ns is not None and f.restore_after_ns is not None
    ]
    moments_ns = np.unique(np.array(stamps, np.int64))
    controls_ns = control_moments(sent_ns, moments_ns, np.random.default_rng(1))
    write_us = np.median([(f.t_after_ns - f.t_before_ns) / 1e3 for f in run.faults])
    print(f"{directory}: {len(moments_ns)} writes of {write_us:.1f} us (median), {len(controls_ns)} controls")
    print(f"{'us around the write':>22} {'packets':>8} {'usual':>8} {'ratio':>7} {'z':>6}")
    fine = True
    for start_ns, end_ns in INTERVALS:
        here = counts(sent_ns, moments_ns, start_ns, end_ns)
        usual = counts(sent_ns, controls_ns, start_ns, end_ns)
        error = usual.std() / np.sqrt(len(here))
        z = (here.mean() - usual.mean()) / error
        fine &= abs(z) <= MOST_Z
        name = f"{start_ns // 1000} to {end_ns // 1000}"
        print(f"{name:>22} {here.mean():8.2f} {usual.mean():8.2f} {here.mean() / usual.mean():7.2f} {z:6.1f}")
    print("the sender's rate is that of any moment" if fine else "MISSED: the write disturbs the sender")
    return fine


def make_run(trials: int, directory: Path) -> None:
    """Run link-kill with sham faults into a new directory."""
    command = [sys.executable, "-m", "mrclab", "run", "link-kill", "--target", "ebpf"]
    command += ["--trials", str(trials)]
    command += ["--out", str(directory)]
    for setting in SHAM:
        command += ["--set", f"faults.0.{setting}"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=ROOT)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=150, help="sham faults of the run that is made (150)")
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIR")
    options = parser.parse_args(words)
    print(f"sham faults, {machine()}")
    with tempfile.TemporaryDirectory() as scratch:
        directories = options.directories or [Path(scratch) / "run"]
        if not options.directories:
            make_run(options.trials, directories[0])
        fine = [judge(directory) for directory in directories]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
