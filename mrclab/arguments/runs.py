"""The options of commands that compute or read results, such as run, soak, sweep, compare and scale."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields

from mrclab.arguments.parser import add_json, add_program, add_set, add_target, add_topology
from mrclab.hosts.workloads.training_steps import LlmStep

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


PIECES = ("fabric", "claims", "failures", "figures", "shares")
"""The parts of the page of ``mrclab scale``."""
_LLM = {
    "data": "The number of data-parallel ranks",
    "tensor": "The number of tensor-parallel ranks",
    "pipeline": "The number of stages of the pipeline",
    "expert": "The number of expert-parallel ranks, of the data-parallel ones",
    "layers": "The number of layers of the model",
    "hidden": "The width of the model",
    "ffn": "The width of the feed-forward part; 0 is 8/3 of the model's",
    "tokens": "The tokens of a microbatch",
    "microbatches": "The microbatches of a rank in a step",
    "bytes_each": "The bytes of a value",
    "flops": "The operations a second of each rank",
}


def scale_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab scale``."""
    parser.add_argument(
        "--nics", type=int, metavar="N", default=131_072, help="The NICs of the fabric (131072)."
    )
    parser.add_argument("--planes", type=int, metavar="P", default=8, help="The planes, 1 to 16 (8).")
    parser.add_argument(
        "--tiers", type=int, metavar="L", help="The tiers of switches (default: as few as possible)."
    )
    parser.add_argument(
        "--parts", metavar="FILE", default="typical", help="The table of parts, in YAML (typical)."
    )
    parser.add_argument(
        "--print-parts", action="store_true", help="Print the table of parts, as a start for your own."
    )
    parser.add_argument("--job", type=int, metavar="N", default=75_000, help="The GPUs of the job (75000).")
    parser.add_argument("--days", type=float, metavar="D", default=90.0, help="The days of the job (90).")
    parser.add_argument("--runs", type=int, metavar="N", default=20, help="How often to draw its life (20).")
    parser.add_argument(
        "--seed", type=int, metavar="S", default=1, help="The seed of failures and traffic (1)."
    )
    parser.add_argument(
        "--dead-links",
        metavar="K,...",
        default="0,1,100,1000,10000",
        help="The numbers of dead T0-T1 links to compute (0,1,100,1000,10000).",
    )
    parser.add_argument(
        "--only",
        metavar="PART,...",
        default=",".join(PIECES),
        help=f"Compute these parts alone, of {', '.join(PIECES)}.",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="Write the page to DIR (default: results/scale/<time>/)."
    )


def chakra_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``mrclab chakra`` and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="Show the operations, bytes and groups of a trace.")
    show.add_argument(
        "path", metavar="TRACE", help="A file, a directory, or NAME for the files NAME.0.et and so on."
    )
    show.add_argument(
        "--groups", metavar="FILE", default="", help="Read the ranks of process groups from this JSON file."
    )
    show.add_argument(
        "--ranks", type=int, metavar="N", default=0, help="Play a trace of one file on N ranks."
    )
    show.add_argument(
        "--ranks-per-host", type=int, metavar="N", default=1, help="The number of ranks on a host (1)."
    )
    add_json(show)
    make = actions.add_parser("make", help="Write the trace of a small language model's training step.")
    make.add_argument("directory", metavar="DIR", help="Write the files llm.0.et, llm.1.et and so on to DIR.")
    for item in fields(LlmStep):
        assert item.default is not MISSING
        make.add_argument(
            f"--{item.name.replace('_', '-')}",
            type=type(item.default),
            metavar="N",
            default=item.default,
            help=f"{_LLM[item.name]} ({item.default:g}).",
        )
