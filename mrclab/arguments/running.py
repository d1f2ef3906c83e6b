"""The options of the commands that bring a fabric up, look at it, break it and take it down."""

from __future__ import annotations

import argparse
from typing import Any

from mrclab.arguments.parser import add_force, add_json, add_program, add_target, add_topology
from mrclab.faults.model import DIRECTIONS, PARAMETERS
from mrclab.topologies.units import share

_STAMPS = "Print the moments as JSON (CLOCK_MONOTONIC), for programs."


def up_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab up``."""
    add_topology(parser, "lab")
    add_target(parser, "auto")
    add_program(parser)
    add_force(parser)


def status_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab status``."""
    add_json(parser)
    parser.add_argument("--ports", action="store_true", help="Show the counters of every port.")
    parser.add_argument("--sids", action="store_true", help="Show the hits of every SID.")
    parser.add_argument(
        "--watch",
        metavar="INTERVAL",
        nargs="?",
        const="1 s",
        help="Show it again and again, with rates (1 s).",
    )


def live_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab live``."""
    add_topology(parser)
    add_target(parser, "auto", simulator=True)
    add_program(parser)
    parser.add_argument(
        "--port", type=int, metavar="N", default=8047, help="The page's port (8047; 0 is any)."
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="Serve other machines too, at this address (default: this one only).",
    )
    parser.add_argument("--run", metavar="DIR", help="Follow a training that a run writes to DIR.")


def watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab watch``."""
    parser.add_argument("--once", action="store_true", help="Take one look, and end.")
    add_json(parser, "Take one look, and print it as JSON.")


def fault_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab fault``."""
    parser.add_argument(
        "kind", metavar="KIND", nargs="?", help="The kind of fault; without it, all kinds are listed."
    )
    parser.add_argument(
        "where", metavar="WHERE", nargs="?", help="The place: a link a:b, a NIC port, a switch, a plane."
    )
    forms: dict[str, dict[str, Any]] = {
        "direction": {"choices": DIRECTIONS},
        "ratio": {"type": share, "metavar": "SHARE"},
        "time": {"metavar": "TIME"},
        "kind": {"metavar": "KIND"},
    }
    for parameter in PARAMETERS.values():
        parser.add_argument(parameter.flag, help=parameter.help, **forms[parameter.form])
    add_json(parser, _STAMPS)
    add_force(parser)


def restore_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab restore``."""
    parser.add_argument("where", metavar="WHERE", nargs="?", help="The place of the fault.")
    parser.add_argument("--all", action="store_true", help="Undo all faults.")
    add_json(parser, _STAMPS)
    add_force(parser)


def probe_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab probe``."""
    parser.add_argument("source", metavar="HOST", help="The host that sends, such as h0.")
    parser.add_argument(
        "target",
        metavar="HOST",
        nargs="?",
        help="Go to the T0 of this host and back (default: to T1s and back).",
    )
    parser.add_argument("--path", metavar="SWITCH", help="Take the paths over this switch, such as p0-t1-2.")
    parser.add_argument("--all", action="store_true", help="Take all paths, not the first only.")
    parser.add_argument("-n", "--count", type=int, metavar="N", default=20, help="The probes per path (20).")
    add_json(parser, "Print every probe as JSON, for programs.")


def clustermapper_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab clustermapper``."""
    parser.add_argument(
        "--interval", metavar="TIME", default="1 ms", help="The time between two rounds (1 ms)."
    )
    parser.add_argument(
        "--for", dest="duration", metavar="TIME", help="Stop after so long (default: without end)."
    )
    add_json(parser, "Print events as JSON lines, for programs.")


def shell_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab shell``."""
    parser.add_argument(
        "switch", metavar="SWITCH", help="The switch, such as p0-t0-0; standard input may hold a script."
    )
