"""Native programs on the NIC service: compare them with `mrclab perf`, and make ten thousand connections.

    python benchmarks/native_programs.py [--pairs 6] [--connects 10000] [--target ebpf]

Needs root, Debian's `perftest` and a C compiler. Brings up a separate fabric (4 planes, 10 Gbit/s) and takes
it down. Programs and `mrclab perf` take turns, so that other load on the machine affects both. Methods:

* bandwidth: `ib_write_bw` and `mrclab perf write_bw` each send 5,000 writes of 64 KiB over one queue pair,
  128 in flight. Each pair of runs gives one ratio of the average bandwidths. Aim: a median of at least 0.9.
* latency: `ib_write_lat` and `mrclab perf write_lat` make 1,000 round trips of 8 bytes. The result is the
  typical one-way time.
* CPU per work request: the user and system time of both NIC services during `ib_write_bw` is divided by the
  number of writes, once for writes of 64 KiB (16 packets) and once for writes of 8 bytes.
* connections: two programs make a queue pair each, connect them, write 8 bytes and destroy them, again and
  again. Descriptors and resident memory of each NIC service are read after a tenth of the connections and at
  the end. Aim: no more descriptors, and at most 16 bytes more for each connection.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from raw_loop import FROM, TO, running_fabric  # noqa: E402

from benchmarks.kit.results import bound, head, machine, row  # noqa: E402
from mrclab.linux.errors import MachineError  # noqa: E402
from tests.support.command import Mrclab, Up  # noqa: E402
from tests.support.native_programs import (  # noqa: E402
    await_listener,
    built,
    end,
    running,
    service,
)

CANNOT = 3
SIZE, SMALL = 65536, 8
WRITES, TRIPS = 5000, 1000
PERFTEST_PORT, CONNECTS_PORT = 18515, "18517"
UPLINKS = 4
LEAST_RATIO = 0.9
MOST_GROWTH_BYTES = 16


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory, descriptors and CPU time of a NIC service at one moment."""

    cpu_s: float
    resident_bytes: int
    descriptors: int

    @classmethod
    def of(cls, up: Up, host: str) -> Usage:
        """Read the usage from /proc. Raise StopIteration if the host has no running NIC service."""
        folder = Path(f"/proc/{service(up, host)}")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return cls(cpu_s, resident, len(os.listdir(folder / "fd")))


def perf(up: Up, test: str, size: int, count: int) -> dict[str, float]:
    """Run `mrclab perf` and return its results by name."""
    words = ("--from", FROM, "--to", TO, "--size", str(size), "--iters", str(count), "--json")
    return dict(json.loads(up.mrclab.ok("perf", test, *words))["results"][0])


def perftest(up: Up, name: str, size: int, count: int) -> list[float]:
    """Run a program of perftest on both hosts; return the numbers of its result line."""
    words = ("--", name, "-s", str(size), "-n", str(count), "-F")
    with running(up, TO, *words) as server:
        if not await_listener(up, TO, PERFTEST_PORT, server):
            raise MachineError(f"{name} failed: {end(server)}")
        with running(up, FROM, *words, TO) as client:
            said = end(client)
        end(server)
    return figures(said, size)


def figures(said: str, size: int) -> list[float]:
    """Return the numbers of perftest's line for a size. Raise MachineError if it printed no such line."""
    found = re.search(rf"^ *{size} +\d+ +([\d. \t]+)$", said, re.MULTILINE)
    if found is None:
        raise MachineError(f"perftest has no result: {said}")
    return [float(word) for word in found[1].split()]


def bandwidth(up: Up, pairs: int) -> bool:
    """Compare the bandwidth of writes of 64 KiB. Return True if the ratio is large enough."""
    native, ours = [], []
    for _ in range(pairs):
        native.append(perftest(up, "ib_write_bw", SIZE, WRITES)[1])  # a MB of perftest is 2^20 bytes
        ours.append(perf(up, "write_bw", SIZE, WRITES)["bw_average_mib_s"])
    row("ib_write_bw, 64 KiB", pairs, native, "MiB/s")
    row("mrclab perf write_bw, 64 KiB", pairs, ours, "MiB/s")
    ratios = [a / b for a, b in zip(native, ours, strict=True)]
    row("ratio of each pair", pairs, ratios, "")
    return bound("median of the ratios", statistics.median(ratios), least=LEAST_RATIO)


def latency(up: Up, pairs: int) -> None:
    """Compare the latency of writes of 8 bytes."""
    native, ours = [], []
    for _ in range(pairs):
        native.append(perftest(up, "ib_write_lat", SMALL, TRIPS)[2])
        ours.append(perf(up, "write_lat", SMALL, TRIPS)["t_typical_us"])
    row("ib_write_lat, 8 B, typical", pairs, native, "us")
    row("mrclab perf write_lat, 8 B, typical", pairs, ours, "us")


def cpu(up: Up, pairs: int) -> None:
    """Print the CPU time of both NIC services per work request."""
    for size, count in ((SIZE, WRITES), (SMALL, 10 * WRITES)):
        spent: list[list[float]] = [[], []]
        for _ in range(pairs):
            before = [Usage.of(up, host).cpu_s for host in (FROM, TO)]
            perftest(up, "ib_write_bw", size, count)
            for each, host, start in zip(spent, (FROM, TO), before, strict=True):
                each.append((Usage.of(up, host).cpu_s - start) / count * 1e6)
        for what, each in zip(("sender", "receiver"), spent, strict=True):
            row(f"CPU of the {what}'s NIC, write of {size} B", pairs, each, "us")


def connections(up: Up, program: Path, count: int) -> bool:
    """Make and destroy many connections. Return True if they leave no descriptors and little memory."""
    words = ("--", str(program))
    at: list[tuple[float, list[Usage]]] = []
    with (
        running(up, TO, *words, "server", CONNECTS_PORT, str(count)) as server,
        running(up, FROM, *words, "client", CONNECTS_PORT, str(count), TO) as client,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        for _ in ("tenth", "all"):
            server.stdout.readline()
            at.append((time.monotonic(), [Usage.of(up, host) for host in (FROM, TO)]))
            server.stdin.write("\n")
            server.stdin.flush()
        said = end(client) + end(server)
        if client.returncode or server.returncode:
            raise MachineError(f"connections failed: {said}")
    (first_s, first), (last_s, last) = at
    since = count - count // 10
    row("a connection: made, used, destroyed", 1, [(last_s - first_s) / since * 1e3], "ms")
    kept = True
    for host, before, after in zip(("client's", "server's"), first, last, strict=True):
        more = after.descriptors - before.descriptors
        grown = (after.resident_bytes - before.resident_bytes) / since
        kept &= bound(f"descriptors more, {host} service", more, most=0)
        kept &= bound(f"bytes more per connection, {host} service", grown, most=MOST_GROWTH_BYTES)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures native programs on the NIC service.")
    parser.add_argument("--pairs", type=int, default=6, help="runs of each kind; 0: none")
    parser.add_argument("--connects", type=int, default=10_000, help="connections; 0: none")
    parser.add_argument("--target", default="ebpf")
    options = parser.parse_args()
    if shutil.which("ib_write_bw") is None:
        print("native_programs: no ib_write_bw here (apt install perftest)", file=sys.stderr)
        return CANNOT
    print(machine())
    with built(connects="connects") as programs, running_fabric(UPLINKS, options.target) as network:
        up = Up(Mrclab(network.names), network.fabric)
        head()
        kept = True
        if options.pairs:
            kept = bandwidth(up, options.pairs)
            latency(up, options.pairs)
            cpu(up, options.pairs)
        if options.connects:
            kept &= connections(up, programs["connects"], options.connects)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
