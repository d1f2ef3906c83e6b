"""``mrclab run figures``: every figure's scenario, one after the other, and an index page over them."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from mrclab.experiments.spec.model import SIMULATED, Scenario
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.linux.errors import MachineError
from mrclab.output import directory, repeat
from mrclab.run_scenario import require, require_jobs, run_and_report, scenario_of
from mrclab.terminal import terminal

FIGURES = "figures"


def listed_figures() -> tuple[str, ...]:
    """Return the scenarios that make up ``figures``, in order."""
    text = files("mrclab.experiments").joinpath("scenarios", "figures.txt").read_text(encoding="utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def _for(args: argparse.Namespace, name: str) -> argparse.Namespace:
    """Return the arguments for a figure; one that exists in virtual time only runs there, for any target."""
    if args.target is None or load_scenario(name).target != SIMULATED:
        return args
    return argparse.Namespace(**{**vars(args), "target": None})


def run_figures(args: argparse.Namespace) -> int:
    """Run all, go on after one that fails, and write ``index.html``; return 1 if one failed.

    All scenarios are read and checked before the first one runs. Raise InputError, MachineError.
    """
    scenarios = [scenario_of(_for(args, name), name) for name in listed_figures()]
    if args.dry_run:
        print("\n".join(f"{s.name}: {s.claim}" for s in scenarios))
        return 0
    if not any(scenario.target == SIMULATED for scenario in scenarios):
        require_jobs(args.jobs, scenarios[0])
    for scenario in scenarios:
        try:
            require(scenario)
        except MachineError as error:
            raise MachineError(f"{scenario.name}: {error.missing}", error.mend) from None
    with directory(args.out, FIGURES) as out:
        return _run_all(scenarios, out, terminal(), args)


def _run_all(scenarios: list[Scenario], out: Path, console: Console, args: argparse.Namespace) -> int:
    from mrclab.experiments.report.write import write_index

    done: list[Path] = []
    failed: list[str] = []
    for scenario in scenarios:
        place = out / scenario.name
        place.mkdir()
        jobs = args.jobs if scenario.target == SIMULATED else 1
        try:
            words = repeat(args, scenario.name, scenario)
            result = run_and_report(scenario, place, console, words, jobs=jobs)
        except RuntimeError as error:
            console.print(f"{scenario.name} failed: {error}", style="bold red")
            failed.append(scenario.name)
            continue
        done.append(place)
        if result["integrity"] != "ok":
            failed.append(scenario.name)
    if done:
        console.print(f"index: {write_index(done, out / 'index.html', 'Figures')}")
    if failed:
        console.print(f"failed: {', '.join(failed)}", style="bold red")
    return 1 if failed else 0
