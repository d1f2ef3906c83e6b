"""``mrclab run``: one scenario, all figures, or the rest of a run that ended early."""

from __future__ import annotations

import argparse
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.run_figures import FIGURES, run_figures
from mrclab.run_scenario import resume_scenario, run_scenario

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
"""What ``--quick`` changes in a scenario: `training` is 30 steps of MRC and RoCEv2, with all its faults."""
_ASKED = ("scenario", "topology", "trials", "seed", "out", "program", "set", "dry_run", "no_pcap", "quick")


def run(args: argparse.Namespace) -> int:
    """Run a scenario. Every mistake in the input is found before anything is started."""
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
