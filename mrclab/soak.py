"""``mrclab soak``: ``mrclab run random-faults`` for a given duration."""

from __future__ import annotations

import argparse

from mrclab.run_scenario import run_scenario


def soak(args: argparse.Namespace) -> int:
    """Run the scenario of random faults. Raises what ``mrclab run`` raises."""
    args.scenario, args.trials = args.soak, None
    return run_scenario(args)
