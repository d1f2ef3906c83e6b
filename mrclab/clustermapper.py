"""``mrclab clustermapper``: probe the running fabric and print the bad links and switches."""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Mapping
from typing import Any

from rich.live import Live

from mrclab.linux.errors import InputError
from mrclab.terminal import offset_ns, terminal, time_of_day
from mrclab.testbed import state
from mrclab.testbed.clustermapper import denylist_file, probe
from mrclab.testbed.names import Names, require_root
from mrclab.topologies.units import option_value, time_ns

MIN_INTERVAL_NS = 100_000


def clustermapper(args: argparse.Namespace) -> int:
    """Probe until Ctrl-C, SIGTERM or the end of ``--for``. Raise InputError if no testbed is up."""
    interval_ns = option_value(time_ns, args.interval, "--interval")
    if interval_ns < MIN_INTERVAL_NS:
        raise InputError("--interval must be at least 100 us: a round of probes takes that long")
    ends = None
    if args.duration is not None:
        ends = time.monotonic_ns() + option_value(time_ns, args.duration, "--for")
    names = Names.from_environment()
    state.require(names)
    require_root("clustermapper")
    stopped: list[int] = []
    before = {n: signal.signal(n, lambda n, _: stopped.append(n)) for n in (signal.SIGINT, signal.SIGTERM)}

    def over() -> bool:
        return bool(stopped) or (ends is not None and time.monotonic_ns() >= ends)

    console = terminal()
    try:
        if args.json:
            probe(names, _print_json, over, interval_ns)
        elif console.is_terminal:
            page = Page(str(denylist_file(names)))
            with Live(page.shown(), console=console, auto_refresh=False, screen=True) as live:

                def show(event: Mapping[str, Any]) -> None:
                    page.add(event)
                    live.update(page.shown(console.height), refresh=True)

                probe(names, show, over, interval_ns)
            console.print(page.shown())
        else:
            print(f"denylist: {denylist_file(names)}", flush=True)
            probe(names, _print, over, interval_ns)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


class Page:
    """Clustermapper's state on one screen: bad links and switches, probe counts, newest events."""

    def __init__(self, denylist: str) -> None:
        self._denylist = denylist
        self._probing = "starting"
        self._counts = ""
        self._bad: dict[str, str] = {}
        self._events: list[str] = []

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event from `mrclab.testbed.clustermapper.probe` to the screen."""
        kind = event["event"]
        line = f"{time_of_day(event['t_ns'], offset_ns())}  {words_of(event)}"
        if kind == "probing":
            self._probing = words_of(event)
        elif kind == "verdict":
            self._bad[event["place"]] = line
        elif kind == "cleared":
            self._bad.pop(event["place"], None)
        elif kind not in ("deaf", "hearing"):
            self._counts = words_of(event)
            return
        self._events.append(line)

    def shown(self, rows: int = 24) -> str:
        """Return the text of the screen, with at most ``rows`` lines."""
        bad = list(self._bad.values())[: max(1, rows - 8)]
        more = len(self._bad) - len(bad)
        head = [f"clustermapper: {self._probing}", f"denylist: {self._denylist}", self._counts]
        now = [
            f"bad now: {len(self._bad)}" if self._bad else "nothing is bad",
            *(f"  {line}" for line in bad),
        ]
        now += [f"  and {more} more"] if more > 0 else []
        room = max(1, rows - len(head) - len(now) - 2)
        last = ["last events:", *(f"  {line}" for line in self._events[-room:])]
        return "\n".join([*head, *now, *last])


def _print_json(event: Mapping[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _print(event: Mapping[str, Any]) -> None:
    print(f"{time_of_day(event['t_ns'], offset_ns())}  {words_of(event)}", flush=True)


def words_of(event: Mapping[str, Any]) -> str:
    """Return the text that describes an event."""
    match event["event"]:
        case "probing":
            words = (
                f"{event['links']} links, {event['probes_per_round']} probes every {event['interval_us']} us"
            )
        case "verdict" if event["cause"] == "dead":
            since = (event["t_ns"] - event["first_loss_ns"]) / 1e6
            words = f"{event['place']} is dead: {event['losses']} probes lost, the first {since:.1f} ms ago"
        case "verdict":
            words = f"{event['place']} loses {event['ratio']:.2%} of probes ({event['losses']})"
        case "cleared":
            words = f"{event['place']} works again"
        case "deaf":
            words = "most probes do not come back: no link can be judged"
        case "hearing":
            words = "probes come back again"
        case _:
            words = (
                f"{event['sent']} probes sent, {event['lost']} lost, {event['skipped']} rounds skipped, "
                f"timeout of a probe {event['timeout_us'] / 1000:.1f} ms"
            )
    return words
