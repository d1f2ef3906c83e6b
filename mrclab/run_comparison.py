"""``mrclab run`` of a scenario that compares transports."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.comparison import Comparison, load_comparison
from experiments.plan import plan_text
from mrclab.output import directory
from switches.errors import MachineError
from switches.target import select_target
from testbed.doctor import require_machine
from topologies import InputError


def run_comparison(args: argparse.Namespace) -> int:
    """Runs it, or prints its plan. What is wrong with the input is found before anything is touched."""
    comparison = load_comparison(
        args.scenario,
        topology=args.topology,
        target=args.target,
        repetitions=args.trials,
        seed=args.seed,
        settings=args.set,
    )
    comparison.check_against(comparison.fabric())
    plan = plan_text(comparison)
    if args.dry_run:
        print(plan)
        return 0
    select_target(comparison.target)
    require_machine()
    out = directory(args.out, comparison.name)
    result = compare_transports(comparison, out, Console())
    return 0 if result["integrity"] == "ok" else 1


def compare_transports(comparison: Comparison, out: Path, console: Console) -> dict[str, Any]:
    """Runs a comparison with its progress on a terminal; returns what it wrote to result.json."""
    from controller.pipeline import shipped_pipeline
    from experiments.comparison_result import comparison_result
    from experiments.comparison_table import render_comparison_result
    from experiments.figures.verdict import judge
    from experiments.page.write import write_report
    from experiments.result import save_result
    from experiments.runner import run_sessions
    from experiments.system import describe_system

    fabric = comparison.fabric()
    console.print(f"[bold]{comparison.name}[/bold] on {fabric.name}: {comparison.description}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    total = comparison.repetitions * len(comparison.transports)
    try:
        with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
            task = progress.add_task("repetitions", total=total)
            target, repetitions = run_sessions(
                comparison,
                out,
                say=progress.console.print,
                step=lambda done: progress.update(task, completed=done),
            )
    except (InputError, MachineError):
        shutil.rmtree(out)  # nothing was measured
        raise
    system = describe_system(shipped_pipeline().json)
    result = comparison_result(comparison, target, fabric.name, repetitions, system)
    if comparison.figure:
        result["verdict"] = judge(comparison.figure, result)
    save_result(out, result)
    write_report(out)
    console.print(render_comparison_result(result))
    console.print(f"results: {out}")
    return result
