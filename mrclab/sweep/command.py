"""``mrclab sweep``: read the sweep's file, compute the missing points, and write table and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.sweep.spec import Point, SweepFile, parse_sweep, points_of
from mrclab.terminal import terminal
from mrclab.topologies.shipped import TOPOLOGIES, Shipped

SWEEPS = Shipped("sweep", "mrclab.sweep", "sweeps")
ALL_FAILED = 5
"""The largest number of printed failures. Other failures are only counted."""


def sweep(args: argparse.Namespace) -> int:
    """Run a sweep. Return 1 if points are missing. Raise InputError if the file has a mistake."""
    found = parse_sweep(*SWEEPS.text(args.file))
    points = points_of(found)
    text = check(found, points)
    if args.dry_run:
        print(f"{found.name}: {len(points)} points, {len(points) // max(_seeds(found), 1)} of the grid")
        return 0
    # Imported only here, because numpy and matplotlib load slowly: errors in the input must appear quickly.
    from mrclab.linux.scheduling import usable_cpus
    from mrclab.output import progress
    from mrclab.sweep.executors import DaskCluster, Executor, LocalProcesses
    from mrclab.sweep.table import draw, points_csv, rendered, rows_of, table_csv
    from mrclab.sweep.task import Outcome, Store, task_of

    topologies = own_topologies(found, text, points)
    tasks = [task_of(found, text, point, own) for point, own in zip(points, topologies, strict=True)]
    alone = any(task.one_at_a_time for task in tasks)
    if args.workers is not None and not 1 <= args.workers <= 1024:
        raise InputError(f"it must be from 1 to 1024, not {args.workers}", where="--workers")
    if alone and not args.scheduler and (args.workers or 1) > 1:
        raise InputError("one fabric runs on a machine at a time: leave it out", where="--workers")
    out = Path(args.out) if args.out else Path("results") / "sweep" / found.name
    store = Store(out)
    metrics = dict(store.load(tasks))
    left = [task for task in tasks if task.place not in metrics]
    console = terminal()
    console.print(f"{found.name}: {len(tasks)} points, {len(metrics)} done before")
    failed: list[Outcome] = []
    if left:
        executor: Executor
        if args.scheduler:
            executor = DaskCluster(args.scheduler)
        else:
            executor = LocalProcesses(1 if alone else args.workers or min(usable_cpus(), len(left)))
        with progress(console, "points", len(tasks)) as (say, step):

            def done(outcome: Outcome) -> None:
                if outcome.error:
                    failed.append(outcome)
                    if len(failed) <= ALL_FAILED:
                        say(f"  failed: {_where(outcome, found)}: {outcome.error}")
                else:
                    store.save(outcome)
                    metrics[outcome.task.place] = outcome.metrics
                step(len(metrics) + len(failed))

            step(len(metrics))
            executor.run(left, done)
    rows = rows_of(found, points, metrics)
    (out / "table.csv").write_text(table_csv(found, rows), encoding="utf-8", newline="\n")
    (out / "points.csv").write_text(points_csv(points, metrics), encoding="utf-8", newline="\n")
    pictures = draw(out, found, rows)
    console.print(rendered(found, rows))
    console.print(f"results: {out} (table.csv, points.csv{''.join(f', {name}.svg' for name in pictures)})")
    if failed:
        console.print(f"{len(failed)} of {len(tasks)} points failed; the same command tries them again")
    return 1 if failed else 0


def check(found: SweepFile, points: tuple[Point, ...]) -> str | None:
    """Check the sweep without running it. Return its scenario's text, or None if mrclab ships the scenario.

    Raise InputError if a point's scenario is not valid.
    """
    if found.scenario is None:
        return None
    from mrclab.experiments.spec.model import TARGETS
    from mrclab.experiments.spec.scenario import load_scenario
    from mrclab.experiments.spec.shipped import SCENARIOS

    if found.target is not None and found.target not in (*TARGETS, "sim"):
        raise InputError(f"{found.name}: target must be one of {', '.join(TARGETS)}, not '{found.target}'")
    text, _ = SCENARIOS.text(found.scenario)
    seen = set()
    for point in points:
        settings = tuple(f"{key}={_yaml(value)}" for key, value in point.params.items())
        if settings not in seen and found.target != "sim":
            seen.add(settings)
            load_scenario(found.scenario, topology=found.topology, target=found.target, settings=settings)
    return None if found.scenario in SCENARIOS.names() else text


def own_topologies(
    found: SweepFile, text: str | None, points: Sequence[Point]
) -> list[tuple[str, str] | None]:
    """Return the name and the text of each point's topology file, or None if mrclab ships its topology.

    The sweep's key comes first, then the point's, then the scenario's (``text``: see `check`). Raise
    InputError if a file cannot be read.
    """
    if found.scenario is None:
        return [None] * len(points)
    usual: object = None
    if text is not None and found.topology is None:
        from mrclab.experiments.spec.scenario import load_scenario

        usual = load_scenario(found.scenario, target=found.target).topology
    names = [found.topology or point.params.get("topology", usual) for point in points]
    shipped = TOPOLOGIES.names()
    texts = {n: TOPOLOGIES.text(n)[0] for n in names if isinstance(n, str) and n not in shipped}
    return [(n, texts[n]) if isinstance(n, str) and n in texts else None for n in names]


def _yaml(value: object) -> str:
    import json

    return json.dumps(value)


def _seeds(found: SweepFile) -> int:
    return found.seeds if isinstance(found.seeds, int) else len(found.seeds)


def _where(outcome: object, found: SweepFile) -> str:
    from mrclab.sweep.task import Outcome

    assert isinstance(outcome, Outcome)
    values = ", ".join(f"{key} {outcome.task.params[key]}" for key in found.grid)
    return f"{values}, seed {outcome.task.seed}"
