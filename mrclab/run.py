"""``mrclab run``: one scenario, or all figures."""

from __future__ import annotations

import argparse

from mrclab.run_figures import FIGURES, run_figures
from mrclab.run_scenario import run_scenario


def run(args: argparse.Namespace) -> int:
    """Run a scenario. Every mistake in the input is found before anything is started."""
    if args.no_pcap:
        args.set = [*args.set, "measure.capture=false"]
    if args.scenario == FIGURES:
        return run_figures(args)
    return run_scenario(args)
