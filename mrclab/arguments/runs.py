"""The options of ``run``, ``soak`` and ``sweep``, and of the commands that read results."""

from __future__ import annotations

import argparse

from mrclab.arguments.parser import add_json, add_program, add_set, add_target, add_topology

_DRY_RUN = "Print the plan, and start nothing."


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab run``."""
    parser.add_argument(
        "scenario", metavar="SCENARIO", nargs="?", help="A shipped scenario (link-kill) or a YAML file."
    )
    add_target(parser, None, simulator=True)
    add_topology(parser, more="; with --target sim also paper-b, paper-c, pod")
    add_program(parser)
    parser.add_argument("--trials", type=int, metavar="N", help="The number of faults, or of repetitions.")
    parser.add_argument("--seed", type=int, metavar="S", help="The seed of places, paths and bytes.")
    _out(parser)
    add_set(parser)
    parser.add_argument(
        "--no-pcap", action="store_true", help="Delete each capture as soon as its times have been read."
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", default=1, help="Run N repetitions at a time, in virtual time (1)."
    )
    parser.add_argument(
        "--resume", metavar="DIR", help="Continue the run in this directory, which ended early."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="Run a short version of training: MRC and RoCEv2, 30 steps, once.",
    )
    parser.add_argument("--dry-run", action="store_true", help=_DRY_RUN)


def soak_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab soak``."""
    parser.add_argument(
        "soak",
        metavar="SOAK",
        nargs="?",
        default="random-faults",
        help="A shipped scenario or a YAML file (random-faults).",
    )
    parser.add_argument("--duration", metavar="TIME", help="How long to send, such as '30 s' or 1h.")
    add_target(parser, None)
    add_topology(parser)
    parser.add_argument("--seed", type=int, metavar="S", help="The seed of messages and faults.")
    _out(parser)
    add_set(parser)
    parser.add_argument("--dry-run", action="store_true", help=_DRY_RUN)


def sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab sweep``."""
    parser.add_argument("file", metavar="FILE", help="A YAML file, or a shipped sweep (dead-links).")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="The processes on this machine (default: one a CPU)."
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="The address of a Dask scheduler, or its file: workers anywhere.",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="Write points and tables to DIR (default: results/sweep/<name>/)."
    )
    parser.add_argument("--dry-run", action="store_true", help="Check the file and count the points.")


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab compare``."""
    parser.add_argument("a", metavar="A", help="The result directory of a run.")
    parser.add_argument("b", metavar="B", nargs="+", help="The result directories of the others.")
    add_json(parser)
    parser.add_argument("--csv", action="store_true", help="Print a line for each metric, for spreadsheets.")


def report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab report``."""
    parser.add_argument("directories", metavar="DIR", nargs="+", help="The result directory of a run.")
    parser.add_argument(
        "--index", metavar="FILE", help="The index page (default, if there are many runs: index.html)."
    )


def prune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab prune``."""
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", default="results", help="The directory of results (results)."
    )
    parser.add_argument(
        "--keep", type=int, metavar="N", help="Remove all but the newest N runs of each scenario."
    )
    parser.add_argument(
        "--captures", action="store_true", help="Remove captures alone; figures and pages stay."
    )
    parser.add_argument("--dry-run", action="store_true", help="Only list what would be removed.")


def trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab trace``."""
    parser.add_argument("directory", metavar="DIR", help="The result directory of a run.")
    parser.add_argument("--out", metavar="FILE", help="Write to FILE (default: DIR/trace.json).")


def schema_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab schema``."""
    parser.add_argument("of", choices=("scenario", "topology", "result"), help="The kind of file.")


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", help="Write results to DIR (default: results/<scenario>/<time>/)."
    )
