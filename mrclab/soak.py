"""``mrclab soak``: streams under random faults for as long as one likes, and a verdict on every byte."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from experiments.spec.soak_plan import load_soak
from mrclab.output import asked_for, directory, removed_if_refused
from switches.target import select_target
from testbed.doctor import require_machine
from topologies import load_fabric

MIB = 1 << 20


def soak(args: argparse.Namespace) -> int:
    """Runs a soak. Everything that can be wrong with the input is found before anything is touched."""
    plan = load_soak(
        args.soak,
        args.set,
        topology=args.topology,
        target=args.target,
        duration=args.duration,
        seed=args.seed,
    )
    fabric = load_fabric(plan.topology)
    plan.streams(fabric)
    select_target(plan.target)
    require_machine()
    from experiments.run.soak import run_soak

    out = directory(args.out, plan.name)
    console = Console(soft_wrap=True)
    console.print(f"[bold]{plan.name}[/bold] on {fabric.name}: {plan.description}")
    again = asked_for(args, args.soak, ("topology", "target", "duration", "seed"))
    with removed_if_refused(out):
        result = run_soak(plan, fabric, plan.target, out, arguments=again, say=console.print)
    print_soak(result, console)
    console.print(f"results: {out}")
    return 0 if result["integrity"] == "ok" else 1


def print_soak(result: Mapping[str, Any], console: Console) -> None:
    """Prints what was sent, what was broken, what memory did, and the verdict."""
    totals = result["totals"]
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1))
    table.add_row("traffic", f"{result['duration_s']:.0f} s, {len(result['streams'])} streams")
    table.add_row("messages", f"{totals['delivered_messages']:,} of {totals['messages']:,} delivered")
    table.add_row("bytes", f"{totals['delivered_bytes']:,} of {totals['bytes']:,} delivered")
    table.add_row("bytes placed", f"{totals['placed_bytes']:,}")
    table.add_row(
        "packets",
        f"{totals['packets_sent']:,} sent, {totals['packets_lost']:,} taken for lost "
        f"({totals['losses_spurious']:,} wrongly), {totals['duplicates_received']:,} came twice",
    )
    faults = ", ".join(f"{count:,} {kind}" for kind, count in result["faults"].items())
    table.add_row("faults", f"{sum(result['faults'].values()):,}: {faults}")
    for name, memory in result["memory"].items():
        growth = memory["growth_bytes"]
        grew = "too short to tell growth" if growth is None else f"trend {growth / MIB:+.2f} MiB"
        table.add_row(
            f"memory of {name}",
            f"{memory['first_bytes'] / MIB:.1f} MiB at first, {memory['last_bytes'] / MIB:.1f} at last, "
            f"{memory['max_bytes'] / MIB:.1f} at most; {grew}",
        )
    console.print(table)
    if result["integrity"] == "ok":
        console.print("Every byte was delivered exactly once.", style="green")
    else:
        console.print(f"FAILED: {result['integrity']}", style="bold red")
        console.print(f"seed {result['seed']}; the same again: {result['reproduce']}")
