"""The options of commands for a running fabric: start it, show it, run programs on it, make faults."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mrclab.arguments.parser import add_force, add_json, add_program, add_target, add_topology
from mrclab.faults.kinds import DIRECTIONS, PARAMETERS
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


def exec_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab exec``."""
    parser.add_argument(
        "--all", action="store_true", help="Run it on every host, with a rank in its environment."
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        help="Write the requests to the NIC to FILE, which `kind: recorded` replays (docs/programs.md).",
    )
    parser.add_argument("--user", metavar="U", help="Run it as this user (a name or a number).")
    parser.add_argument(
        "host", metavar="HOST", nargs="?", help="The host, such as h0; with --all there is none."
    )
    parser.add_argument(
        "program", metavar="-- PROGRAM", nargs=argparse.REMAINDER, help="The program, with its arguments."
    )


def exercise_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab exercise``."""
    parser.add_argument(
        "directory", metavar="DIR", help="The directory of an exercise, as in p4lang/tutorials."
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="Take DIR as a whole course: run each exercise as it is and solved, and print a table.",
    )
    parser.add_argument(
        "--topology", metavar="FILE", help="Use this topology, if DIR has several (default: the Makefile's)."
    )
    parser.add_argument("--build", metavar="DIR", help="Find p4c's output here (default: build in DIR).")
    add_target(parser, "auto")


def perf_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab perf``. Most options have the same names as in perftest."""
    parser.add_argument(
        "test", choices=("write_bw", "write_lat"), help="Measure the bandwidth of writes, or their latency."
    )
    parser.add_argument(
        "--from", dest="source", metavar="HOST", required=True, help="The host that writes, such as h0."
    )
    parser.add_argument(
        "--to", dest="target", metavar="HOST", required=True, help="The host whose memory it is, such as h6."
    )
    parser.add_argument(
        "-s", "--size", type=int, metavar="BYTES", help="The size of a message (65536; latency: 2)."
    )
    parser.add_argument("-a", "--all", action="store_true", help="Measure all sizes from 2 B to 8 MiB.")
    parser.add_argument(
        "-n", "--iters", type=int, metavar="N", help="The messages of each queue pair (5000; latency: 1000)."
    )
    parser.add_argument("-q", "--qp", type=int, metavar="N", default=1, help="The queue pairs (1).")
    parser.add_argument(
        "-t", "--tx-depth", type=int, metavar="N", default=128, help="The messages in flight per QP (128)."
    )
    parser.add_argument(
        "--transport", metavar="NAME", default="mrc", help="The transport: mrc (default), rocev2, ..."
    )
    parser.add_argument(
        "-b", "--bidirectional", action="store_true", help="Let both hosts write at the same time."
    )
    parser.add_argument(
        "-D", "--duration", type=float, metavar="S", help="Write for S seconds, instead of -n (write_bw)."
    )
    parser.add_argument("-m", "--mtu", type=int, metavar="BYTES", help="The payload of a packet (4096).")
    parser.add_argument("--report_gbits", action="store_true", help="Print Gb/sec instead of MiB/sec.")
    parser.add_argument("-H", "--report-histogram", action="store_true", help="Print every latency.")
    parser.add_argument(
        "--congestion", metavar="NAME", help="The control: fixed (default), nscc, aimd or module:Class."
    )
    parser.add_argument(
        "--path-policy",
        metavar="NAME",
        help="The choice of paths: rotation, random, two-choices, reps or module:Class (rotation).",
    )
    parser.add_argument(
        "--window", type=int, metavar="N", help="The packets in flight of each queue pair (64)."
    )
    parser.add_argument(
        "--base-rtt", metavar="TIME", help="The round trip without queues, for NSCC (default: measure it)."
    )
    parser.add_argument(
        "--rate_limit", metavar="RATE", help="The largest rate of payload, such as '200 Mbit/s'."
    )
    add_json(parser)


def profile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``mrclab profile`` and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    show = actions.add_parser("show", help="Show the profiles of all NICs in use, or of some hosts'.")
    _hosts(show)
    show.add_argument("--evs", action="store_true", help="Show the state of every EV.")

    for name, meaning in (("deny", "Use some EVs no more."), ("allow", "Use them again.")):
        action = actions.add_parser(name, help=meaning)
        _hosts(action)
        _profile(action)
        action.add_argument(
            "--port", type=int, action="append", metavar="N", help="All EVs of a port, from 1: p0 is port 1."
        )
        action.add_argument("--ev", action="append", metavar="EV", help="One EV, such as 0x28000@3.")

    replace = actions.add_parser("replace", help="Put an EV in the place of another of an EXPLICIT profile.")
    replace.add_argument("hosts", metavar="HOST", nargs=1, help="The host, such as h0.")
    replace.add_argument("old", metavar="OLD", help="The EV to leave out, such as 0x28000@3.")
    replace.add_argument("new", metavar="NEW", help="The EV to use instead, such as 0x28001@3.")
    replace.add_argument("--all-copies", action="store_true", help="Replace all copies, not the first alone.")
    _profile(replace)

    events = actions.add_parser("events", help="Take the EV events that wait.")
    _hosts(events)
    _profile(events)

    create = actions.add_parser("create", help="Create a profile for queue pairs to come.")
    _hosts(create)
    _kind(create, ("ev", "cc"))
    create.add_argument(
        "--algorithm", metavar="NAME", help="The algorithm of a cc profile: uet-1.0-nscc (default) or none."
    )
    create.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="Set a parameter, such as gamma=0.5.",
    )
    create.add_argument("--count", type=int, metavar="N", help="The EVs for each port, of an ev profile.")
    create.add_argument(
        "--min-active",
        type=int,
        default=0,
        metavar="N",
        help="The number of EVs that stay in use whatever is lost.",
    )

    remove = actions.add_parser("remove", help="Remove a profile that nothing uses.")
    _hosts(remove)
    _kind(remove, ("format", "ev", "cc"))

    for action in (show, events, create, remove, replace, *(actions.choices[n] for n in ("deny", "allow"))):
        add_json(action)


def _hosts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="HOST", nargs="*", help="The hosts, such as h0 (all).")


def _profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", type=int, default=1, metavar="ID", help="The EV profile (1).")


def _kind(parser: argparse.ArgumentParser, kinds: tuple[str, ...]) -> None:
    parser.add_argument("--kind", choices=kinds, required=True, help="The kind of profile.")
    parser.add_argument("--id", type=int, required=True, metavar="ID", help="The profile.")
