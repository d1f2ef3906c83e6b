"""``mrclab probe``: send probes out and back over paths, and print what each switch on the path recorded."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table

from mrclab.hosts.path_probe import Echo, PathProber, ProbedPath, probed_paths, since_previous_us
from mrclab.linux import namespaces
from mrclab.linux.errors import InputError
from mrclab.p4src.targets import capabilities_of
from mrclab.terminal import terminal
from mrclab.testbed import state
from mrclab.testbed.names import Names, require_root
from mrclab.topologies import Fabric

MAX_COUNT = 100_000
MOST_PATHS = 32
"""The largest number of printed paths. If there are more, only the worst paths are printed."""


def probe(args: argparse.Namespace) -> int:
    """Probe paths and print the results. Return 1 if a path lost all probes.

    Raise InputError for unknown hosts or paths.
    """
    names = Names.from_environment()
    record = state.require(names)
    fabric = record.fabric()
    paths = _chosen(fabric, args)
    if not 1 <= args.count <= MAX_COUNT:
        raise InputError(f"-n is from 1 to {MAX_COUNT}, not {args.count}")
    require_root("probe ...")
    with namespaces.inside(names.host(args.source)):
        prober = PathProber(fabric, args.source)
    with prober:
        found = [(path, [prober.probe(path) for _ in range(args.count)]) for path in paths]
    one_clock = capabilities_of(record.target).one_clock
    if args.json:
        print(json.dumps([_document(path, echoes) for path, echoes in found], indent=1))
    else:
        console = terminal()
        if len(found) == 1:
            path, echoes = found[0]
            _show(console, path, [e for e in echoes if e is not None], len(echoes), one_clock)
        else:
            console.print(all_paths(found, one_clock))
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


def all_paths(found: Sequence[tuple[ProbedPath, Sequence[Echo | None]]], one_clock: bool) -> Group:
    """Return a row for each path, within 80 columns. If there are many, show only lossy and slow paths."""
    rows = [(path, [echo for echo in echoes if echo is not None], len(echoes)) for path, echoes in found]
    shown = rows
    if len(rows) > MOST_PATHS:
        worst = sorted(rows, key=lambda row: (len(row[1]) == row[2], -_median_us(row[1])))[:MOST_PATHS]
        shown = [row for row in rows if row in worst]
    first = found[0][0]
    last = {path.switches[len(path.switches) // 2] for path, _ in found}
    to = f" to {last.pop()} and back" if len(last) == 1 else ""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=0)
    table.add_column(f"from {first.host}{to} over", no_wrap=True)
    for head in ("back", "min", "median", "p99", "max us"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("slowest step" if one_clock else "", no_wrap=True)
    for path, echoes, sent in shown:
        turn = len(path.switches) // 2
        name = " ".join(path.switches[: turn + 1])
        cells = ["-"] * 4
        if echoes:
            rtts = sorted(echo.rtt_ns / 1000 for echo in echoes)
            p99 = rtts[min(len(rtts) - 1, round(0.99 * (len(rtts) - 1)))]
            cells = [f"{value:,.1f}" for value in (rtts[0], statistics.median(rtts), p99, rtts[-1])]
        table.add_row(
            name,
            f"{len(echoes)} of {sent}",
            *cells,
            _slowest(path, echoes) if one_clock and echoes else "",
            style="" if len(echoes) == sent else "bold red",
        )
    parts: list[RenderableType] = [table]
    if len(shown) < len(rows):
        medians = [_median_us(echoes) for _, echoes, _ in rows if echoes]
        parts.append(
            f"{len(shown)} of {len(rows)} paths, the slowest and those that lose; medians of all: "
            f"{min(medians, default=0):,.1f} to {max(medians, default=0):,.1f} us (--json has all)"
        )
    return Group(*parts)


def _median_us(echoes: Sequence[Echo]) -> float:
    return statistics.median(echo.rtt_ns / 1000 for echo in echoes) if echoes else math.inf


def _slowest(path: ProbedPath, echoes: Sequence[Echo]) -> str:
    """Return the hop with the longest median time, as text with the switch or host at the end of the hop."""
    steps = [statistics.median(times) for times in zip(*map(since_previous_us, echoes), strict=True)]
    number = max(range(len(steps)), key=steps.__getitem__)
    way = "" if number <= len(path.switches) // 2 else " back"
    return f"{steps[number]:.1f} us to {(*path.switches, path.host)[number]}{way}"


def _document(path: ProbedPath, echoes: list[Echo | None]) -> dict[str, object]:
    return {
        "host": path.host,
        "plane": path.plane,
        "switches": path.switches,
        "sent": len(echoes),
        "probes": [asdict(e) | {"rtt_ns": e.rtt_ns} for e in echoes if e is not None],
    }
