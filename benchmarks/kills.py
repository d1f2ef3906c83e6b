"""Kill processes at random moments while native programs run. Check that nothing hangs or is left behind.

    python benchmarks/kills.py [-n 100] [--first 0] [--target ebpf]

Needs root and a C compiler. Two programs (`tests/support/programs/pair.c`) write over a small fabric. After a
random time one process gets SIGKILL: the writer, the reader, the NIC service of one of them, or a switch. The
number of a kill is its seed. Bounds:

* if a program or a NIC service is killed, the other programs end with an error within two minutes. Then the
  other NIC service has as many descriptors as before the programs started;
* if a switch is killed, the programs continue over the other planes and finish without a wrong byte;
* when the fabric is down, no process, namespace, interface or file of it is left.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.kit.results import bound, machine  # noqa: E402
from mrclab.testbed.clean import testbed_processes  # noqa: E402
from mrclab.testbed.names import Names  # noqa: E402
from tests.support.command import Up, up  # noqa: E402
from tests.support.leftovers import left_in_the_end  # noqa: E402
from tests.support.native_programs import built, end, running, service  # noqa: E402

TOPOLOGY = "tiny"
WRITER, READER = "h0", "h2"
VICTIMS = ("writer", "reader", "writer's service", "reader's service", "switch")
PORT = "18518"
SIZE, FOREVER, ENOUGH = "65536", "1000000", "3000"
LATEST_S = 1.0
CALM_S = 30.0
LOOK_S = 0.5


def switches(names: Names) -> list[int]:
    """Return the processes of the fabric's switches."""
    return [each.pid for each in testbed_processes(names, []) if "switch" in each.what]


def descriptors(fabric: Up, host: str) -> tuple[int, int] | None:
    """Return the pid and the number of descriptors of a host's NIC service, or None if it does not run."""
    try:
        pid = service(fabric, host)
        return pid, len(os.listdir(f"/proc/{pid}/fd"))
    except (StopIteration, OSError):
        return None


def calm(fabric: Up, host: str, before: tuple[int, int] | None) -> bool:
    """Return False if the NIC service still runs but keeps more descriptors than ``before``."""
    deadline = time.monotonic() + CALM_S
    while (now := descriptors(fabric, host)) is not None and before is not None and now[0] == before[0]:
        if now[1] <= before[1]:
            return True
        if time.monotonic() > deadline:
            return False
        signal.sigtimedwait([], 0.05)
    return True


@contextmanager
def programs(
    fabric: Up, pair: Path, count: str
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Run the reader and the writer. Raise RuntimeError with their output if they do not connect."""
    words = ("--", str(pair))
    with (
        running(fabric, READER, *words, "server", PORT, SIZE, count, "events") as reader,
        running(fabric, WRITER, *words, "client", PORT, SIZE, count, READER) as writer,
    ):
        assert writer.stdout is not None
        while not select.select([writer.stdout], [], [], LOOK_S)[0] and reader.poll() is None:
            pass  # wait for the connection, or for the end of the reader
        if reader.poll() is not None or writer.stdout.readline() != "connected\n":
            writer.kill()
            reader.kill()
            raise RuntimeError(f"not connected: {end(writer)}{end(reader)}")
        yield writer, reader


def kill(fabric: Up, pair: Path, seed: int) -> str:
    """Kill one process. Return a description of what went wrong, or ""."""
    rng = random.Random(seed)
    victim = VICTIMS[seed % len(VICTIMS)]
    before = [descriptors(fabric, host) for host in (WRITER, READER)]
    with programs(fabric, pair, ENOUGH if victim == "switch" else FOREVER) as (writer, reader):
        time.sleep(rng.uniform(0, LATEST_S))
        if victim == "switch":
            os.kill(rng.choice(switches(fabric.mrclab.names)), signal.SIGKILL)
        elif "service" in victim:
            os.kill(service(fabric, WRITER if victim.startswith("writer") else READER), signal.SIGKILL)
        else:
            (writer if victim == "writer" else reader).kill()
        try:
            said = [end(process) for process in (writer, reader)]
        except subprocess.TimeoutExpired as late:
            return f"{late.cmd[-6:]} did not end"
        codes = [writer.returncode, reader.returncode]
    if victim == "switch":
        fine = codes == [0, 0]
    else:
        killed = {"writer": 0, "reader": 1}.get(victim)
        fine = all(code == -signal.SIGKILL if n == killed else code in (3, 4) for n, code in enumerate(codes))
    if not fine:
        return f"exit codes {codes}: {said}"
    for host, then in zip((WRITER, READER), before, strict=True):
        if not calm(fabric, host, then):
            return f"descriptors of {host}'s service: {then} before, {descriptors(fabric, host)} after"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills processes under native programs.")
    parser.add_argument("-n", type=int, default=100, help="kills")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--target", default="ebpf")
    options = parser.parse_args()
    print(machine())
    failures: dict[int, str] = {}
    left: list[str] = []
    killed: Counter[str] = Counter()
    longest_s = 0.0
    fabrics = ExitStack()
    fabric: Up | None = None
    with built(pair="pair") as made, fabrics:
        for seed in range(options.first, options.first + options.n):
            if fabric is None:
                fabric = fabrics.enter_context(up(TOPOLOGY, options.target))
                warm(fabric, made["pair"])
            victim = VICTIMS[seed % len(VICTIMS)]
            killed[victim] += 1
            began_s = time.monotonic()
            try:
                wrong = kill(fabric, made["pair"], seed)
            except RuntimeError as error:
                wrong = str(error)
            longest_s = max(longest_s, time.monotonic() - began_s)
            if wrong:
                failures[seed] = wrong
                print(f"kill {seed}, {victim}: {wrong}", flush=True)
            if wrong or victim == "switch":
                left += remove(fabric, fabrics)
                fabric = None
        if fabric is not None:
            left += remove(fabric, fabrics)
    print(f"the longest, with its start, took {longest_s:.1f} s")
    print(", ".join(f"{count} x {victim}" for victim, count in killed.items()))
    kept = bound("kills after which something was wrong", len(failures), most=0)
    return 0 if bound("left behind", len(left), most=0) and kept else 1


def warm(fabric: Up, pair: Path) -> None:
    """Start the NIC services by a first pair of programs."""
    with programs(fabric, pair, "8") as both:
        for process in both:
            end(process)


def remove(fabric: Up, fabrics: ExitStack) -> list[str]:
    """Take a fabric down; return the processes and interfaces left of it."""
    with suppress(AssertionError):  # raised if a switch was killed
        fabrics.close()
    found = left_in_the_end(fabric.mrclab.names)
    for what in found:
        print(f"left: {what}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
