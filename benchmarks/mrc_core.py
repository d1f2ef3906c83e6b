"""What the MRC core itself costs: microseconds per data packet, requester and responder together, no I/O.

Two endpoints in one process hand each other frames through a list. Counted is all the core does for a packet:
EV choice, headers, ICRC, a copy into the frame; ICRC check and placement at the far end; SACKs both ways.
Run it with `python -m benchmarks.mrc_core [--megabytes N] [--rounds N] [--batch N] [--profile]`.
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import pstats
import random
import statistics
import time

from hosts.mrc import Endpoint, MrcConfig, Path, PlanePaths, PortAddress, RemotePaths


def make_pair(config: MrcConfig, planes: int, paths: int) -> tuple[list[Endpoint], list[int]]:
    def ports(node: int) -> list[PortAddress]:
        return [
            PortAddress(p, bytes([2, 0, 0, 0, node, p]), bytes([0xFD, p, node]) + bytes(13))
            for p in range(planes)
        ]

    ends = [Endpoint(ports(n), config, random.Random(n)) for n in (0, 1)]
    qpns = [end.create_qp() for end in ends]
    for me, end in enumerate(ends):
        near, far = ports(me), ports(1 - me)
        routes = RemotePaths(
            tuple(
                PlanePaths(
                    p,
                    near[p].mac,
                    far[p].mac,
                    near[p].address,
                    far[p].address,
                    tuple(Path(p << 16 | k, bytes(8) + bytes([p, k]) + bytes(6)) for k in range(paths)),
                )
                for p in range(planes)
            )
        )
        end.connect(qpns[me], ends[1 - me].local_attributes(qpns[1 - me]), routes)
    return ends, qpns


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
    started = time.perf_counter()
    while done < wanted:
        now_ns += 20_000
        for port, frame in a.frames_to_send(now_ns, None, batch):
            b.receive(port, frame, now_ns)
        for port, frame in b.frames_to_send(now_ns, None, batch):
            sacks += 1
            a.receive(port, frame, now_ns)
        done += len(a.poll_cq())
    elapsed = time.perf_counter() - started
    assert target == data, "bytes were lost"
    target[:] = bytes(len(target))
    b.deregister_memory(region)
    return elapsed, a.qp_counters(qpn).sent - sent_before, sacks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--batch", type=int, default=32, help="frames handed over at a time; 1 is the worst case"
    )
    parser.add_argument("--planes", type=int, default=4)
    parser.add_argument("--paths", type=int, default=32, help="per plane")
    parser.add_argument("--message", type=int, default=1 << 18, help="bytes per write")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    ends, qpns = make_pair(MrcConfig(), options.planes, options.paths)
    data = random.Random(1).randbytes(options.megabytes << 20)
    # One region for all rounds, as a NIC's pinned memory: page faults are not the core's.
    target = bytearray(len(data))
    transfer(ends, qpns[0], data, target, options.batch, options.message)
    if options.profile:
        with cProfile.Profile() as profile:
            transfer(ends, qpns[0], data, target, options.batch, options.message)
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)
        return
    costs = []
    for _ in range(options.rounds):
        elapsed, packets, sacks = transfer(ends, qpns[0], data, target, options.batch, options.message)
        costs.append(elapsed / packets * 1e6)
    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}")
    print(f"{packets} packets of 4096 B a round, {sacks} SACKs, {options.planes}x{options.paths} EVs")
    print(f"batches of {options.batch}")
    median = statistics.median(costs)
    spread = f"min {min(costs):.2f}, median {median:.2f}, max {max(costs):.2f}"
    print(f"us per data packet, n={len(costs)} rounds: {spread}")


if __name__ == "__main__":
    main()
