"""The options of the commands that run programs on hosts: ``exec``, ``perf`` and ``exercise``."""

from __future__ import annotations

import argparse
from pathlib import Path

from mrclab.arguments.parser import add_json, add_target


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
    """Add the options of ``mrclab perf``, most of which are perftest's."""
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
