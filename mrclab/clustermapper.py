"""``mrclab clustermapper``: probe the running fabric and print what is bad."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from linux.errors import InputError, MachineError
from testbed import state
from testbed.clustermapper import denylist_file, probe
from testbed.names import Names
from topologies.units import option_value, time_ns

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
    if os.geteuid() != 0:
        raise MachineError("not root: run it as root (sudo mrclab clustermapper)")
    stopped: list[int] = []
    before = {n: signal.signal(n, lambda n, _: stopped.append(n)) for n in (signal.SIGINT, signal.SIGTERM)}
    say = _print_json if args.json else _print
    try:
        if not args.json:
            print(f"denylist: {denylist_file(names)}", flush=True)
        probe(
            names,
            say,
            lambda: bool(stopped) or (ends is not None and time.monotonic_ns() >= ends),
            interval_ns,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _print_json(event: Mapping[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _print(event: Mapping[str, Any]) -> None:
    at = f"{event['t_ns'] / 1e9:.6f}"
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
    print(f"{at}  {words}", flush=True)
