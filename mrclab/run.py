"""``mrclab run`` and ``mrclab soak``: run one scenario or all figures, or resume a run."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from mrclab.experiments.spec.model import SIMULATED, Scenario
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.linux.errors import InputError, MachineError
from mrclab.output import directory, held, repeat
from mrclab.run_scenario import (
    require,
    require_jobs,
    resume_scenario,
    run_and_report,
    run_scenario,
    scenario_of,
)
from mrclab.terminal import terminal

FIGURES = "figures"


def listed_figures() -> tuple[str, ...]:
    """Return the names of the scenarios that ``mrclab run figures`` runs, in order."""
    text = files("mrclab.experiments").joinpath("scenarios", "figures.txt").read_text(encoding="utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def _for(args: argparse.Namespace, name: str) -> argparse.Namespace:
    """Return the arguments for one figure. Omit the target if the figure runs in the simulator only."""
    if args.target is None or load_scenario(name).target != SIMULATED:
        return args
    return argparse.Namespace(**{**vars(args), "target": None})


def run_figures(args: argparse.Namespace) -> int:
    """Run the scenarios of all figures and write ``index.html``. Return 1 if a scenario failed.

    All scenarios are checked before the first one runs. Raise InputError or MachineError if a check fails.
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
            with held(place):
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


QUICK = {
    "training": (
        "repetitions=1",
        "transports.control=false",
        "transports.frr=false",
        "workload.steps=30",
        *("faults.0.at=600 ms", "faults.0.duration=1200 ms", "faults.1.at=800 ms", "faults.1.duration=1 s"),
        *("faults.2.at=1800 ms", "faults.2.duration=700 ms"),
        *("faults.3.at=2600 ms", "faults.3.duration=800 ms"),
        *("faults.4.at=2600 ms", "faults.4.duration=800 ms"),
    )
}
"""The settings of ``--quick``: `training` runs 30 steps, with MRC and RoCEv2 only, and has all its faults."""
_ASKED = ("scenario", "topology", "trials", "seed", "out", "program", "set", "dry_run", "no_pcap", "quick")


def run(args: argparse.Namespace) -> int:
    """Run a scenario. All input is checked before anything is started."""
    if args.resume is not None:
        given = [name for name in _ASKED if getattr(args, name)]
        if given:
            raise InputError(f"--resume goes on with what was asked for then: leave '{given[0]}' out")
        return resume_scenario(Path(args.resume), args.jobs)
    if args.scenario is None:
        raise InputError("run what? Give a scenario, such as link-kill, or --resume DIR")
    if args.quick:
        if args.scenario not in QUICK:
            raise InputError(f"--quick is for {', '.join(QUICK)}: for others give --trials 1")
        args.set = [*QUICK[args.scenario], *args.set]
    if args.no_pcap:
        args.set = [*args.set, "measure.capture=false"]
    if args.scenario == FIGURES:
        return run_figures(args)
    return run_scenario(args)


def soak(args: argparse.Namespace) -> int:
    """Run a scenario of random faults. Raise the same errors as ``mrclab run``."""
    args.scenario, args.trials, args.jobs = args.soak, None, 1
    kind = scenario_of(args, args.soak).workload.kind
    if kind != "mesh":
        raise InputError(f"soak takes workloads of kind mesh, and {args.soak} is {kind}: use 'mrclab run'")
    return run_scenario(args)
