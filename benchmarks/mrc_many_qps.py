"""The cost of many queue pairs in the core: microseconds per data packet, bytes per queue pair. No I/O.

    python -m benchmarks.mrc_many_qps [--queue-pairs N] [--writes N] [--rounds N]

The same writes of 64 KiB go over one queue pair and over many queue pairs, in turns and in one process. CPU
time is measured, so other processes do not count.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import tracemalloc
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.kit.core_pair import connected  # noqa: E402
from mrclab.hosts import compiled  # noqa: E402
from mrclab.hosts.mrc import Endpoint, MrcConfig  # noqa: E402

PLANES, PATHS = 4, 4
WRITE = 1 << 16


def transfer(ends: list[Endpoint], numbers: list[int], writes: int) -> float:
    """Return the microseconds per data packet of ``writes`` writes, spread evenly over the queue pairs."""
    a, b = ends
    region = b.register_memory(bytearray(WRITE))
    data = bytes(WRITE)
    started = time.process_time()
    for number in range(writes):
        a.post_write(numbers[number % len(numbers)], number, data, region.address, region.rkey)
    done, now_ns = 0, 1_000_000
    while done < writes:
        now_ns += 20_000
        for port, frame in a.frames_to_send(now_ns, None, 32):
            b.receive(port, frame, now_ns)
        for port, frame in b.frames_to_send(now_ns, None, 64):
            a.receive(port, frame, now_ns)
        for end in ends:
            due = end.next_timer()
            if due is not None and due <= now_ns:
                end.handle_timer(now_ns)
        done += len(a.poll_cq(1 << 16))
    elapsed = time.process_time() - started
    b.deregister_memory(region)
    return elapsed / (writes * (WRITE // 4096)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queue-pairs", type=int, default=1000)
    parser.add_argument("--writes", type=int, default=1000, help="of 64 KiB each, in all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--congestion", default="fixed", choices=("fixed", "nscc", "rate"))
    options = parser.parse_args()
    config = MrcConfig(congestion=options.congestion)
    print(f"the core is {compiled.describe()}")
    setups = {}
    for count in (1, options.queue_pairs):
        gc.collect()
        tracemalloc.start()
        setups[count] = connected(config, PLANES, PATHS, count)
        used = tracemalloc.get_traced_memory()[0] / count / 2
        tracemalloc.stop()
        print(f"{count} QPs: {used / 1024:.0f} KiB per QP and end after connecting; aim: at most 64")
    # As in an agent, garbage collection skips the objects that exist now, because it would visit all of them.
    gc.collect()
    gc.freeze()
    costs: dict[int, list[float]] = {count: [] for count in setups}
    for _ in range(options.rounds):
        for count, (ends, numbers) in setups.items():
            costs[count].append(transfer(ends, numbers, options.writes))
    for count, found in costs.items():
        spread = f"min {min(found):.2f}, median {statistics.median(found):.2f}, max {max(found):.2f}"
        print(f"{count} QPs: us per data packet, n={len(found)}: {spread}")
    ratio = statistics.median(costs[1]) / statistics.median(costs[options.queue_pairs])
    print(f"throughput of {options.queue_pairs} of that of one: {ratio:.2f}; aim: at least 0.8")


if __name__ == "__main__":
    main()
