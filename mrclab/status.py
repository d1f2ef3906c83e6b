"""``mrclab status``: the running fabric and what its switches count."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from mrclab.control import ask
from testbed import state
from testbed.faults import KINDS
from testbed.names import Names


def status(*, as_json: bool) -> int:
    """Prints the state of the running testbed. Raises InputError where none is up."""
    names = Names.from_environment()
    record = state.require(names)
    answer = ask(names, {"do": "status"})
    answer["since"] = record.since
    if as_json:
        print(json.dumps(answer, indent=2))
        return 0
    console = Console()
    console.print(f"topology {answer['topology']} on {answer['target']}, up since {answer['since']}")
    console.print(_table(answer["switches"]))
    console.print(_queues(answer["switches"]))
    for where, fault in answer["faults"].items():
        console.print(f"fault: {where} {_fault(fault)}")
    if not answer["faults"]:
        console.print("no faults")
    return 0


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
    """The ports whose queue had something to say: frames marked, trimmed or refused."""
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
