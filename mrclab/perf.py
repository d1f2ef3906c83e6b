"""``mrclab perf``: perftest's write_bw and write_lat between two hosts of the running testbed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mrclab.hosts.clustermapper.denylist import Denylist
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.perf.client import BandwidthResult, LatencyResult, PerfPair
from mrclab.hosts.schemes.registry import CONGESTION_CONTROLS, PATH_POLICIES
from mrclab.hosts.transports import find_transport
from mrclab.linux.errors import InputError
from mrclab.testbed.clustermapper import denylist_file
from mrclab.testbed.names import require_root
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies.units import option_value, rate_bps, time_ns

MAX_SIZE = 1 << 30
MAX_QPS = 4096
ALL_SIZES = tuple(1 << n for n in range(1, 24))
"""The message sizes of perftest's --all: 2 B to 8 MiB."""
DEFAULT_SIZE = {"write_bw": 65536, "write_lat": 2}
DEFAULT_ITERATIONS = {"write_bw": 5000, "write_lat": 1000}
DEFAULT_BYTES = 256 << 20
"""The most bytes to send if -n is not given: perftest's 5,000 messages of 8 MiB would take too long."""
WARM_UP = 100
MAX_DURATION_S = 3600
INTERVAL_S = 1.0
"""The time between two progress lines, if the measurement has a given duration."""
MAX_MTU = 4096
MIB_BITS = 8 << 20

BW_HEADER = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
LAT_HEADER = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec]"
)
LINE = "-" * 100

DEAD_PEER_RETRIES = 8
"""The number of timeouts after which a write fails, so that a dead network is reported. Each timeout is twice
as long as the previous timeout. So the write fails after about a thousand times the first timeout, or after
4 s if no RTT was measured yet."""


def perf(args: argparse.Namespace) -> int:
    """Measure and print the result. Raise InputError for bad arguments, before anything is started."""
    _check(args)
    config = _config(args)
    network = FabricNetwork.attached()
    hosts = {host.name for host in network.fabric.hosts}
    for host in (args.source, args.target):
        if host not in hosts:
            known = ", ".join(sorted(hosts, key=lambda name: (len(name), name)))
            raise InputError(f"no host '{host}' in topology {network.fabric.name}: {known}")
    require_root("perf ...")
    sizes = ALL_SIZES if args.all else (DEFAULT_SIZE[args.test] if args.size is None else args.size,)
    results: list[BandwidthResult | LatencyResult] = []
    with PerfPair(
        network.fabric,
        (args.source, args.target),
        lambda host: lambda argv, **options: network.spawn(host, argv, **options),
        qps=args.qp,
        transport=args.transport,
        region_bytes=max(sizes),
        config=config,
        calibrate=args.congestion == "nscc" and args.base_rtt is None,
        denied=Denylist.load(denylist_file(network.names)).links,
    ) as pair:
        if not args.json:
            _print_head(args, network.fabric.name, network.target, pair.base_rtt_ns)
        for size in sizes:
            results.append(_measure(pair, args, size))
            if not args.json:
                print(_row(results[-1], gbits=args.report_gbits), flush=True)
                if args.report_histogram:
                    _print_histogram(results[-1])
    if args.json:
        print(json.dumps(_document(args, network, config, results), indent=2))
    else:
        print(LINE)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.source == args.target:
        raise InputError(f"--from and --to are both '{args.source}'")
    if args.all and args.size is not None:
        raise InputError("--all and --size exclude each other")
    if args.size is not None and not 1 <= args.size <= MAX_SIZE:
        raise InputError(f"--size must be 1..{MAX_SIZE} bytes, not {args.size}")
    if args.iters is not None and args.iters < 1:
        raise InputError(f"--iters must be at least 1, not {args.iters}")
    if not 1 <= args.qp <= MAX_QPS:
        raise InputError(f"--qp must be 1..{MAX_QPS}, not {args.qp}")
    if args.tx_depth < 1:
        raise InputError(f"--tx-depth must be at least 1, not {args.tx_depth}")
    try:
        transport = find_transport(args.transport)
    except ValueError as error:
        raise InputError(str(error)) from None
    if not transport.core.has_nic or transport.only_simulated:
        raise InputError(f"perf runs transports with a NIC of ours on a live fabric, not {args.transport}")
    if args.test == "write_lat" and (args.bidirectional or args.qp != 1):
        raise InputError(
            "write_lat sends one message at a time: use it without --bidirectional, on one queue pair"
        )
    if args.test == "write_lat" and args.duration is not None:
        raise InputError("--duration is for write_bw only")
    if args.test == "write_bw" and args.report_histogram:
        raise InputError("--report-histogram is for write_lat only")
    if args.duration is not None and (args.iters is not None or not 0 < args.duration <= MAX_DURATION_S):
        raise InputError(f"--duration must be above 0 and at most {MAX_DURATION_S} s, without --iters")
    if args.mtu is not None and not 256 <= args.mtu <= MAX_MTU:
        raise InputError(f"--mtu must be 256..{MAX_MTU} bytes, not {args.mtu}")
    if args.window is not None and args.window < 1:
        raise InputError(f"--window must be at least 1 packet, not {args.window}")
    if args.base_rtt is not None and args.congestion != "nscc":
        raise InputError("--base-rtt is for --congestion nscc only")
    for registry, name in ((CONGESTION_CONTROLS, args.congestion), (PATH_POLICIES, args.path_policy)):
        if name is not None:
            try:
                registry.find(name)
            except ValueError as error:
                raise InputError(str(error)) from None
    options = ("congestion", "path_policy", "window", "rate_limit")
    chosen = [name for name in options if getattr(args, name) is not None]
    if chosen and transport.kind != "mrc":
        raise InputError(f"--{chosen[0].replace('_', '-')} is for MRC, not for {args.transport}")


def _config(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the endpoints. Raise InputError on a bad rate or time."""
    mtu_bytes = args.mtu or MrcConfig().mtu_bytes
    config: dict[str, Any] = {}
    if args.mtu is not None:
        config["mtu_bytes"] = mtu_bytes
    if find_transport(args.transport).kind == "mrc":
        config["exponential_retries"] = DEAD_PEER_RETRIES
        # By default, measure the endpoint's software: congestion control must not limit the rate.
        config["congestion"] = args.congestion or "fixed"
        config["path_policy"] = args.path_policy or "rotation"
    if args.rate_limit is not None:
        config["rate_bps"] = option_value(rate_bps, args.rate_limit, "--rate_limit")
        if not config["rate_bps"]:
            raise InputError("--rate_limit: it must be above 0")
    if args.congestion == "nscc":
        config["nscc"] = {}
        if args.base_rtt is not None:
            config["nscc"]["base_rtt_ns"] = option_value(time_ns, args.base_rtt, "--base-rtt")
            if not config["nscc"]["base_rtt_ns"]:
                raise InputError("--base-rtt: it must be above 0")
        if args.window is not None:
            config["nscc"]["max_cwnd_bytes"] = args.window * mtu_bytes
    elif args.window is not None:
        config["cwnd_bytes"] = args.window * mtu_bytes
    return config


def _measure(pair: PerfPair, args: argparse.Namespace, size: int) -> BandwidthResult | LatencyResult:
    iterations = args.iters
    if iterations is None:
        affordable = DEFAULT_BYTES // max(1, size) // args.qp
        iterations = max(10, min(DEFAULT_ITERATIONS[args.test], affordable))
    if args.test == "write_lat":
        return pair.ping_pong(size, iterations, min(WARM_UP, iterations))
    before = [0, 0]

    def told(elapsed_ns: int, completed: int) -> None:
        print(_interval(size, before, elapsed_ns, completed, gbits=args.report_gbits), flush=True)
        before[:] = elapsed_ns, completed

    return pair.bandwidth(
        size,
        iterations,
        args.tx_depth,
        both_ways=args.bidirectional,
        duration_s=args.duration,
        report_s=INTERVAL_S if args.duration is not None and not args.json else None,
        told=told,
    )


def _interval(size: int, before: Sequence[int], elapsed_ns: int, completed: int, *, gbits: bool) -> str:
    """Return a line about the first host's writes since ``before``.

    ``before`` is (time in ns, number of writes until this time).
    """
    since_ns, count = elapsed_ns - before[0], completed - before[1]
    mib_s = count * size * 1e9 / max(1, since_ns) / (1 << 20)
    rate = f"{mib_s * MIB_BITS / 1e9:.2f} Gb/sec" if gbits else f"{mib_s:.2f} MiB/sec"
    return f"  {before[0] / 1e9:.1f} to {elapsed_ns / 1e9:.1f} s: {count} writes, {rate}"


def _print_head(args: argparse.Namespace, topology: str, target: str, base_rtt_ns: int | None) -> None:
    name = "RDMA_Write BW Test" if args.test == "write_bw" else "RDMA_Write Latency Test"
    ways = "bidirectional " if args.bidirectional else ""
    print(LINE)
    print(f" {ways}{name}: {args.source} to {args.target}, topology {topology}, target {target}")
    depth = f", TX depth {args.tx_depth}" if args.test == "write_bw" else ""
    control = "" if args.congestion is None else f", congestion control {args.congestion}"
    if base_rtt_ns is not None:
        control += f" (base RTT {base_rtt_ns / 1e3:.0f} us, measured)"
    print(f" Transport {args.transport}, queue pairs {args.qp}{depth}{control}")
    print(LINE)
    header = BW_HEADER if args.test == "write_bw" else LAT_HEADER
    print(header.replace("MiB/sec", " Gb/sec") if args.report_gbits else header)


def _row(result: BandwidthResult | LatencyResult, *, gbits: bool) -> str:
    if isinstance(result, BandwidthResult):
        unit = MIB_BITS / 1e9 if gbits else 1.0
        return (
            f" {result.bytes:<10} {result.iterations:<14} {result.bw_peak_mib_s * unit:<19.2f} "
            f"{result.bw_average_mib_s * unit:<21.2f} {result.msg_rate_mpps:.6f}"
        )
    return (
        f" {result.bytes:<7} {result.iterations:<14} {result.t_min_us:<14.2f} {result.t_max_us:<12.2f} "
        f"{result.t_typical_us:<16.2f} {result.t_avg_us:<14.2f} {result.t_stdev_us:<15.2f} "
        f"{result.p99_us:<22.2f} {result.p99_9_us:.2f}"
    )


def _print_histogram(result: BandwidthResult | LatencyResult) -> None:
    """Print all latencies, sorted, as perftest's -H does: number, microseconds."""
    assert isinstance(result, LatencyResult)
    for number, time_us in enumerate(result.all_us):
        print(f" {number}, {time_us:.3f}")


def _document(
    args: argparse.Namespace,
    network: FabricNetwork,
    config: Mapping[str, Any],
    results: list[BandwidthResult | LatencyResult],
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
        "congestion": config.get("congestion"),
        "results": [_entry(result, everything=args.report_histogram) for result in results],
    }


def _entry(result: BandwidthResult | LatencyResult, *, everything: bool) -> dict[str, Any]:
    entry = asdict(result)
    if not everything:
        entry.pop("all_us", None)
    return entry
