"""The options of ``scale`` and ``chakra``: fabrics too large to run, and the traces of training jobs."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields

from mrclab.arguments.parser import add_json
from mrclab.hosts.workloads.llm import LlmStep

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
