"""From a scenario to a result directory and a table: what ``run``, ``soak`` and the figures share."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from experiments.spec.model import SIMULATED, Scenario
from experiments.spec.scenario import load_scenario
from linux.errors import InputError, MachineError, reason
from mrclab.output import directory, progress, repeat, room_for, size_text
from testbed.doctor import require_machine


def run_scenario(args: argparse.Namespace) -> int:
    """Run the scenario that the arguments ask for, or print its plan."""
    scenario = scenario_of(args, args.scenario)
    # Imported late: it loads numpy, and bad input should be refused before that.
    from experiments.spec.plan import plan_text

    plan = plan_text(scenario)
    if args.dry_run:
        print(plan)
        return 0
    require(scenario)
    out = directory(args.out, scenario.name)
    result = run_and_report(scenario, out, Console(), repeat(args, args.scenario, scenario))
    return 0 if result["integrity"] == "ok" else 1


def require(scenario: Scenario) -> None:
    """Check that the machine has what all transports of a scenario need: in virtual time, nothing.

    Raises MachineError.
    """
    if scenario.target == SIMULATED:
        return
    from experiments.run.needs import require_all

    require_machine()
    require_all(scenario)


def scenario_of(args: argparse.Namespace, name: str) -> Scenario:
    """Return the scenario of a name with the arguments' overrides. Raises InputError."""
    scenario = load_scenario(
        name,
        topology=args.topology,
        target=args.target,
        trials=getattr(args, "trials", None),
        seed=args.seed,
        duration=getattr(args, "duration", None),
        settings=args.set,
    )
    scenario.check_against(scenario.fabric())
    return scenario


def run_and_report(scenario: Scenario, out: Path, console: Console, command: Sequence[str]) -> dict[str, Any]:
    """Run a scenario with its progress on a terminal; return what it wrote to result.json.

    ``command`` reproduces the run.
    """
    from controller.pipeline import shipped_pipeline
    from experiments.report.build import Run, build
    from experiments.report.result import save_result
    from experiments.report.run_file import save_run, save_unfinished
    from experiments.report.table import render_result
    from experiments.report.write import write_all
    from experiments.run import engine
    from experiments.run.system import describe_system

    run: Callable[..., None] = engine.run_scenario
    if scenario.target == SIMULATED:
        from experiments.virtual.engine import run_scenario as run

    fabric = scenario.fabric()
    console.print(f"[bold]{scenario.name}[/bold] on {fabric.name}: {scenario.description}")
    described = Run(
        scenario=scenario.name,
        parameters=scenario.to_dict(),
        target=scenario.target,
        topology=fabric.name,
        seed=scenario.seed,
        transports=scenario.transports,
        system=describe_system(shipped_pipeline().json),
        claim=scenario.claim,
        figure=scenario.figure or None,
        command=tuple(command),
    )
    outcome = engine.Outcome()
    what = "trials" if scenario.sequences else "repetitions"
    try:
        room_for(out)
        save_run(out, described)
        with progress(console, what, scenario.steps) as (say, step):
            run(scenario, out, outcome, say=say, step=step)
    except BaseException as error:
        if not outcome.began and isinstance(error, InputError | MachineError):
            shutil.rmtree(out, ignore_errors=True)  # nothing can be measured here
        elif save_unfinished(
            out, replace(described, target=outcome.target), outcome.repetitions, reason(error)
        ):
            write_all(out)
            console.print(Text(f"what was measured until then: {out}"))
        raise
    result = build(replace(described, target=outcome.target), outcome.repetitions)
    save_result(out, result)
    write_all(out)
    console.print(render_result(result))
    console.print(Text(f"results: {out} ({size_text(out)})"))
    return result
