"""``mrclab soak``: ``mrclab run random-faults`` for a given duration."""

from __future__ import annotations

import argparse

from mrclab.linux.errors import InputError
from mrclab.run_scenario import run_scenario, scenario_of


def soak(args: argparse.Namespace) -> int:
    """Run the scenario of random faults. Raises what ``mrclab run`` raises."""
    args.scenario, args.trials, args.jobs = args.soak, None, 1
    kind = scenario_of(args, args.soak).workload.kind
    if kind != "mesh":
        raise InputError(f"soak takes workloads of kind mesh, and {args.soak} is {kind}: use 'mrclab run'")
    return run_scenario(args)
