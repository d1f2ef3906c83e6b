"""``mrclab run``: one scenario, all figures, or the rest of a run that ended early."""

from __future__ import annotations

import argparse
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.run_figures import FIGURES, run_figures
from mrclab.run_scenario import Parse, resume_scenario, run_scenario

_ASKED = ("scenario", "topology", "trials", "seed", "out", "program", "set", "dry_run", "no_pcap")


def run(args: argparse.Namespace, parse: Parse) -> int:
    """Run a scenario. Every mistake in the input is found before anything is started.

    ``parse`` reads a command line.
    """
    if args.resume is not None:
        given = [name for name in _ASKED if getattr(args, name)]
        if given:
            raise InputError(f"--resume goes on with what was asked for then: leave '{given[0]}' out")
        return resume_scenario(Path(args.resume), parse)
    if args.scenario is None:
        raise InputError("run what? Give a scenario, such as link-kill, or --resume DIR")
    if args.no_pcap:
        args.set = [*args.set, "measure.capture=false"]
    if args.scenario == FIGURES:
        return run_figures(args)
    return run_scenario(args)
