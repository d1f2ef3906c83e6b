"""Run a scenario, save its result and print it. ``run``, ``soak`` and the figures use this module."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mrclab.controller.pipeline import Pipeline, shipped_pipeline
from mrclab.experiments.spec.model import SIMULATED, Scenario
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.experiments.spec.slow_motion import slowed
from mrclab.experiments.spec.workloads import Transformer
from mrclab.linux.errors import InputError, MachineError, reason
from mrclab.linux.life import signals
from mrclab.output import Detail, directory, held, progress, repeat, room_for, size_text
from mrclab.terminal import terminal
from mrclab.topologies import Fabric, fabric_text
from mrclab.workers import copies


def run_scenario(args: argparse.Namespace) -> int:
    """Run the scenario that the arguments name, or print its plan if ``--dry-run``."""
    scenario = scenario_of(args, args.scenario)
    # Imported only here, because NumPy loads slowly: errors in the input must appear quickly.
    from mrclab.experiments.spec.plan import plan_text

    plan = plan_text(scenario)
    if args.dry_run:
        print(plan)
        return 0
    require_jobs(args.jobs, scenario)
    require(scenario)
    with directory(args.out, scenario.name) as out:
        words = repeat(args, args.scenario, scenario)
        result = run_and_report(scenario, out, terminal(), words, jobs=args.jobs)
    return exit_code(result)


def resume_scenario(out: Path, jobs: int = 1) -> int:
    """Resume the run in a directory. Its finished repetitions are kept.

    Raise InputError if the directory has no run, if the run is finished or still runs, or if its scenario has
    changed.
    """
    from mrclab.cli import parser
    from mrclab.experiments.report.build import load_run

    run = load_run(out)
    if is_finished(out):
        raise InputError(f"the run in '{out}' is finished: mrclab report {out} shows it")
    if tuple(run.command[:2]) != ("mrclab", "run"):
        raise InputError(f"the run in '{out}' does not say how it was started: run it anew")
    args = parser().parse_args(run.command[1:])
    scenario = at_speed_of(scenario_of(args, args.scenario), run.parameters)
    fabric = scenario.fabric()
    same = _meaning(scenario.to_dict()) == _meaning(run.parameters) and fabric.name == run.topology
    if not same or run.fabric not in ("", _hash_of(fabric)):
        raise InputError(f"'{out}': its scenario means something else today: run it anew")
    require_jobs(jobs, scenario)
    require(scenario)
    with held(out):
        result = run_and_report(scenario, out, terminal(), run.command, resume=True, jobs=jobs)
    return exit_code(result)


def exit_code(result: Mapping[str, Any]) -> int:
    """Return 1 if data was damaged or a program failed, otherwise 0."""
    from mrclab.experiments.report.table import program_failures

    return int(result["integrity"] != "ok" or bool(program_failures(result)))


def at_speed_of(scenario: Scenario, parameters: Mapping[str, Any]) -> Scenario:
    """Return the scenario, slowed down like an earlier run, which had these parameters."""
    return slowed(scenario, parameters.get("slower", 1.0) / scenario.slower)


def is_finished(out: Path) -> bool:
    """Return True if a directory has the result of a complete run."""
    from mrclab.experiments.result.file import load_result

    try:
        return load_result(out).get("unfinished") is None
    except InputError:
        return False


def _meaning(parameters: Mapping[str, Any]) -> Any:
    """Return a run's settings in JSON types, to compare two runs.

    Omit target and topology, because the same target or topology can be written in several ways.
    """
    found = json.loads(json.dumps(dict(parameters)))
    return {key: value for key, value in found.items() if key not in ("target", "topology")}


def _hash_of(fabric: Fabric) -> str:
    """Return a hash of a fabric. The same fabric has the same hash, however its topology is written."""
    return hashlib.sha256(fabric_text(fabric).encode()).hexdigest()


def require(scenario: Scenario) -> None:
    """Check that the machine meets a scenario's needs. In virtual time, check only the workload's needs.

    Raise MachineError if something is missing, and InputError if a testbed with the same names is up.
    """
    from mrclab.experiments.live.needs import require_all, require_workload

    require_workload(scenario)
    if scenario.target == SIMULATED:
        return
    from mrclab.controller.programs import require_compiler
    from mrclab.testbed.doctor import require_machine
    from mrclab.testbed.names import Names
    from mrclab.testbed.network import refuse_second

    require_machine()
    require_compiler(Path(scenario.program))
    require_all(scenario)
    refuse_second(Names.from_environment())


def require_jobs(jobs: int, scenario: Scenario) -> None:
    """Raise InputError if ``jobs`` (the number of repetitions at a time) is not possible."""
    if jobs < 1:
        raise InputError(f"--jobs: {jobs} repetitions at a time: give 1 or more")
    if jobs > 1 and scenario.target != SIMULATED:
        raise InputError("--jobs: a live fabric runs one repetition at a time: leave it out, or --target sim")


def scenario_of(args: argparse.Namespace, name: str) -> Scenario:
    """Return the named scenario with the arguments' overrides. Raise InputError if something is not valid."""
    scenario = load_scenario(
        name,
        topology=args.topology,
        target=args.target,
        trials=getattr(args, "trials", None),
        seed=args.seed,
        duration=getattr(args, "duration", None),
        program=getattr(args, "program", None),
        settings=args.set,
    )
    scenario.check_against(scenario.fabric())
    return scenario


def run_and_report(
    scenario: Scenario,
    out: Path,
    console: Console,
    command: Sequence[str],
    *,
    resume: bool = False,
    jobs: int = 1,
) -> dict[str, Any]:
    """Run a scenario and show its progress; return the contents of its result.json.

    ``command`` is the command that reproduces the run. ``jobs`` repetitions run at a time. If ``resume`` is
    true, repetitions in the directory are kept. The first signal ends the run. Later signals are ignored
    while the run saves its repetitions.
    """
    with signals.first_only():
        return _run_and_report(scenario, out, console, command, resume, jobs)


def _pipeline(scenario: Scenario, out: Path, resume: bool) -> Pipeline:
    """Return the scenario's switch program. If the program is not valid, remove the new directory."""
    if not scenario.program:
        return shipped_pipeline()
    from mrclab.controller.programs import pipeline_of

    try:
        return pipeline_of(scenario.program, out / "program")
    except InputError:
        if not resume:
            shutil.rmtree(out, ignore_errors=True)
        raise


def _detail_of(scenario: Scenario, out: Path) -> Detail:
    """Return a function that describes the present part of a run, such as a training's step and loss."""
    if not isinstance(scenario.workload, Transformer):
        return lambda _seconds: ""
    from mrclab.experiments.run.outcome import repetition_directory
    from mrclab.experiments.run.training import words_of

    steps, times = scenario.workload.steps, scenario.repetitions
    directories = {
        f"{transport.name} {number + 1}/{times}": repetition_directory(out, transport.name, number)
        for transport in scenario.transports
        for number in range(times)
    }
    return lambda seconds: words_of(directories, steps, seconds)


def _at_speed(scenario: Scenario, out: Path, console: Console) -> Scenario:
    """Return the scenario, in slow motion if the machine is too slow. On an error, remove ``out``."""
    if scenario.target == SIMULATED:
        return scenario
    from mrclab.experiments.live.calibration import calibrated, needs_calibration

    try:
        return calibrated(scenario, out, console.print) if needs_calibration(scenario) else scenario
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _engine(scenario: Scenario, jobs: int) -> Callable[..., None]:
    """Return the function that runs a scenario. For several jobs, start the worker processes now."""
    if jobs > 1:
        from mrclab.run_jobs import run_in_processes

        # Workers are copies of this process, so start them before the progress display starts threads.
        workers = copies(min(jobs, len(scenario.transports) * scenario.repetitions))
        return partial(run_in_processes, workers)
    if scenario.target == SIMULATED:
        from mrclab.experiments.virtual.engine import run_scenario as run
    else:
        from mrclab.experiments.live.engine import run_scenario as run
    return run


def _show(out: Path, jobs: int = 1) -> None:
    """Write the files that show a result. If ``jobs`` is above 1, ``jobs`` processes draw the pictures."""
    # This import takes seconds, so it is not at the top. With several jobs, `run_jobs` has already done it.
    from mrclab.experiments.report.write import write_all

    if jobs > 1:
        from mrclab.run_jobs import draw_in_processes

        write_all(out, partial(draw_in_processes, jobs))
    else:
        write_all(out)


def _run_and_report(
    scenario: Scenario, out: Path, console: Console, command: Sequence[str], resume: bool, jobs: int
) -> dict[str, Any]:
    """Do the work of ``run_and_report``. A signal raises an exception in this function."""
    from mrclab.experiments.live.system import describe_system
    from mrclab.experiments.report.build import Run, build, load_repetitions, save_run, save_unfinished
    from mrclab.experiments.result.file import save_result
    from mrclab.experiments.run.outcome import Outcome

    fabric = scenario.fabric()
    pipeline = _pipeline(scenario, out, resume)
    console.print(Text.assemble((scenario.name, "bold"), f" on {fabric.name}: {scenario.description}"))
    if not resume:
        scenario = _at_speed(scenario, out, console)
    described = Run(
        scenario=scenario.name,
        parameters=scenario.to_dict(),
        target=scenario.target,
        topology=fabric.name,
        seed=scenario.seed,
        transports=scenario.transports,
        system=describe_system(pipeline.json),
        claim=scenario.claim,
        figure=scenario.figure or None,
        command=tuple(command),
        fabric=_hash_of(scenario.fabric()),  # in slow motion, its links are slower than those of `fabric`
    )
    outcome = Outcome(repetitions=load_repetitions(out, described) if resume else {})
    for name, kept in outcome.repetitions.items():
        whole = sum(repetition.interrupted is None for repetition in kept)
        console.print(f"{name}: {whole} of {scenario.repetitions} repetitions kept")
    what = "trials" if scenario.sequences else "repetitions"
    try:
        room_for(out)
        save_run(out, described)
        run = _engine(scenario, jobs)
        with progress(console, what, scenario.steps, _detail_of(scenario, out)) as (say, step):
            run(scenario, out, outcome, say=say, step=step)
    except BaseException as error:
        if not outcome.began and not resume and isinstance(error, InputError | MachineError):
            shutil.rmtree(out, ignore_errors=True)  # the run could not start, so there is nothing to keep
        elif save_unfinished(
            out, replace(described, target=outcome.target), outcome.repetitions, reason(error)
        ):
            _show(out)
            console.print(f"what was measured until then: {out} (mrclab run --resume {out} goes on with it)")
        raise
    result = build(replace(described, target=outcome.target), outcome.repetitions)
    save_result(out, result)
    _show(out, jobs)
    from mrclab.experiments.report.table import render_result

    console.print(render_result(result))
    console.print(f"results: {out} ({size_text(out)})")
    return result
