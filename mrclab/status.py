"""``mrclab status``: show the running fabric and the counters of its switches."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from mrclab.control import call
from mrclab.faults.kinds import KINDS
from mrclab.linux.errors import InputError
from mrclab.linux.link_monitor import UP
from mrclab.terminal import terminal
from mrclab.testbed import state
from mrclab.testbed.names import Names
from mrclab.topologies.units import option_value, time_ns

FILE_WIDTH = 160
LEAST_WATCH_S = 0.05
"""The shortest interval of ``--watch``: without a pause the testbed would only answer status requests."""
WELL, NONE = "as programmed", "none"
OTHER_ROWS = 5
"""The number of output lines that are not in the table of switches."""
MOST_PORTS = 16
"""The largest number of listed ports that are not up. Further ports that are not up are only counted."""


def status(args: argparse.Namespace) -> int:
    """Print the state of the running testbed. With ``--watch``, print it repeatedly, with rates per second.

    Raise InputError if no testbed is up, or the interval is not a time.
    """
    watch_s = _interval_s(args.watch) if args.watch is not None else None
    names = Names.from_environment()
    since = state.require(names).since
    if watch_s is not None:
        _watch(names, since, watch_s)
        return 0
    answer = call(names, "status") | {"since": since}
    if args.json:
        print(json.dumps(answer, indent=2))
        return 0
    console = _console()
    rows = console.height if console.is_terminal and not (args.ports or args.sids) else None
    console.print(page(answer, ports=args.ports, sids=args.sids, rows=rows))
    return 0


def _interval_s(words: str) -> float:
    """Return an interval in seconds. A number without a unit means seconds, as for watch(1)."""
    given = f"{words} s" if words.replace(".", "", 1).isdigit() else words
    interval_s = option_value(time_ns, given, "--watch") / 1e9
    if interval_s < LEAST_WATCH_S:
        raise InputError(f"--watch: at least {LEAST_WATCH_S:g} s, not '{words}'")
    return interval_s


def _watch(names: Names, since: str, interval_s: float) -> None:
    before: dict[str, Any] | None = None
    console = _console()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        show = console.print
        rows = None
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
            show = partial(live.update, refresh=True)
            rows = console.height
        while True:
            answer = call(names, "status", verify=False) | {"since": since}
            show(screen(answer, before, rows))
            before = answer
            time.sleep(interval_s)


def _console() -> Console:
    """Return a console for the terminal or a file. In a file, lines are not wrapped."""
    console = terminal()
    return console if console.is_terminal else terminal(width=FILE_WIDTH)


def page(
    answer: dict[str, Any], *, ports: bool = False, sids: bool = False, rows: int | None = None
) -> Group:
    """Return the output of ``status``. If it has more than ``rows`` lines, show tiers instead of switches."""
    switches = answer["switches"]
    table = _table(switches, answer["ports"])
    if rows is not None and table.row_count + OTHER_ROWS > rows:
        table = _tiers(switches, answer["ports"])
    parts: list[Any] = [_head(answer), table, _queues(switches)]
    if ports:
        parts.append(_ports(answer))
    if sids:
        parts.append(_sids(switches))
    return Group(*parts, *_broken(answer))


def _head(answer: dict[str, Any]) -> str:
    return f"topology {answer['topology']} on {answer['target']}, up since {answer['since']}"


def _broken(answer: dict[str, Any]) -> list[str]:
    """Return a line for each fault and for each port that is not up."""
    lines = [f"fault: {where} {_fault(fault)}" for where, fault in answer["faults"].items()] or ["no faults"]
    not_up = [(port, state) for port, state in answer["ports"].items() if state != UP]
    lines += [f"port {port}: {state}" for port, state in not_up[:MOST_PORTS]]
    if len(not_up) > MOST_PORTS:
        lines.append(f"and {len(not_up) - MOST_PORTS} more ports are not up (--json has all)")
    return lines


def screen(answer: dict[str, Any], before: dict[str, Any] | None, rows: int | None = None) -> Group:
    """Return the faults, and the ports' rates since the answer ``before``, in at most ``rows`` lines.

    If ``before`` is None, omit the rates. Ports that marked, trimmed or dropped frames come first, then the
    busiest ports.
    """
    broken = _broken(answer)
    switches = answer["switches"].values()
    answering = sum(switch["counters"] is not None for switch in switches)
    head = f"{_head(answer)}; {answering} of {len(switches)} switches answer"
    if before is None:
        return Group(head, *broken)
    per_s = max(1e-9, (answer["t_ns"] - before["t_ns"]) / 1e9)
    busy = []
    for name, port, grown, wait in _growth(answer, before):
        if any(grown):
            busy.append((sum(grown[6:]) > 0, grown[1] + grown[4], f"{name}-eth{port}", grown, wait))
    busy.sort(key=lambda row: row[:2], reverse=True)
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for column in (
        "port",
        "in/s",
        "Mbit/s",
        "out/s",
        "Mbit/s",
        "marked",
        "trimmed",
        "refused",
        "dropped",
        "wait",
    ):
        table.add_column(column, no_wrap=True, justify="left" if column == "port" else "right")
    room = len(busy) if rows is None else max(1, rows - len(broken) - 4)
    for _, _, port, grown, wait in busy[:room]:
        packets_in, bytes_in, _, packets_out, bytes_out, _, *queue = (count / per_s for count in grown)
        rates = (packets_in, bytes_in * 8e-6, packets_out, bytes_out * 8e-6)
        cells = [f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" for rate in rates]
        cells += [f"{count:,.0f}" if count else "" for count in queue]
        table.add_row(port, *cells, "" if wait is None else f"{wait:.0f} us")
    quiet = len(answer["ports"]) - len(busy)
    left = f"{len(busy) - room} busy ports more; " if len(busy) > room else ""
    return Group(head, *broken, table, f"{left}{quiet} ports without traffic")


def _growth(
    answer: dict[str, Any], before: dict[str, Any] | None
) -> Iterator[tuple[str, str, list[int], float | None]]:
    """Yield for every port: switch, port number, increase of the counters, longest wait of a frame in us."""
    for name, switch in answer["switches"].items():
        counters = switch["counters"]
        old = before["switches"][name]["counters"] if before is not None else None
        for port in counters["rx"] if counters is not None else ():
            now = _port_counts(counters, port)
            then = _port_counts(old, port) if old is not None else [0] * len(now)
            grown = [max(0, a - b) for a, b in zip(now, then, strict=True)]
            yield name, port, grown, counters["queues"][port]["longest_wait_us"]


def _ports(answer: dict[str, Any]) -> Table:
    """Return a row for every port: frames and bytes in and out, the counters of its queue, and its state."""
    table = Table(box=None, header_style="bold")
    table.add_column("port", no_wrap=True)
    heads = ("in", "bytes in", "high in", "out", "bytes out", "high out", "marked", "trimmed", "refused")
    for head in (*heads, "dropped", "longest wait", "state"):
        table.add_column(head, justify="right")
    for name, port, counts, wait in _growth(answer, None):
        cells = (f"{count:,}" for count in counts)
        state = answer["ports"].get(f"{name}-eth{port}", "")
        table.add_row(f"{name}-eth{port}", *cells, "" if wait is None else f"{wait:.0f} us", state)
    return table


def _port_counts(counters: dict[str, Any], port: str) -> list[int]:
    rx, tx, queue = counters["rx"][port], counters["tx"][port], counters["queues"][port]
    high = counters["rx_high"][port]["packets"]
    dropped = sum(count["packets"] for count in counters["port_drops"][port].values())
    counts = [rx["packets"], rx["bytes"], high, tx["packets"], tx["bytes"]]
    counts += [queue[what]["packets"] for what in ("high", "marked", "trimmed", "refused")]
    return [*counts, dropped]


def _sids(switches: dict[str, Any]) -> Table:
    """Return how often each switch used each SID. A SID names the switch itself or the next node."""
    table = Table(box=None, header_style="bold")
    for head in ("switch", "SID", "frames", "bytes"):
        table.add_column(head, justify="right" if head in ("frames", "bytes") else "left")
    for name, switch in switches.items():
        for sid, count in (switch["counters"] or {"sids": {}})["sids"].items():
            table.add_row(name, sid, f"{count['packets']:,}", f"{count['bytes']:,}")
    return table


def _fault(fault: dict[str, Any]) -> str:
    takes = KINDS[fault["kind"]].takes
    words = [str(fault["kind"])]
    if "ratio" in takes:
        words.append(f"{fault['ratio']:.4%}")
    if "direction" in takes:
        words.append(f"({fault['direction']})")
    if fault["times_down"] > 1:
        words.append(f"{fault['times_down']} times")
    return " ".join(words)


def _queues(switches: dict[str, Any]) -> Table | str:
    """Return the ports whose queue marked, trimmed or refused frames."""
    table = Table(box=None, header_style="bold")
    headings = ("port", "tx frames", "high class", "marked", "trimmed", "refused", "longest wait")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "port" else "right")
    for name, switch in switches.items():
        counters = switch["counters"]
        for port, queue in counters["queues"].items() if counters is not None else ():
            counts = [queue[what]["packets"] for what in ("marked", "trimmed", "refused")]
            if any(counts):
                wait = queue["longest_wait_us"]
                table.add_row(
                    f"{name}-eth{port}",
                    str(counters["tx"][port]["packets"]),
                    str(queue["high"]["packets"]),
                    *map(str, counts),
                    "" if wait is None else f"{wait:.0f} us",
                )
    return table if table.row_count else "no frame marked, trimmed or refused by a queue"


def _tiers(switches: dict[str, Any], ports: dict[str, str]) -> Table:
    """Return one row for each plane and tier, and one row for each switch with a problem."""
    table = Table(box=None, header_style="bold")
    for heading in ("switches", "state", "rx frames", "tx frames", "drops"):
        table.add_column(heading, justify="right" if heading.endswith("frames") else "left")
    well: dict[str, list[tuple[str, ...]]] = {}
    for cells in _rows(switches, ports):
        name, _, _, condition, rx, tx, drops = cells
        if (condition, drops) == (WELL, NONE):
            well.setdefault(name.rpartition("-")[0], []).append(cells)
        else:
            table.add_row(name, condition, rx, tx, drops)
    for tier, found in well.items():
        name = found[0][0] if len(found) == 1 else f"{tier}-*: {len(found)}"
        rx, tx = (str(sum(int(cells[column]) for cells in found)) for column in (4, 5))
        table.add_row(name, WELL, rx, tx, NONE)
    return table


def _table(switches: dict[str, Any], ports: dict[str, str]) -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("switch", "device", "P4Runtime", "state", "rx frames", "tx frames", "drops"):
        table.add_column(heading, justify="right" if heading.endswith("frames") else "left")
    for cells in _rows(switches, ports):
        table.add_row(*cells)
    return table


def _rows(switches: dict[str, Any], ports: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield for each switch: name, device id, P4Runtime address, state, frames in and out, and drops."""
    for name, switch in switches.items():
        counters = switch["counters"]
        if counters is None:
            yield name, str(switch["device_id"]), switch["p4runtime"], "not answering", "", "", ""
            continue
        drops = ", ".join(f"{reason} {count['packets']}" for reason, count in counters["drops"].items())
        restarts = switch["programmed"] - 1
        condition = switch["drift"] or (WELL + (f", {restarts} restarts" if restarts else ""))
        not_up = sum(state != UP for port, state in ports.items() if port.startswith(f"{name}-eth"))
        condition += f", {not_up} ports not up" if not_up > 1 else ", 1 port not up" if not_up else ""
        rx, tx = (str(sum(count["packets"] for count in counters[way].values())) for way in ("rx", "tx"))
        yield name, str(switch["device_id"]), switch["p4runtime"], condition, rx, tx, drops or NONE
