"""End commands at a random moment, and list leftovers (namespaces, links, BPF programs, files ...).

``python -m tests.support.endings HOW FIRST COUNT [REPORT]`` ends COUNT commands and prints a line for each.
HOW is ``signals`` (send SIGINT, SIGTERM or SIGHUP to the command, one to three times), ``ends`` (send
SIGINT, SIGTERM or SIGKILL to the command once) or ``kills`` (kill -9 one of the command's processes). The
commands have the numbers FIRST, FIRST + 1, and so on. The number of a command is the seed for the moment of
its end. REPORT is a file for the results as JSON lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mrclab.testbed.names import PREFIX_VARIABLE, Names
from tests.support.kernel_watch import bpf_programs

COMPARISON = """\
name: small
topology: {name: slow, planes: 2, t0: 2, t1: 2, hosts: 4,
           links: {host: {rate: 100 Mbit/s}, fabric: {rate: 100 Mbit/s}}}
transports: [mrc, rocev2]
workload: {kind: all-reduce, sizes: [64 KiB], iterations: 200}
faults:
  - {kind: blackhole, where: random, at: 20 ms, duration: 100 ms}
repetitions: 20
warmup: 100 ms
"""
SWEEP = """\
name: short
scenario: link-kill
target: sim
topology: tiny
grid: {workload.message_bytes: [4096, 8192, 16384, 65536]}
seeds: 3
metrics: [mrc.recovered_us]
"""
COMMANDS = ("run", "up", "soak", "comparison", "live", "sim", "sweep", "down")
SIGNALS = {
    "signals": (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    "ends": (signal.SIGINT, signal.SIGTERM, signal.SIGKILL),
}
LATEST_S = 15.0
"""A command is ended at a random moment, at most this many seconds after its start."""
DOWN_S = 2.0
HANG_S = 120.0
NEEDED_S = 12.0
"""If a command runs for this long after one of its processes was killed, it is ended by SIGTERM."""
SETTLE_S = 30.0
"""The time after a command's end, in s, within which everything that it left must disappear."""


@dataclass(frozen=True)
class Ending:
    """The result of a command: its leftovers (``left``), and what `mrclab clean` left (``for_good``)."""

    number: int
    command: str
    how: str
    after_s: float
    took_s: float
    code: int | None
    said: str
    lines: int
    """The number of lines that the command wrote to its standard error."""
    traceback: bool
    left: tuple[str, ...]
    cleaned: str
    for_good: tuple[str, ...]

    @property
    def good(self) -> bool:
        """True if the command ended with at most one line, and `mrclab clean` removed all its leftovers."""
        one_line = self.lines <= 1 or self.how in ("SIGHUP", "SIGKILL") or self.how.startswith("kill")
        return self.code is not None and one_line and not self.traceback and not self.for_good


def processes_of(environment: Mapping[str, str]) -> dict[int, str]:
    """Return the command lines of the processes that have this testbed's prefix, by pid."""
    ours = f"{PREFIX_VARIABLE}={environment[PREFIX_VARIABLE]}".encode()
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if ours in (directory / "environ").read_bytes().split(b"\0"):
                words = (directory / "cmdline").read_bytes().split(b"\0")
                found[int(directory.name)] = b" ".join(words).decode(errors="replace")[:100]
        except OSError:
            continue
    return found


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def machine(environment: Mapping[str, str]) -> set[str]:
    """Return everything on the machine that a command could leave behind, one line for each thing."""
    names = Names.from_environment(environment)
    found = {f"process {pid} {words}" for pid, words in processes_of(environment).items()}
    found |= {f"netns {line}" for line in _lines("ip", "netns") if line.startswith(names.prefix)}
    found |= {f"link {line.split(':')[1]}" for line in _lines("ip", "-o", "link")}
    found |= {f"qdisc {line}" for line in _lines("tc", "qdisc")}
    found |= {f"bpf {number}" for number in bpf_programs()}
    for folder, folders, files in os.walk(environment["TMPDIR"]):  # os.walk ignores vanished files
        found |= {f"file {folder}/{name}" for name in (*folders, *files)}
    found |= {f"file {path}" for path in names.state_dir.parent.glob(f"{names.prefix}*")}
    found |= {f"pin {path}" for path in Path("/sys/fs/bpf").rglob("*")}
    return found


def _command(kind: str, directory: Path) -> list[str]:
    start = [sys.executable, "-m", "mrclab"]
    on = ["--target", "ebpf", "--out", str(directory / "out")]
    if kind in ("up", "live"):
        shown = ["--port", "0"] if kind == "live" else []
        return [*start, kind, "--topology", "tiny", "--target", "ebpf", *shown]
    if kind == "down":
        return [*start, "down"]
    if kind == "sim":
        return [
            *start,
            "run",
            "link-kill",
            "--target",
            "sim",
            "--trials",
            "100",
            "--out",
            str(directory / "out"),
        ]
    if kind == "sweep":
        (directory / "short.yaml").write_text(SWEEP)
        return [*start, "sweep", str(directory / "short.yaml"), "--out", str(directory / "out")]
    if kind == "run":
        slowly = ["--set", "workload.rate=20 Mbit/s"]  # a low rate, so that agents do not use all CPUs
        return [*start, "run", "link-kill", "--topology", "tiny", "--trials", "1000", *slowly, *on]
    if kind == "soak":
        return [*start, "soak", "--topology", "tiny", "--duration", "10 min", *on]
    (directory / "small.yaml").write_text(COMPARISON)
    return [*start, "run", str(directory / "small.yaml"), *on]


def _mrclab(environment: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mrclab", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return (done.stdout + done.stderr).strip()


def _wait_gone(before: set[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    deadline = time.monotonic() + SETTLE_S
    while (left := machine(environment) - before) and time.monotonic() < deadline:
        signal.sigtimedwait([], 0.2)
    return tuple(sorted(left))


def end_one(how: str, number: int) -> Ending:
    """Start a command, end it at a random moment, and return its leftovers."""
    drawn = random.Random(f"{how} {number}")
    kind = COMMANDS[number % len(COMMANDS)]
    after_s = drawn.uniform(0.0, LATEST_S if kind != "down" else DOWN_S)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "tmp").mkdir()
        environment = {
            **os.environ,
            PREFIX_VARIABLE: f"e{os.urandom(3).hex()}",
            "TMPDIR": str(directory / "tmp"),
        }
        before = machine(environment)
        if kind == "down":
            _mrclab(environment, "up", "--topology", "tiny", "--target", "ebpf")
        with (directory / "said").open("wb") as said, (directory / "errors").open("wb") as errors:
            process = subprocess.Popen(
                _command(kind, directory), env=environment, stdout=said, stderr=errors, start_new_session=True
            )
        started = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        what = _end(how, process, environment, drawn)
        took = time.monotonic()
        if how == "kills":
            try:
                process.wait(NEEDED_S)
            except subprocess.TimeoutExpired:
                what += ", which was not needed"
                process.terminate()
        try:
            code: int | None = process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            code = None
        took_s = time.monotonic() - took
        if kind == "up" and how == "kills":
            _mrclab(environment, "down")  # the testbed may still be up
        left = _wait_gone(before, environment)
        cleaned = _mrclab(environment, "clean", "--force")
        for_good = _wait_gone(before, environment)
        text = (directory / "errors").read_text(errors="replace")
        for pid in processes_of(environment):
            os.kill(pid, signal.SIGKILL)
        last = text.strip().splitlines()[-1] if text.strip() else ""
    return Ending(
        number,
        kind,
        what,
        round(min(after_s, took - started), 2),
        round(took_s, 2),
        code,
        last,
        len(text.strip().splitlines()),
        "Traceback" in text,
        left,
        cleaned,
        for_good,
    )


def _end(
    how: str, process: subprocess.Popen[bytes], environment: Mapping[str, str], drawn: random.Random
) -> str:
    """End the command by a signal, or kill one of its processes. Return the signal or the process."""
    running = processes_of(environment)
    if how in SIGNALS:
        number = drawn.choice(SIGNALS[how])
        # If `up` has ended, its daemon still runs. In this case the signal goes to the daemon.
        pid = process.pid if process.poll() is None else min(running, default=None)
        if pid is not None:
            for _ in range(drawn.choice((1, 1, 2, 3)) if how == "signals" else 1):
                os.kill(pid, number)
        return number.name
    if not running:
        return "nothing to kill"
    pid = drawn.choice(sorted(running))
    os.kill(pid, signal.SIGKILL)
    return f"kill -9 {running[pid]}"


def main(how: str, first: int, count: int, report: Path | None = None) -> int:
    """End several commands. Return 1 if one of them had a bad result."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore SIGINT
    bad = 0
    for number in range(first, first + count):
        ending = end_one(how, number)
        bad += not ending.good
        mark = "ok " if ending.good and not ending.left else "LEFT" if ending.good else "BAD"
        print(
            f"{mark} {number} {ending.command}: {ending.how} after {ending.after_s} s: code {ending.code} in "
            f"{ending.took_s} s; {ending.lines} lines, {ending.said!r}; left {len(ending.left)}, "
            f"for good {len(ending.for_good)}",
            flush=True,
        )
        if report is not None:
            with report.open("a") as file:
                file.write(json.dumps(asdict(ending)) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]) if sys.argv[4:] else None)
    )
