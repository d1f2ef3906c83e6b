"""Check that mrclab calls no run valid whose results are wrong because of a disturbance.

    python benchmarks/disturbances.py [--runs 5] [--trials 6] [--topology lab] [--only NAME ...] [--json]

Needs root and the ebpf target. Each disturbance begins at a random moment of the measurement of a `link-kill`
run. An undisturbed run precedes each disturbed run. The disturbances:

* queue: a port of the sender's NIC gets another queue (netem with 2 ms of delay if the kernel has it, else a
  token bucket of 8 Mbit/s); queue for a moment: the same, for half a second
* link: a port in the fabric gets another queue in the same way
* route: another P4Runtime client changes a route of the first T0 to another port
* wall clock: the time of day that the run's process reads jumps forward by 3 s
* disk: the disk of the results is filled by another program
* capture cut: the last third of the sender's capture is removed before the capture is read
* capture damaged: every 50th byte in the second half of the sender's capture is changed before it is read
* two runs: another link-kill runs in another testbed
* hog: a program of real-time priority 50 has all CPUs for 30 ms of each 200 ms

For each disturbance, the median recovery since the first loss is taken over all trials of its valid runs. It
may differ by at most 25 % from the median of the undisturbed runs. The exit code is 1 if it differs more, and
3 if the machine lacks something.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.results import machine  # noqa: E402
from mrclab.linux.system import is_root  # noqa: E402
from mrclab.testbed.names import PREFIX_VARIABLE  # noqa: E402

OFF = 0.25
CANNOT = 3
PREFIX = "dist"
NETEM = ("netem", "delay", "2ms")
BUCKET = ("tbf", "rate", "8mbit", "burst", "4000", "latency", "20ms")
BEGIN_S = (1.0, 2.5)
"""Limits of the random wait after the start of the captures, in s. The wait ends during the trials."""
PATIENCE_S = 120
DISK_BYTES = 80_000_000
HOG = "import time\ne = time.monotonic() + 0.03\nwhile time.monotonic() < e: pass"
WALL_CLOCK = """
import sys, time
from mrclab.__main__ import main
real, at = (time.time, time.time_ns), time.monotonic() + float(sys.argv.pop(1))
def ahead(): return 3 * (time.monotonic() > at)
time.time, time.time_ns = lambda: real[0]() + ahead(), lambda: real[1]() + ahead() * 10**9
sys.exit(main())
"""


@dataclass(frozen=True)
class Run:
    """A run in progress: its process, the directory of its results, and a random generator."""

    process: subprocess.Popen[bytes]
    out: Path
    drawn: random.Random
    topology: str

    @property
    def goes_on(self) -> bool:
        """Return True until the run ends."""
        return self.process.poll() is None

    def wait(self, happened: Callable[[], bool]) -> bool:
        """Wait until ``happened`` returns True. Return False if the run ends first."""
        while self.goes_on:
            if happened():
                return True
            time.sleep(0.002)
        return False

    def wait_until_measured(self) -> bool:
        """Wait for a random moment of the measurement."""
        if not self.wait(lambda: any(self.out.glob("mrc-0/captures"))):
            return False
        time.sleep(self.drawn.uniform(*BEGIN_S))
        return self.goes_on


Disturb = Callable[[Run], AbstractContextManager[None]]
"""A context manager that disturbs a run from its measurement on, until the ``with`` ends."""


def shell(*commands: str) -> None:
    """Run shell commands. Ignore failed commands: they fail, for example, after the end of the run."""
    for command in commands:
        subprocess.run(["sh", "-c", command], check=False, capture_output=True)


def has_netem() -> bool:
    """Return True if the kernel can delay a queue's packets."""
    command = ["unshare", "-n", "tc", "qdisc", "add", "dev", "lo", "root", *NETEM]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def queue(namespace: str, port: str, lasts_s: float | None = None) -> Disturb:
    """Return a disturbance by another queue at a port. By default, the queue stays until the run ends."""

    @contextlib.contextmanager
    def disturb(run: Run) -> Iterator[None]:
        if run.wait_until_measured():
            tc = f"ip netns exec {namespace} tc qdisc"
            was = "tbf rate 1gbit burst 12375 latency 2ms"  # the queue that the run made at a host
            shell(f"{tc} replace dev {port} root handle 9: {' '.join(NETEM if has_netem() else BUCKET)}")
            if lasts_s is not None:
                time.sleep(lasts_s)
                shell(f"{tc} replace dev {port} root handle 1: {was}")
        yield

    return disturb


@contextlib.contextmanager
def route(run: Run) -> Iterator[None]:
    """Write a wrong route by P4Runtime, as a client with another role than the controller's."""
    if run.wait_until_measured():
        listens = f"ip netns exec {PREFIX} ss -Hlnt | awk '{{print $4}}' | head -1"
        address = subprocess.run(["sh", "-c", listens], capture_output=True, text=True, check=False).stdout
        words = [sys.executable, str(ROOT / "benchmarks/kit/wrong_route.py"), address.strip()]
        subprocess.run(["ip", "netns", "exec", PREFIX, *words], check=False)
    yield


@contextlib.contextmanager
def nothing(run: Run) -> Iterator[None]:
    """Disturb nothing."""
    yield


@contextlib.contextmanager
def filled(run: Run) -> Iterator[None]:
    """Fill the disk of the results."""
    if run.wait_until_measured():
        with contextlib.suppress(OSError), (run.out.parent / "taken").open("wb") as taken:
            while True:
                taken.write(bytes(1 << 16))
                taken.flush()
    yield


def damaging(change: Callable[[bytearray], bytes]) -> Disturb:
    """Return a disturbance that changes the sender's capture as soon as it is written."""

    @contextlib.contextmanager
    def disturb(run: Run) -> Iterator[None]:
        sizes = [0]

        def written() -> bool:
            found = list(run.out.glob("mrc-0/captures/h0.pcap"))
            later = list(run.out.glob("mrc-0/recording.json")) + list(
                run.out.glob("mrc-0/captures/h[1-9]*.pcap")
            )
            sizes.append(found[0].stat().st_size if found else 0)
            return sizes[-1] > 0 and bool(later)

        if run.wait(written):
            file = run.out / "mrc-0/captures/h0.pcap"
            file.write_bytes(change(bytearray(file.read_bytes())))
        yield

    return disturb


def cut(data: bytearray) -> bytes:
    """Return a capture without its last third."""
    return bytes(data[: len(data) * 2 // 3])


def damaged(data: bytearray) -> bytes:
    """Return a capture with every 50th byte of its second half changed."""
    for at in range(len(data) // 2, len(data), 50):
        data[at] ^= 0x55
    return bytes(data)


@contextlib.contextmanager
def another(run: Run) -> Iterator[None]:
    """Run a second experiment of the same kind in a testbed with another prefix, until the first run ends."""
    with tempfile.TemporaryDirectory() as place:
        second = start(Path(place) / "out", run.topology, trials=20, seed=99, prefix=f"{PREFIX}b")
        try:
            yield
        finally:
            second.terminate()
            second.wait()


@contextlib.contextmanager
def hog(run: Run) -> Iterator[None]:
    """Let programs of real-time priority take all CPUs, 15 times for 30 ms."""
    if run.wait_until_measured():
        for _ in range(15):
            hogs = [
                subprocess.Popen(["taskset", "-c", str(cpu), "chrt", "-f", "50", sys.executable, "-c", HOG])
                for cpu in sorted(os.sched_getaffinity(0))
            ]
            for each in hogs:
                each.wait()
            time.sleep(0.15)
    yield


DISTURBANCES: dict[str, Disturb] = {
    "queue": queue(f"{PREFIX}-h0", "h0-eth1"),
    "queue for a moment": queue(f"{PREFIX}-h0", "h0-eth1", 0.5),
    "link": queue(PREFIX, "p0-t0-0-eth1"),
    "route": route,
    "wall clock": nothing,
    "disk": filled,
    "capture cut": damaging(cut),
    "capture damaged": damaging(damaged),
    "two runs": another,
    "hog": hog,
}


def start(
    out: Path, topology: str, *, trials: int, seed: int, prefix: str, step_s: float | None = None
) -> subprocess.Popen[bytes]:
    """Start a run of link-kill. With ``step_s``, its time of day jumps by 3 s after this many seconds."""
    how = ["-m", "mrclab"] if step_s is None else ["-c", WALL_CLOCK, str(step_s)]
    words = ["run", "link-kill", "--target", "ebpf", "--topology", topology, "--trials", str(trials)]
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *how, *words, "--seed", str(seed), "--out", str(out)],
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, PREFIX_VARIABLE: prefix},
        )


@dataclass(frozen=True)
class Found:
    """The recoveries of a run since the first loss, in us. ``valid`` is None if the run has no result."""

    valid: bool | None
    recovered_us: tuple[float, ...]
    why: str


def one(name: str | None, topology: str, trials: int, seed: int) -> Found:
    """Make a run with this disturbance, or undisturbed if ``name`` is None."""
    drawn = random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory(prefix="mrclab-") as scratch:
        place = Path(scratch) / "place"
        place.mkdir()
        if name == "disk":
            shell(f"mount -t tmpfs -o size={DISK_BYTES} none {place}")
        try:
            step_s = drawn.uniform(4, 6) if name == "wall clock" else None
            process = start(place / "out", topology, trials=trials, seed=seed, prefix=PREFIX, step_s=step_s)
            run = Run(process, place / "out", drawn, topology)
            with DISTURBANCES[name](run) if name else nothing(run):
                process.wait(PATIENCE_S)
            return read(place / "out")
        finally:
            if run.goes_on:
                process.terminate()
                process.wait()
            if name == "disk":
                shell(f"umount {place}")


def read(out: Path) -> Found:
    """Read the results of a run."""
    said = out.with_suffix(".log").read_text(errors="replace").strip().splitlines()
    if not (out / "result.json").exists():
        return Found(None, (), said[-1] if said else "nothing was said")
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    times = tuple(t["recovered_since_loss_us"] for t in result["trials"])
    return Found(result["valid"], times, "; ".join(result["validity"]["reasons"]))


def main() -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="of each disturbance (5)")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1, help="of the first run of each (1)")
    parser.add_argument("--topology", default="lab")
    parser.add_argument("--only", nargs="*", help="the disturbances to try, by name")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not is_root() or not shutil.which("chrt"):
        print("needs root, and chrt", file=sys.stderr)
        return CANNOT
    found: dict[str, list[Found]] = {"none": []}
    for seed in range(options.seed, options.seed + options.runs):
        for name in DISTURBANCES if options.only is None else options.only:
            for what in (None, name):
                run = one(what, options.topology, options.trials, seed)
                found.setdefault(what or "none", []).append(run)
                times = [us for us in run.recovered_us if us is not None]
                middle = f"{statistics.median(times):.0f} us" if times else "no times"
                print(
                    f"{what or 'none'} {seed}: valid {run.valid}, {middle}; {run.why[:200]}", file=sys.stderr
                )
    return report(found, as_json=options.json)


def report(found: dict[str, list[Found]], *, as_json: bool) -> int:
    """Print the table; return 1 if the criterion is missed, else 0."""
    usual = statistics.median(
        us for run in found["none"] if run.valid for us in run.recovered_us if us is not None
    )
    rows, holds = {}, True
    for name, runs in found.items():
        valid = [run for run in runs if run.valid]
        every = [us for run in valid for us in run.recovered_us]
        times = [us for us in every if us is not None]
        off = statistics.median(times) / usual - 1 if times else None
        holds &= name == "none" or off is None or abs(off) <= OFF
        rows[name] = {
            "runs": len(runs),
            "valid": len(valid),
            "no_result": sum(run.valid is None for run in runs),
            "median_us": statistics.median(times) if times else None,
            "off": off,
            "trials": len(every),
            "without_time": len(every) - len(times),
            "recovered_us": times,
            "why": sorted({run.why for run in runs if not run.valid}),
        }
    if as_json:
        print(json.dumps({"usual_us": usual, "rows": rows, "holds": holds}, indent=2))
        return 0 if holds else 1
    print(f"disturbances, {machine()}; undisturbed {usual:.0f} us in the median of valid runs")
    print(f"{'':22}{'runs':>6}{'no result':>11}{'valid':>7}{'trials':>8}{'median us':>11}{'off':>8}")
    for name, row in rows.items():
        middle = "-" if row["median_us"] is None else f"{row['median_us']:,.0f}"
        off_text = "-" if row["off"] is None else f"{row['off']:+.0%}"
        counts = f"{row['runs']:>6}{row['no_result']:>11}{row['valid']:>7}{row['trials']:>8}"
        print(f"{name:22}{counts}{middle:>11}{off_text:>8}")
    print("no valid run is off" if holds else f"MISSED: valid runs are more than {OFF:.0%} off")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
