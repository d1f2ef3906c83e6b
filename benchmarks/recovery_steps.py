"""The times of the steps of a recovery, from the lost packet to the arrival of its copy.

    python benchmarks/recovery_steps.py [--trials 20] [--set KEY=VALUE ...] [DIR ...]

Each DIR is the result directory of a `mrclab run link-kill`. Without DIR, the benchmark makes a run, which
needs root. Prints one row for each step (`benchmarks.kit.anatomy`). A row has the median and the 10th and
90th percentile of the step's duration, and the median time from the loss to the end of the step. Times are in
microseconds and in round trips. A round trip is the median RTT of all trials.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.anatomy import MEANINGS, NAMES, Recovery, dissect  # noqa: E402
from benchmarks.kit.run_files import read_run  # noqa: E402


def recoveries(directory: Path) -> tuple[list[Recovery], float]:
    """Return the recoveries of a run, and its median round trip in microseconds."""
    run = read_run(directory)
    found = [
        dissect(run.trace, run.sender, run.receiver, run.log, fault, span)
        for fault, span in zip(run.faults, run.spans, strict=True)
    ]
    rtt_us = float(np.median([t["rtt_us"] for t in run.result["trials"] if t["rtt_us"]]))
    return [one for one in found if one is not None], rtt_us


def table(found: Sequence[Recovery], rtt_us: float) -> str:
    """Return the table of some recoveries as text."""
    steps = np.array([r.moments.steps() for r in found]) / 1e3
    ends = np.cumsum(steps, axis=1)
    lines = [
        f"{len(found)} recoveries, round trip {rtt_us:.1f} us, "
        f"{sum(r.by_probe for r in found)} decided by a probe's answer",
        f"{'us of the step: median':>24} {'p10':>7} {'p90':>7} {'since the loss':>15} {'RTT':>5}",
    ]
    for at, name in enumerate(NAMES):
        low, middle, high = np.percentile(steps[:, at], (10, 50, 90))
        end = float(np.median(ends[:, at]))
        lines.append(
            f"{middle:24.1f} {low:7.1f} {high:7.1f} {end:15.1f} {end / rtt_us:5.1f}  {MEANINGS[name]}"
        )
    return "\n".join(lines)


def make_run(trials: int, settings: Sequence[str], directory: Path) -> None:
    """Run link-kill into a new directory."""
    command = [sys.executable, "-m", "mrclab", "run", "link-kill", "--target", "ebpf"]
    command += ["--trials", str(trials)]
    command += ["--out", str(directory)]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=20, help="of the run that is made (20)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of that run")
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directories = options.directories or [Path(scratch) / "run"]
        if not options.directories:
            make_run(options.trials, options.set, directories[0])
        for directory in directories:
            found, rtt_us = recoveries(directory)
            print(f"{directory}\n{table(found, rtt_us)}\n", flush=True)


if __name__ == "__main__":
    main()
