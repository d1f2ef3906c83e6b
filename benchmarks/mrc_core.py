"""The cost of the MRC core itself: microseconds per data packet, requester and responder together, no I/O.

    python -m benchmarks.mrc_core [--megabytes N] [--rounds N] [--batch N ...] [--profile]

Two endpoints in one process pass each other frames through a list. The time includes all work of the core for
a packet: EV choice, headers, ICRC, a copy into the frame; ICRC check and placement at the receiver; sending
and processing of SACKs. CPU time is measured, so other processes do not count. The compiled core and the pure
Python core are measured in the same run, in separate processes.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import platform
import pstats
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.kit.core_pair import connected  # noqa: E402
from mrclab.hosts import compiled  # noqa: E402
from mrclab.hosts.mrc import Endpoint, MrcConfig  # noqa: E402


def transfer(
    ends: list[Endpoint], qpn: int, data: bytes, target: bytearray, batch: int, message_bytes: int
) -> tuple[float, int, int]:
    a, b = ends
    region = b.register_memory(target)
    for at in range(0, len(data), message_bytes):
        a.post_write(qpn, at, memoryview(data)[at : at + message_bytes], region.address + at, region.rkey)
    wanted = -(-len(data) // message_bytes)
    sent_before = a.qp_counters(qpn).sent
    done = sacks = 0
    now_ns = 1_000_000
    started = time.process_time()
    while done < wanted:
        now_ns += 20_000
        for port, frame in a.frames_to_send(now_ns, None, batch):
            b.receive(port, frame, now_ns)
        for port, frame in b.frames_to_send(now_ns, None, batch):
            sacks += 1
            a.receive(port, frame, now_ns)
        done += len(a.poll_cq())
    elapsed = time.process_time() - started
    assert target == data, "bytes were lost"
    target[:] = bytes(len(target))
    b.deregister_memory(region)
    return elapsed, a.qp_counters(qpn).sent - sent_before, sacks


def measure(options: argparse.Namespace) -> dict[int, list[float]]:
    """Return the microseconds per data packet in each round, by the size of a batch."""
    ends, qpns = connected(MrcConfig(), options.planes, options.paths)
    # As in an agent, garbage collection skips the objects that exist now.
    gc.collect()
    gc.freeze()
    data = random.Random(1).randbytes(options.megabytes << 20)
    # All rounds use one region, so that page faults of new memory do not count as the core's time.
    target = bytearray(len(data))
    transfer(ends, qpns[0], data, target, options.batch[0], options.message)
    costs: dict[int, list[float]] = {batch: [] for batch in options.batch}
    for _ in range(options.rounds):
        for batch, found in costs.items():
            elapsed, packets, _ = transfer(ends, qpns[0], data, target, batch, options.message)
            found.append(elapsed / packets * 1e6)
    return costs


def in_child(pure: bool) -> dict[int, list[float]]:
    """Measure in a separate process, with the compiled core or the pure Python core."""
    command = [sys.executable, "-m", "benchmarks.mrc_core", *sys.argv[1:], "--child"]
    environment = {**os.environ, compiled.PURE_VARIABLE: "1" if pure else ""}
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return {int(batch): costs for batch, costs in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 8, 32], help="frames handed over at a time; 1 is worst"
    )
    parser.add_argument("--planes", type=int, default=4)
    parser.add_argument("--paths", type=int, default=32, help="per plane")
    parser.add_argument("--message", type=int, default=1 << 18, help="bytes per write")
    parser.add_argument("--profile", action="store_true", help="of the pure core: MRCLAB_PURE=1")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profile:
        with cProfile.Profile() as profile:
            measure(options)
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)
        return
    if options.child:
        json.dump(measure(options), sys.stdout)
        return
    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}")
    print(f"packets of 4096 B, {options.megabytes} MB a round, {options.planes}x{options.paths} EVs")
    print(f"us per data packet{'n':>16} {'least':>8} {'median':>8} {'most':>8}   aim: at most 5")
    results = {"pure Python": in_child(pure=True)}
    if compiled.directory().is_dir():
        results["compiled"] = in_child(pure=False)
    else:
        print("(not compiled here: make compile)")
    for name, costs in results.items():
        for batch, found in costs.items():
            row = f"{min(found):8.2f} {statistics.median(found):8.2f} {max(found):8.2f}"
            print(f"{name}, batches of {batch:<4} {len(found):>{30 - len(name) - 13}} {row}")
    if "compiled" in results:
        for batch, found in results["compiled"].items():
            pure = statistics.median(results["pure Python"][batch])
            print(f"compiling pays, batches of {batch}: {pure / statistics.median(found):.2f} times")


if __name__ == "__main__":
    main()
