"""What many queue pairs cost the core: microseconds per data packet and bytes per queue pair, no I/O.

The same bytes go over one queue pair and over many, in one process. Run it with
`python -m benchmarks.mrc_many_qps [--queue-pairs N] [--megabytes N]`.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import tracemalloc

from hosts.mrc import Endpoint, MrcConfig, Path, PlanePaths, PortAddress, RemotePaths

PLANES, PATHS = 4, 4


def ports(node: int) -> list[PortAddress]:
    return [
        PortAddress(p, bytes([2, 0, 0, 0, node, p]), bytes([0xFD, p, node]) + bytes(13))
        for p in range(PLANES)
    ]


def routes(me: int) -> RemotePaths:
    near, far = ports(me), ports(1 - me)
    return RemotePaths(
        tuple(
            PlanePaths(
                p,
                near[p].mac,
                far[p].mac,
                near[p].address,
                far[p].address,
                tuple(Path(p << 16 | k, bytes(8) + bytes([p, k]) + bytes(6)) for k in range(PATHS)),
            )
            for p in range(PLANES)
        )
    )


def make(count: int, config: MrcConfig) -> tuple[list[Endpoint], list[int]]:
    ends = [Endpoint(ports(n), config, random.Random(n)) for n in (0, 1)]
    numbers = []
    for _ in range(count):
        pair = [end.create_qp() for end in ends]
        for me in (0, 1):
            ends[me].connect(pair[me], ends[1 - me].local_attributes(pair[1 - me]), routes(me))
        numbers.append(pair[0])
    return ends, numbers


def transfer(ends: list[Endpoint], numbers: list[int], total: int) -> float:
    a, b = ends
    size = max(4096, total // len(numbers))
    region = b.register_memory(bytearray(size))
    data = bytes(size)
    started = time.perf_counter()
    for number in numbers:
        a.post_write(number, number, data, region.address, region.rkey)
    done, now_ns = 0, 1_000_000
    while done < len(numbers):
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
    elapsed = time.perf_counter() - started
    b.deregister_memory(region)
    return elapsed / (-(-size // 4096) * len(numbers)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queue-pairs", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--congestion", default="fixed", choices=("fixed", "nscc", "rate"))
    options = parser.parse_args()
    config = MrcConfig(congestion=options.congestion)
    for count in (1, options.queue_pairs):
        gc.collect()
        tracemalloc.start()
        ends, numbers = make(count, config)
        used = tracemalloc.get_traced_memory()[0] / count / 2
        tracemalloc.stop()
        costs = []
        for _ in range(options.rounds):
            costs.append(transfer(ends, numbers, options.megabytes << 20))
        spread = f"min {min(costs):.2f}, median {statistics.median(costs):.2f}, max {max(costs):.2f}"
        print(
            f"{count} QPs: us per data packet, n={len(costs)}: {spread}; {used / 1024:.0f} KiB per QP and end"
        )


if __name__ == "__main__":
    main()
