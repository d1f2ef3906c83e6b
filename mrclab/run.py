"""``mrclab run``: from a scenario to a result directory and a table."""

from __future__ import annotations

import argparse

from rich.console import Console

from experiments.spec.comparison import is_comparison
from experiments.spec.scenario import load_scenario
from linux.errors import InputError
from mrclab.output import directory, progress, removed_if_refused, repeat
from mrclab.run_comparison import run_comparison
from mrclab.run_figures import FIGURES, run_figures
from switches.target import select_target
from testbed.doctor import require_machine
from topologies import load_fabric


def run(args: argparse.Namespace) -> int:
    """Runs a scenario. Everything that can be wrong with the input is found before anything is touched."""
    if args.scenario == FIGURES:
        return run_figures(args)
    if is_comparison(args.scenario):
        return run_comparison(args)
    if args.dry_run:
        raise InputError("--dry-run is for scenarios that compare transports")
    scenario = load_scenario(
        args.scenario,
        topology=args.topology,
        target=args.target,
        trials=args.trials,
        seed=args.seed,
        settings=args.set,
    )
    fabric = load_fabric(scenario.topology)
    scenario.check_against(fabric)
    select_target(scenario.target)
    require_machine()
    # Only now: gRPC and the plots take half a second to import, and bad input need not wait for it.
    from experiments.report.table import print_result
    from experiments.run.link_kill import run_link_kill

    out = directory(args.out, scenario.name)

    console = Console()
    console.print(f"[bold]{scenario.name}[/bold] on {fabric.name}: {scenario.description}")
    with removed_if_refused(out), progress(console, "trials", scenario.trials) as (say, step):
        result = run_link_kill(
            scenario, fabric, scenario.target, out, say=say, step=step, command=repeat(args, args.scenario)
        )
    print_result(result, console)
    console.print(f"results: {out}")
    return 0 if result["integrity"] == "ok" else 1
