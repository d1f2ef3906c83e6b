"""The time and memory that a class needs on one server: a fabric for each student, all up at once.

    python benchmarks/class_server.py [--students 10 30] [--topology tiny] [--target ebpf]

Fabrics are brought up one after another, each under its own prefix. Values are measured while all fabrics are
up and idle: the PSS of all their processes, the fall of MemAvailable, the CPUs that they use, and the time of
one student's ``mrclab probe h0 h2 --all``. A second process removes all fabrics when this process ends.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.lab_up import MIB, available_bytes, pss_bytes, timed  # noqa: E402
from mrclab.linux.namespaces import Markers  # noqa: E402
from mrclab.testbed.clean import testbed_processes  # noqa: E402
from mrclab.testbed.names import PREFIX_VARIABLE, Names  # noqa: E402
from mrclab.testbed.state import markers_dir  # noqa: E402

IDLE_S = 10.0


def prefixes(first: str, count: int) -> list[str]:
    """Return the prefixes of the students' testbeds."""
    return [f"{first}n{number}" for number in range(count)]


def environment(prefix: str) -> dict[str, str]:
    """Return the environment of a student."""
    return {**os.environ, PREFIX_VARIABLE: prefix}


def processes(prefix: str) -> list[int]:
    """Return the processes of a student's testbed."""
    names = Names.of_prefix(prefix)
    inside = set(Markers(markers_dir(names)).identities())
    return [process.pid for process in testbed_processes(names, inside)]


def busy_s() -> float:
    """Return the seconds that all CPUs have been busy so far, including stolen time."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def removed_in_the_end(all_prefixes: Sequence[str]) -> Iterator[None]:
    """Let another process remove the testbeds when this process leaves the ``with`` or is killed."""
    watcher = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.class_server", "--remove", *all_prefixes],
        stdin=subprocess.PIPE,
        start_new_session=True,
        cwd=ROOT,
    )
    assert watcher.stdin is not None
    try:
        yield
    finally:
        watcher.stdin.close()
        watcher.wait()


def remove(all_prefixes: Sequence[str]) -> None:
    """Wait until standard input ends, then end commands that still run for these prefixes, and clean up."""
    sys.stdin.buffer.read()
    for pid in commands_of(set(all_prefixes)):
        subprocess.run(["kill", "-KILL", str(pid)], check=False, stderr=subprocess.DEVNULL)
    for prefix in all_prefixes:
        subprocess.run(
            [sys.executable, "-m", "mrclab", "clean"],
            env=environment(prefix),
            check=False,
            stdout=subprocess.DEVNULL,
        )


def commands_of(all_prefixes: set[str]) -> list[int]:
    """Return the commands of mrclab that run with one of these prefixes in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        mine = any(
            word == f"{PREFIX_VARIABLE}={prefix}".encode() for word in words for prefix in all_prefixes
        )
        if mine and b"\0mrclab\0" in command:
            found.append(int(folder.name))
    return found


def measure(students: int, topology: str, target: str) -> str:
    """Return the row of the table for a number of students."""
    names = prefixes(f"cs{os.getpid()}", students)
    before = available_bytes()
    with removed_in_the_end(names):
        up_s = []
        for name in names:
            up_s.append(timed(["up", "--topology", topology, "--target", target], environment(name)))
            print(f"{len(up_s)} of {students} up", file=sys.stderr, flush=True)
        pss = sum(pss_bytes(pid) for name in names for pid in processes(name)) / MIB
        used = (before - available_bytes()) / MIB
        began, busy = time.monotonic(), busy_s()
        time.sleep(IDLE_S)  # measure the CPU time of idle fabrics
        cpus = (busy_s() - busy) / (time.monotonic() - began)
        probe_s = timed(["probe", "h0", "h2", "--all"], environment(names[-1]))
        began = time.monotonic()
    down_s = (time.monotonic() - began) / students
    cells = [f"{statistics.median(up_s):.1f} ({up_s[-1]:.1f})", f"{down_s:.1f}"]
    cells += [f"{pss / students:.0f}", f"{used / students:.0f}", f"{cpus:.2f}", f"{probe_s:.1f}"]
    return f"| {students} | " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print a table."""
    if sys.argv[1:2] == ["--remove"]:
        remove(sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--students", type=int, nargs="+", default=[10, 30])
    parser.add_argument("--topology", default="tiny")
    parser.add_argument("--target", default="ebpf")
    args = parser.parse_args()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    print(f"{args.topology}, target {args.target}, {os.cpu_count()} CPUs, {memory:.0f} GiB")
    print(
        "| students | up, s: median (last) | down, s | PSS each, MiB | MemAvailable, MiB | CPUs | probe, s |"
    )
    print("|---|---|---|---|---|---|---|")
    for students in args.students:
        print(measure(students, args.topology, args.target), flush=True)


if __name__ == "__main__":
    main()
