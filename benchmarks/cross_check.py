"""Compare the simulator with the emulation: run the same scenarios on both, and check bounds.

    python benchmarks/cross_check.py [-n 3] [--trials 20] [--only NAME ...] [--wires] [--out DIR]

Needs root for the emulation (`--target ebpf`). `mrclab run` runs each case on both targets, -n repetitions
with the same seeds. `benchmarks/kit/crossing.py` has the scenarios, and reads quantities from the results.

* Host time: the mean time from the arrival of a data packet at a host to the SACK that answers it, measured
  in the host's capture of each emulated run. Host time depends on how many hosts share CPUs and on their
  other work. The simulator uses the same host time for the same case (`virtual.processing`).
* Links are token buckets on live targets. With `virtual.links: buckets` the simulator models such buckets.
  --wires simulates ideal links instead, to show the difference.

The bounds follow from theory and were set before the first run:

* recovered since first loss: the medians may differ by one RTT, the host time, and chance. Chance comes from
  the SACK that shows a loss, because only every second packet causes a SACK. This wait is uniform over two
  packet intervals, so a median of n trials has a standard error of interval / sqrt(n). The difference of two
  medians has sqrt(2) times this error. Four times the error of the difference is allowed.
* goodput with k of n links dead: 2 %. It is a ratio of link rates, and each target keeps a rate within 1 %.
* share of marked packets, and the mean window: 20 %. Marks depend on the queue's depth, which depends on the
  window.
* trims per second of an incast of three with a fixed window: 5 %. It is the rate of three incoming links
  minus the rate of one outgoing link. Each rate is exact to 1 % or 2 %.

Ends with exit code 1 if a bound does not hold, or a run was not valid.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.agreement import Bound, Row, table  # noqa: E402
from benchmarks.kit.crossing import (  # noqa: E402
    FAST_BPS,
    PACE_BPS,
    PAYLOAD_BYTES,
    SLOW_BPS,
    TRANSPORT,
    Case,
    Steady,
    Target,
    answers_us,
    cut,
    dead_links,
    incast,
    packets_of,
    shared_link,
    steady,
)
from benchmarks.kit.results import machine  # noqa: E402
from mrclab.experiments.measure.repetition import REPETITION_FILE, Repetition, load_repetition  # noqa: E402
from mrclab.linux.life import signals  # noqa: E402

GOODPUT = Bound(share=0.02)
MARKS = Bound(share=0.2)
WINDOW = Bound(share=0.2)
TRIMS = Bound(share=0.05)
STANDARD_ERRORS = 4
RATES = {SLOW_BPS: "25 Mbit/s", FAST_BPS: "1 Gbit/s"}


def recovery_bound(rtt_us: float, host_us: float, interval_us: float, n: int) -> Bound:
    """Return the largest allowed difference between two medians of n recoveries each, in us."""
    chance = STANDARD_ERRORS * math.sqrt(2) * interval_us / math.sqrt(n)
    return Bound(distance=rtt_us + host_us + chance)


def recovery_rows(
    name: str,
    recovered_us: tuple[Sequence[float], Sequence[float]],
    rtt_us: tuple[float, float],
    host_us: float,
    interval_us: float,
) -> list[Row]:
    """Return the rows of a case with cuts: recoveries since the first loss and RTTs, for both targets."""
    middle = [statistics.median(values) if values else None for values in recovered_us]
    bound = recovery_bound(rtt_us[0], host_us, interval_us, max(1, min(map(len, recovered_us))))
    assert bound.distance is not None
    in_rtts = [m / rtt if m is not None else None for m, rtt in zip(middle, rtt_us, strict=True)]
    return [
        Row(f"{name}: recovered since first loss", "us", *middle, bound),
        Row(f"{name}: the same", "RTTs", *in_rtts),
        Row(f"{name}: RTT under the stream", "us", *rtt_us),
    ]


def steady_rows(
    name: str, found: tuple[Sequence[Steady], Sequence[Steady]], *, marks: bool, trims: bool
) -> list[Row]:
    """Return the rows of a case with steady flows: means over the repetitions of both targets."""

    def mean(read: Callable[[Steady], float | None]) -> tuple[float | None, float | None]:
        means = []
        for repetitions in found:
            values = [value for s in repetitions if (value := read(s)) is not None]
            means.append(statistics.fmean(values) if values else None)
        return means[0], means[1]

    rows = [Row(f"{name}: goodput", "Mbit/s", *mean(lambda s: s.goodput_mbps), GOODPUT)]
    if marks:
        rows += [
            Row(f"{name}: marked packets", "%", *mean(lambda s: 100 * s.marked), MARKS),
            Row(f"{name}: NSCC's window", "bytes", *mean(lambda s: s.window_bytes), WINDOW),
        ]
    bound = TRIMS if trims else Bound()
    return [*rows, Row(f"{name}: trims", "1/s", *mean(lambda s: s.trims_per_s), bound)]


@dataclass(frozen=True)
class Runs:
    """The repetitions of a case on one target, with their directories."""

    found: Sequence[tuple[Path, Repetition]]

    def problems(self) -> list[str]:
        """Return the reasons why results of these runs are not valid."""
        reasons = [reason for _, r in self.found for reason in r.validity.reasons]
        return [*reasons, *(p for _, r in self.found for p in (r.problem, r.failure) if p)]

    def steady(self) -> list[Steady]:
        """Return the properties of the flows of each repetition."""
        return [steady(directory, repetition) for directory, repetition in self.found]

    def answers_us(self) -> float:
        """Return the mean time that a host takes to answer a packet, over all hosts and repetitions."""
        captures = [(d, file.stem) for d, _ in self.found for file in sorted((d / "captures").glob("*.pcap"))]
        return statistics.fmean(t for d, host in captures for t in answers_us(*packets_of(d, host)))

    def recovered_us(self) -> list[float]:
        """Return the times of recovery since the first loss, without trials that lost no packet."""
        values = (t["recovered_since_loss_us"] for _, r in self.found for t in r.trials)
        return [float(value) for value in values if value is not None]

    def rtt_us(self) -> float:
        """Return the median RTT before the faults."""
        return statistics.median(t["rtt_us"] for _, r in self.found for t in r.trials if t["rtt_us"])


class Bench:
    """Runs cases and gathers rows."""

    def __init__(self, out: Path, repetitions: int, trials: int, links: str) -> None:
        self._out = out
        self._repetitions = repetitions
        self._trials = trials
        self._links = links
        self.rows: list[Row] = []
        self.problems: list[str] = []

    def run(self, case: Case, target: Target, processing_ns: int = 0) -> Runs:
        """Run a case on a target, unless the directory already has its results."""
        directory = self._out / f"{case.name}-{case.rate_bps // 10**6}-{target}"
        folders = [directory / f"{TRANSPORT}-{number}" for number in range(self._repetitions)]
        if not all((folder / REPETITION_FILE).exists() for folder in folders):
            shutil.rmtree(directory, ignore_errors=True)
            self._carry_out(case.on(target, processing_ns, self._links, self._repetitions), directory)
        runs = Runs([(folder, load_repetition(folder)) for folder in folders])
        self.problems += [f"{case.name} on {target}: {problem}" for problem in runs.problems()]
        return runs

    def _carry_out(self, scenario: Mapping[str, Any], directory: Path) -> None:
        file, log = (directory.with_name(f"{directory.name}.{kind}") for kind in ("yaml", "log"))
        file.write_text(json.dumps(scenario, indent=1) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "mrclab", "run", str(file), "--out", str(directory)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            # A signal that ends this program ends the run first, so that the run takes its fabric down.
            with signals.passed_on(process.terminate):
                code = process.wait()
        if code not in (0, 1):
            raise SystemExit(f"{' '.join(command)}: exit code {code}\n{log.read_text()[-2000:]}")

    def both(self, case: Case) -> tuple[Runs, Runs, float]:
        """Run a case on both targets. Return the runs of both, and the host time in us."""
        live = self.run(case, "ebpf")
        host_us = live.answers_us()
        print(f"{case.name}, {RATES[case.rate_bps]}: hosts answer after {host_us:.0f} us", flush=True)
        return live, self.run(case, "sim", round(1000 * host_us)), host_us

    def cut(self, rate_bps: int) -> list[Row]:
        """Cut links, and compare the recovery times of both targets."""
        live, virtual, host_us = self.both(cut(rate_bps, self._trials))
        interval_us = PAYLOAD_BYTES * 8 * 1e6 / PACE_BPS[rate_bps]
        recovered = (live.recovered_us(), virtual.recovered_us())
        rtts = (live.rtt_us(), virtual.rtt_us())
        return recovery_rows(f"cut, {RATES[rate_bps]}", recovered, rtts, host_us, interval_us)

    def steady(self, case: Case, name: str, *, marks: bool = False, trims: bool = False) -> list[Row]:
        """Run steady flows, and compare their properties on both targets."""
        live, virtual, _ = self.both(case)
        return steady_rows(name, (live.steady(), virtual.steady()), marks=marks, trims=trims)


CASES: dict[str, Callable[[Bench], list[Row]]] = {
    "cut-slow": lambda bench: bench.cut(SLOW_BPS),
    "cut-fast": lambda bench: bench.cut(FAST_BPS),
    "dead-0": lambda bench: bench.steady(dead_links(0), "0 of 4 links dead"),
    "dead-1": lambda bench: bench.steady(dead_links(1), "1 of 4 links dead"),
    "dead-2": lambda bench: bench.steady(dead_links(2), "2 of 4 links dead"),
    "shared": lambda bench: bench.steady(shared_link(), "two flows, one link", marks=True),
    "incast": lambda bench: bench.steady(incast(), "incast of three", trims=True),
}


@contextlib.contextmanager
def directory_for(given: str | None) -> Iterator[Path]:
    """Yield the directory for results: the given directory, or a new one that is removed at the end."""
    if given is not None:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given).resolve()
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def main() -> int:
    parser = argparse.ArgumentParser(description="The emulation and the simulator side by side.")
    parser.add_argument("-n", type=int, default=3, help="repetitions of each case")
    parser.add_argument("--trials", type=int, default=20, help="cuts in each repetition")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--wires", action="store_true", help="simulate wires, not token buckets")
    parser.add_argument(
        "--out", metavar="DIR", help="keep all results there; what is there is not made again"
    )
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("cross_check: needs root", file=sys.stderr)
        return 3
    print(f"{machine()}; {options.n} repetitions of each case", flush=True)
    with directory_for(options.out) as out:
        bench = Bench(out, options.n, options.trials, "wires" if options.wires else "buckets")
        for name in options.only:
            rows = CASES[name](bench)
            bench.rows += rows
            print(table(rows, "emulation", "simulation"), flush=True)
    for problem in bench.problems:
        print(f"not valid: {problem}")
    broken = [row.what for row in bench.rows if row.holds is False]
    print(f"bounds that do not hold: {', '.join(broken)}" if broken else "all bounds hold")
    return 1 if broken or bench.problems else 0


if __name__ == "__main__":
    sys.exit(main())
