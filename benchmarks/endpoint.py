"""The speed of the MRC endpoint over real switches, compared with the raw loop on the same fabric.

    python benchmarks/endpoint.py [--rounds 5] [--uplinks 16] [--qps 1000] [--window 1024] [--target ebpf]

Needs root. Brings up a separate fabric and takes it down. Raw loop and endpoint take turns, so that other
load on the machine affects both. Methods, with `mrclab.hosts.perf` (as `mrclab perf`) for the endpoint:

* throughput: one queue pair sends writes of 64 KiB, 16 in flight, in packets of 4,096 B. It uses 4 planes and
  --uplinks EVs in each. The result is packets/s from the first post to the last completion. Aim: at least
  0.5 of the raw loop's frames/s at the same frame length. The raw loop has no window. The endpoint's window
  is --window KiB: if CPUs are busy, 256 KiB would be sent and acknowledged before the sender runs again. CPU
  is the sender's user and system time per packet. It includes the forwarding through three switches, which
  runs inside the system call that sends.
* latency: the time of an 8-byte write from post to completion, 2,000 in a row. Aim: the median is at most 3
  times the median of the raw loop's round trip of a frame of the same length.
* many queue pairs: --qps queue pairs send the same number of bytes, with one write in flight on each. Aim:
  within 20 % of the rate over one queue pair. Memory is the growth of the sender's resident set per queue
  pair, from before the queue pairs are made to after the run. Aim: at most 64 KiB.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from raw_loop import FROM, TO, round_trips, running_fabric, throughput  # noqa: E402

from benchmarks.kit.results import head, machine, row  # noqa: E402
from mrclab.hosts.perf.client import PerfPair  # noqa: E402
from mrclab.testbed.network import FabricNetwork  # noqa: E402

MESSAGE = 1 << 16
PACKETS = MESSAGE // 4096
MESSAGES = 8000
SMALL = 8
TRIPS = 2000


def pair(network: FabricNetwork, qps: int, window: int) -> PerfPair:
    return PerfPair(
        network.fabric,
        (FROM, TO),
        lambda host: lambda argv, **options: network.spawn(host, argv, **options),
        qps=qps,
        region_bytes=MESSAGE,
        config={"cwnd_bytes": window},
    )


@dataclass(frozen=True)
class Run:
    """The results of one throughput run."""

    packets_per_s: float
    repeated: float
    """The share of packets that were sent again."""
    cpu_us: float
    """The CPU time of the sender per packet, in us."""
    qp_kib: float


def throughput_run(network: FabricNetwork, qps: int, depth: int, window: int) -> Run:
    """Measure writes of 64 KiB over ``qps`` queue pairs."""
    with pair(network, qps, window) as ends:
        before = ends.ends[0].call("idle")
        result = ends.bandwidth(MESSAGE, MESSAGES // qps, depth)
        after = ends.ends[0].call("idle")
    packets = result.iterations * PACKETS
    return Run(
        packets / result.seconds,
        after["retransmitted"] / after["sent"],
        (after["cpu_s"] - before["cpu_s"]) / packets * 1e6,
        after["qp_bytes"] / 1024,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uplinks", type=int, default=16, help="paths per plane; 4 planes")
    parser.add_argument("--qps", type=int, default=1000)
    parser.add_argument("--window", type=int, default=1024, help="KiB in flight per queue pair")
    parser.add_argument("--target", default="ebpf")
    options = parser.parse_args()
    print(f"endpoint over {4 * options.uplinks} EVs, {machine()}")
    raw: list[float] = []
    one: list[Run] = []
    many: list[Run] = []
    raw_trips: list[float] = []
    trips: list[float] = []
    window = options.window << 10
    with running_fabric(options.uplinks, options.target) as network:
        for _ in range(options.rounds):
            raw.append(throughput(network, 1.5).frames_per_s)
            one.append(throughput_run(network, 1, 16, window))
            if options.qps:
                many.append(throughput_run(network, options.qps, 1, window))
            raw_trips.append(statistics.median(round_trips(network, TRIPS)))
            with pair(network, 1, window) as ends:
                trips.append(ends.completion(SMALL, TRIPS, TRIPS // 10).t_typical_us)
    head()
    n = options.rounds
    rates = [run.packets_per_s for run in one]
    repeated = statistics.median(run.repeated for run in one)
    row("raw loop", n, raw, "frames/s")
    row("one queue pair", n, rates, "packets/s", f"{repeated:.2%} sent again")
    row("  of the raw loop", n, [a / b for a, b in zip(rates, raw, strict=True)], "", "aim: at least 0.5")
    row("  CPU of the sender per packet", n, [run.cpu_us for run in one], "us")
    if many:
        all_rates = [run.packets_per_s for run in many]
        row(f"{options.qps} queue pairs", n, all_rates, "packets/s")
        row("  of one", n, [a / b for a, b in zip(all_rates, rates, strict=True)], "", "aim: at least 0.8")
        row("  memory per queue pair", n, [run.qp_kib for run in many], "KiB", "aim: at most 64")
    row("raw round trip (medians of rounds)", n, raw_trips, "us")
    row("8-byte write, post to completion", n, trips, "us")
    row(
        "  of the raw round trip",
        n,
        [a / b for a, b in zip(trips, raw_trips, strict=True)],
        "",
        "aim: at most 3",
    )


if __name__ == "__main__":
    main()
