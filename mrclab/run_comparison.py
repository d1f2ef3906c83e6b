"""``mrclab run`` of a scenario that compares transports."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.spec.comparison import Comparison, load_comparison
from mrclab.output import directory, progress, removed_if_refused, repeat
from switches.target import select_target
from testbed.doctor import require_machine


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
    # Only now: it takes numpy, and bad input need not wait for that.
    from experiments.spec.plan import plan_text

    plan = plan_text(comparison)
    if args.dry_run:
        print(plan)
        return 0
    select_target(comparison.target)
    require_machine()
    out = directory(args.out, comparison.name)
    result = compare_transports(comparison, out, Console(), repeat(args, args.scenario))
    return 0 if result["integrity"] == "ok" else 1


def compare_transports(
    comparison: Comparison, out: Path, console: Console, command: Sequence[str]
) -> dict[str, Any]:
    """Runs a comparison with its progress on a terminal; returns what it wrote to result.json.

    ``command`` is what asks for the same again.
    """
    from controller.pipeline import shipped_pipeline
    from experiments.figures.verdict import judge
    from experiments.report.comparison_result import comparison_result
    from experiments.report.comparison_table import render_comparison_result
    from experiments.report.page.write import write_report
    from experiments.report.result import save_result
    from experiments.run.runner import run_sessions
    from experiments.run.system import describe_system

    fabric = comparison.fabric()
    console.print(f"[bold]{comparison.name}[/bold] on {fabric.name}: {comparison.description}")
    total = comparison.repetitions * len(comparison.transports)
    with removed_if_refused(out), progress(console, "repetitions", total) as (say, step):
        target, repetitions = run_sessions(comparison, out, say=say, step=step)
    system = describe_system(shipped_pipeline().json)
    result = comparison_result(comparison, target, fabric.name, repetitions, system)
    result["command"] = list(command)
    if comparison.figure:
        result["verdict"] = judge(comparison.figure, result)
    save_result(out, result)
    write_report(out)
    console.print(render_comparison_result(result))
    console.print(f"results: {out}")
    return result
