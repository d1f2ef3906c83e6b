"""The options of ``mrclab chakra``."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields

from mrclab.hosts.workloads.llm import LlmStep

_HELP = {
    "data": "data-parallel ranks",
    "tensor": "tensor-parallel ranks",
    "pipeline": "stages of the pipeline",
    "expert": "expert-parallel ranks, of the data-parallel ones",
    "layers": "layers of the model",
    "hidden": "width of the model",
    "ffn": "width of the feed-forward part; 0: 8/3 of the model's",
    "tokens": "tokens of a microbatch",
    "microbatches": "microbatches of a rank in a step",
    "bytes_each": "bytes of a value",
    "flops": "operations a second of each rank",
}


def chakra_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``mrclab chakra`` takes, and what carries it out."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="what a trace holds: operations, bytes, groups")
    show.add_argument("path", metavar="TRACE", help="a file, a directory, or NAME for NAME.0.et and so on")
    show.add_argument("--groups", metavar="FILE", default="", help="JSON with the ranks of process groups")
    show.add_argument("--ranks", type=int, metavar="N", default=0, help="play a trace of one file N times")
    show.add_argument("--ranks-per-host", type=int, metavar="N", default=1, help="ranks of a host (1)")
    show.add_argument("--json", action="store_true", help="for programs")
    make = actions.add_parser("make", help="write the trace of a small language model's training step")
    make.add_argument("directory", metavar="DIR", help="where llm.0.et, llm.1.et and so on go")
    for item in fields(LlmStep):
        assert item.default is not MISSING
        make.add_argument(
            f"--{item.name.replace('_', '-')}",
            type=type(item.default),
            metavar="N",
            default=item.default,
            help=f"{_HELP[item.name]} ({item.default:g})",
        )
    parser.set_defaults(do=_chakra)


def _chakra(args: argparse.Namespace) -> int:
    from mrclab.chakra import make, show

    return show(args) if args.action == "show" else make(args)
