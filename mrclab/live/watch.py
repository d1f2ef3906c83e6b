"""``mrclab watch``: show the data of the live page on one screen of a terminal."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mrclab.experiments.result.numbers import amount
from mrclab.hosts.rdma.events import EvState
from mrclab.linux.errors import InputError
from mrclab.terminal import terminal
from mrclab.testbed.names import Names

INTERVAL_S = 0.5
TIMES = ("first_loss", "detected", "rerouted", "recovered")
SIGNS = {
    EvState.UNKNOWN: ("?", "dim"),
    EvState.GOOD: ("#", "green"),
    EvState.SKIP: ("~", "yellow"),
    EvState.ASSUMED_BAD: ("X", "bold red"),
    EvState.DENIED: ("-", "dim"),
}


def watch(args: argparse.Namespace) -> int:
    """Show the data of this testbed's live page until Ctrl-C. Raise InputError if no live page is open."""
    names = Names.from_environment()
    if args.json or args.once:
        frame = _frame(names)
        print(json.dumps(frame)) if args.json else terminal().print(screen(frame))
        return 0
    console = terminal()
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                live.update(screen(_frame(names)), refresh=True)
                time.sleep(INTERVAL_S)
    except KeyboardInterrupt:
        return 0


def _frame(names: Names) -> dict[str, Any]:
    try:
        known = json.loads((names.state_dir / "live.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(
            "no live page is up here: run 'mrclab live' first (or 'mrclab status --watch')"
        ) from None
    request = urllib.request.Request(
        f"{known['address']}state", headers={"Authorization": f"Bearer {known['token']}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            state = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise InputError(json.loads(error.read())["error"]) from None
    except OSError:
        raise InputError("the live page does not answer: run 'mrclab live' again") from None
    if state["frame"] is None:
        raise InputError("the live page has not seen anything yet: try again in a second")
    return {"topology": state["about"]["topology"], **state["frame"]}


def screen(frame: Mapping[str, Any]) -> Group:
    """Return one screen with rates, paths, faults and the times of the last fault."""
    rates = Table(box=None, header_style="bold")
    for heading in ("transport", "delivered", "sent again", "gave up", "paths of the flow shown"):
        rates.add_column(
            heading, justify="left" if heading in ("transport", "paths of the flow shown") else "right"
        )
    for name, one in frame["transports"].items():
        total = sum(flow[2] for flow in one["flows"])
        rates.add_row(
            one["label"],
            amount(total / 1e6, "delivered_mbps"),
            f"{one['resent']:,}",
            str(one["restarts"]),
            _paths(frame["paths"].get(name, ())),
        )
    parts: list[Any] = [f"live on {frame['topology']}, {frame['t_ms'] / 1000:.1f} s", rates]
    parts += [f"fault: {where} {fault['text']}" for where, fault in frame["faults"].items()] or ["no faults"]
    if frame["cards"]:
        parts.append(_last(frame["cards"][-1], frame["transports"]))
    return Group(*parts)


def _paths(rows: Any) -> Text:
    signs = Text()
    for row in rows:
        sign, style = SIGNS[EvState(row[2])]
        signs.append(sign if row[3] or row[2] != EvState.GOOD else ".", style)
    return signs


def _last(card: Mapping[str, Any], transports: Mapping[str, Any]) -> Table:
    table = Table(
        box=None, header_style="bold", title=f"{card['where']}: {card['text']}", title_justify="left"
    )
    table.add_column("since the fault")
    for name in TIMES:
        table.add_column(name.replace("_", " "), justify="right")
    for name, result in card["results"].items():
        label = transports[name]["label"] if name in transports else name
        if not result["felt"]:
            table.add_row(label, "not felt")
            continue
        table.add_row(label, *(amount(result[f"{key}_us"], f"{key}_us") for key in TIMES))
    return table
