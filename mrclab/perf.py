"""``mrclab perf``: perftest's write_bw and write_lat between two hosts of the running testbed."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict

from hosts.perf_client import BandwidthResult, LatencyResult, PerfPair
from hosts.transports import TRANSPORTS
from switches.errors import MachineError
from testbed.network import FabricNetwork
from testbed.topology_text import topology_text
from topologies import InputError

MAX_SIZE = 1 << 30
MAX_QPS = 4096
ALL_SIZES = tuple(1 << n for n in range(1, 24))
"""perftest's --all: 2 B to 8 MiB."""
DEFAULT_SIZE = {"write_bw": 65536, "write_lat": 2}
DEFAULT_ITERATIONS = {"write_bw": 5000, "write_lat": 1000}
DEFAULT_BYTES = 256 << 20
"""Without -n, large messages are fewer: a software NIC takes long over 5,000 messages of 8 MiB."""
WARM_UP = 100

BW_HEADER = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
LAT_HEADER = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec]"
)
LINE = "-" * 100


def perf(args: argparse.Namespace) -> int:
    """Measures and prints. Raises InputError on what makes no sense, before anything is started."""
    _check(args)
    network = FabricNetwork.attached()
    hosts = {host.name for host in network.fabric.hosts}
    for host in (args.source, args.target):
        if host not in hosts:
            known = ", ".join(sorted(hosts, key=lambda name: (len(name), name)))
            raise InputError(f"no host '{host}' in topology {network.fabric.name}: {known}")
    if os.geteuid() != 0:
        raise MachineError("not root: run it as root (sudo mrclab perf ...)")
    sizes = ALL_SIZES if args.all else (DEFAULT_SIZE[args.test] if args.size is None else args.size,)
    results: list[BandwidthResult | LatencyResult] = []
    if not args.json:
        _print_head(args, network.fabric.name, network.target)
    with PerfPair(
        (topology_text(network.fabric), network.fabric.name),
        (args.source, args.target),
        lambda host: lambda argv, **options: network.spawn(host, argv, **options),
        qps=args.qp,
        transport=args.transport,
        region_bytes=max(sizes),
    ) as pair:
        for size in sizes:
            results.append(_measure(pair, args, size))
            if not args.json:
                print(_row(results[-1]), flush=True)
    if args.json:
        print(json.dumps(_document(args, network, results), indent=2))
    else:
        print(LINE)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.source == args.target:
        raise InputError(f"--from and --to are both '{args.source}'")
    if args.all and args.size is not None:
        raise InputError("--all and --size exclude one another")
    if args.size is not None and not 0 <= args.size <= MAX_SIZE:
        raise InputError(f"--size must be 0..{MAX_SIZE} bytes, not {args.size}")
    if args.iters is not None and args.iters < 1:
        raise InputError(f"--iters must be at least 1, not {args.iters}")
    if not 1 <= args.qp <= MAX_QPS:
        raise InputError(f"--qp must be 1..{MAX_QPS}, not {args.qp}")
    if args.tx_depth < 1:
        raise InputError(f"--tx-depth must be at least 1, not {args.tx_depth}")
    if args.transport not in TRANSPORTS:
        raise InputError(f"no transport '{args.transport}': {', '.join(TRANSPORTS)}")
    if args.test == "write_lat" and (args.bidirectional or args.qp != 1):
        raise InputError("write_lat is one message at a time: without --bidirectional, on one queue pair")


def _measure(pair: PerfPair, args: argparse.Namespace, size: int) -> BandwidthResult | LatencyResult:
    iterations = args.iters
    if iterations is None:
        affordable = DEFAULT_BYTES // max(1, size) // args.qp
        iterations = max(10, min(DEFAULT_ITERATIONS[args.test], affordable))
    if args.test == "write_lat":
        return pair.ping_pong(size, iterations, min(WARM_UP, iterations))
    return pair.bandwidth(size, iterations, args.tx_depth, both_ways=args.bidirectional)


def _print_head(args: argparse.Namespace, topology: str, target: str) -> None:
    name = "RDMA_Write BW Test" if args.test == "write_bw" else "RDMA_Write Latency Test"
    ways = "bidirectional " if args.bidirectional else ""
    print(LINE)
    print(f" {ways}{name}: {args.source} to {args.target}, topology {topology}, target {target}")
    depth = f", TX depth {args.tx_depth}" if args.test == "write_bw" else ""
    print(f" Transport {args.transport}, queue pairs {args.qp}{depth}")
    print(LINE)
    print(BW_HEADER if args.test == "write_bw" else LAT_HEADER)


def _row(result: BandwidthResult | LatencyResult) -> str:
    if isinstance(result, BandwidthResult):
        return (
            f" {result.bytes:<10} {result.iterations:<14} {result.bw_peak_mib_s:<19.2f} "
            f"{result.bw_average_mib_s:<21.2f} {result.msg_rate_mpps:.6f}"
        )
    return (
        f" {result.bytes:<7} {result.iterations:<14} {result.t_min_us:<14.2f} {result.t_max_us:<12.2f} "
        f"{result.t_typical_us:<16.2f} {result.t_avg_us:<14.2f} {result.t_stdev_us:<15.2f} "
        f"{result.p99_us:<22.2f} {result.p99_9_us:.2f}"
    )


def _document(
    args: argparse.Namespace, network: FabricNetwork, results: list[BandwidthResult | LatencyResult]
) -> dict[str, object]:
    return {
        "test": args.test,
        "from": args.source,
        "to": args.target,
        "topology": network.fabric.name,
        "target": network.target,
        "transport": args.transport,
        "qps": args.qp,
        "bidirectional": args.bidirectional,
        "results": [asdict(result) for result in results],
    }
