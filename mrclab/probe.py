"""``mrclab probe``: send path probes out and back, and print the record of every switch on the path."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from hosts.path_probe import Echo, PathProber, ProbedPath, probed_paths, since_previous_us
from linux import namespaces
from linux.errors import InputError, MachineError
from switches.capabilities import capabilities_of
from testbed import state
from testbed.names import Names
from topologies import Fabric

MAX_COUNT = 100_000


def probe(args: argparse.Namespace) -> int:
    """Probe and print. Return 1 if a path lost all probes. Raise InputError for unknown hosts or paths."""
    names = Names.from_environment()
    record = state.require(names)
    fabric = record.fabric()
    paths = _chosen(fabric, args)
    if not 1 <= args.count <= MAX_COUNT:
        raise InputError(f"-n is from 1 to {MAX_COUNT}, not {args.count}")
    if os.geteuid() != 0:
        raise MachineError("not root: run it as root (sudo mrclab probe ...)")
    with namespaces.inside(names.host(args.source)):
        prober = PathProber(fabric, args.source)
    with prober:
        found = [(path, [prober.probe(path) for _ in range(args.count)]) for path in paths]
    one_clock = capabilities_of(record.target).one_clock
    if args.json:
        print(json.dumps([_document(path, echoes) for path, echoes in found], indent=1))
    else:
        console = Console()
        for path, echoes in found:
            _show(console, path, [e for e in echoes if e is not None], len(echoes), one_clock)
    return 0 if all(any(echoes) for _, echoes in found) else 1


def _chosen(fabric: Fabric, args: argparse.Namespace) -> tuple[ProbedPath, ...]:
    hosts = {host.name for host in fabric.hosts}
    for host in (args.source, args.target):
        if host is not None and host not in hosts:
            raise InputError(f"no host '{host}' in topology {fabric.name}")
    if args.source == args.target:
        raise InputError(f"{args.source} has no path to itself")
    paths = probed_paths(fabric, args.source, args.target)
    if args.path is not None:
        chosen = tuple(path for path in paths if args.path in path.switches)
        if not chosen:
            raise InputError(f"no path uses '{args.path}': give a switch on the path, such as a T1")
        return chosen
    return paths if args.all else paths[:1]


def _show(console: Console, path: ProbedPath, echoes: list[Echo], sent: int, one_clock: bool) -> None:
    console.print(f"{path.host} > {' > '.join(path.switches)} > {path.host}: {len(echoes)} of {sent} back")
    if not echoes:
        return
    table = Table(box=None, header_style="bold")
    for head in ("hop", "switch", "port in", "port out", "queue wait", "since previous (median)"):
        table.add_column(head, justify="left" if head == "switch" else "right")
    steps = [statistics.median(times) for times in zip(*map(since_previous_us, echoes), strict=True)]
    for number, hop in enumerate(echoes[-1].hops, 1):
        step = f"{steps[number - 1]:.1f} us" if one_clock else ""
        wait = f"{hop.queue_wait_us:.1f} us"
        table.add_row(str(number), hop.switch, str(hop.port_in), str(hop.port_out), wait, step)
    table.add_row("", path.host, "", "", "", f"{steps[-1]:.1f} us" if one_clock else "")
    console.print(table)
    rtts = sorted(echo.rtt_ns / 1000 for echo in echoes)
    p99 = rtts[min(len(rtts) - 1, round(0.99 * (len(rtts) - 1)))]
    spread = f"median {statistics.median(rtts):.1f}, p99 {p99:.1f}, max {rtts[-1]:.1f}"
    console.print(f"rtt us: min {rtts[0]:.1f}, {spread} (n={len(rtts)})")


def _document(path: ProbedPath, echoes: list[Echo | None]) -> dict[str, object]:
    return {
        "host": path.host,
        "plane": path.plane,
        "switches": path.switches,
        "sent": len(echoes),
        "probes": [asdict(e) | {"rtt_ns": e.rtt_ns} for e in echoes if e is not None],
    }
