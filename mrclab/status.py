"""``mrclab status``: the running fabric and what its switches count."""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from controller.fault_kinds import KINDS
from mrclab.control import call
from testbed import state
from testbed.names import Names

FILE_WIDTH = 160


def status(*, as_json: bool, ports: bool = False, sids: bool = False, watch_s: float | None = None) -> int:
    """Print the state of the running testbed; with ``watch_s`` repeatedly, with rates per second.

    Raises InputError where none is up.
    """
    names = Names.from_environment()
    since = state.require(names).since
    if watch_s is not None:
        _watch(names, since, watch_s)
        return 0
    answer = call(names, "status") | {"since": since}
    if as_json:
        print(json.dumps(answer, indent=2))
        return 0
    _console().print(_page(answer, None, ports=ports, sids=sids))
    return 0


def _watch(names: Names, since: str, interval_s: float) -> None:
    before: dict[str, Any] | None = None
    console = _console()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        show = console.print
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
            show = partial(live.update, refresh=True)
        while True:
            answer = call(names, "status", verify=False) | {"since": since}
            show(_page(answer, before, ports=True, sids=False))
            before = answer
            time.sleep(interval_s)


def _console() -> Console:
    """Return a console for the terminal, or for a file, in which lines are not wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def _page(answer: dict[str, Any], before: dict[str, Any] | None, *, ports: bool, sids: bool) -> Group:
    switches = answer["switches"]
    parts: list[Any] = [f"topology {answer['topology']} on {answer['target']}, up since {answer['since']}"]
    if before is None:
        parts += [_table(switches), _queues(switches)]
    if ports or before is not None:
        parts.append(_ports(answer, before))
    if sids:
        parts.append(_sids(switches))
    parts += [f"fault: {where} {_fault(fault)}" for where, fault in answer["faults"].items()] or ["no faults"]
    return Group(*parts)


def _ports(answer: dict[str, Any], before: dict[str, Any] | None) -> Table:
    """Every port: frames and bytes in and out and what its queue did, in all, or a second where it was
    ``before``; ports with nothing to say are left out then."""
    per_s = 1.0 if before is None else max(1e-9, (answer["t_ns"] - before["t_ns"]) / 1e9)
    unit = "" if before is None else "/s"
    table = Table(box=None, header_style="bold")
    table.add_column("port", no_wrap=True)
    heads = (
        "in",
        "bytes in",
        "high in",
        "out",
        "bytes out",
        "high out",
        "marked",
        "trimmed",
        "refused",
        "dropped",
    )
    for head in (*heads, ""):
        table.add_column(head + unit if head else "longest wait", justify="right")
    for name, switch in answer["switches"].items():
        counters = switch["counters"]
        old = before["switches"][name]["counters"] if before is not None else None
        for port in counters["rx"] if counters is not None else ():
            now = _port_counts(counters, port)
            then = _port_counts(old, port) if old is not None else [0] * len(now)
            grown = [max(0, a - b) for a, b in zip(now, then, strict=True)]
            if before is None or any(grown):
                wait = counters["queues"][port]["longest_wait_us"]
                cells = (f"{count / per_s:,.0f}" for count in grown)
                table.add_row(f"{name}-eth{port}", *cells, "" if wait is None else f"{wait:.0f} us")
    return table


def _port_counts(counters: dict[str, Any], port: str) -> list[int]:
    rx, tx, queue = counters["rx"][port], counters["tx"][port], counters["queues"][port]
    high = counters["rx_high"][port]["packets"]
    dropped = sum(count["packets"] for count in counters["port_drops"][port].values())
    counts = [rx["packets"], rx["bytes"], high, tx["packets"], tx["bytes"]]
    counts += [queue[what]["packets"] for what in ("high", "marked", "trimmed", "refused")]
    return [*counts, dropped]


def _sids(switches: dict[str, Any]) -> Table:
    """Return the hits of every SID of every switch: its own, and those of the neighbours that it sent to."""
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


def _table(switches: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("switch", "device", "P4Runtime", "state", "rx frames", "tx frames", "drops"):
        table.add_column(heading, justify="right" if heading.endswith("frames") else "left")
    for name, switch in switches.items():
        counters = switch["counters"]
        if counters is None:
            table.add_row(name, str(switch["device_id"]), switch["p4runtime"], "not answering", "", "", "")
            continue
        drops = ", ".join(f"{reason} {count['packets']}" for reason, count in counters["drops"].items())
        restarts = switch["programmed"] - 1
        condition = switch["drift"] or ("as programmed" + (f", {restarts} restarts" if restarts else ""))
        table.add_row(
            name,
            str(switch["device_id"]),
            switch["p4runtime"],
            condition,
            str(sum(count["packets"] for count in counters["rx"].values())),
            str(sum(count["packets"] for count in counters["tx"].values())),
            drops or "none",
        )
    return table
