"""The options of ``mrclab perf``, most of them perftest's."""

from __future__ import annotations

import argparse


def perf_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of the command."""
    parser.add_argument("test", choices=("write_bw", "write_lat"))
    parser.add_argument("--from", dest="source", metavar="HOST", required=True, help="who writes, such as h0")
    parser.add_argument("--to", dest="target", metavar="HOST", required=True, help="whose memory, such as h6")
    parser.add_argument("-s", "--size", type=int, metavar="BYTES", help="of a message (65536; latency: 2)")
    parser.add_argument("-a", "--all", action="store_true", help="sizes from 2 B to 8 MiB")
    parser.add_argument("-n", "--iters", type=int, metavar="N", help="messages per queue pair (5000; 1000)")
    parser.add_argument("-q", "--qp", type=int, metavar="N", default=1, help="queue pairs (1)")
    parser.add_argument("-t", "--tx-depth", type=int, metavar="N", default=128, help="in flight per QP (128)")
    parser.add_argument("--transport", metavar="NAME", default="mrc", help="mrc (default), rocev2, ...")
    parser.add_argument("-b", "--bidirectional", action="store_true", help="both write at once")
    parser.add_argument("-D", "--duration", type=float, metavar="S", help="write_bw for so long, not -n")
    parser.add_argument("-m", "--mtu", type=int, metavar="BYTES", help="of payload in a packet (4096)")
    parser.add_argument("--report_gbits", action="store_true", help="Gb/sec instead of MiB/sec")
    parser.add_argument("-H", "--report-histogram", action="store_true", help="write_lat: every result")
    parser.add_argument(
        "--congestion", metavar="NAME", help="control: fixed, nscc, aimd, module:Class (fixed)"
    )
    parser.add_argument(
        "--path-policy", metavar="NAME", help="rotation, random, two-choices, reps, module:Class (rotation)"
    )
    parser.add_argument("--window", type=int, metavar="N", help="packets in flight per queue pair (64)")
    parser.add_argument("--base-rtt", metavar="TIME", help="that NSCC counts delay from (measured)")
    parser.add_argument("--rate_limit", metavar="RATE", help="of payload, such as '200 Mbit/s'")
    parser.add_argument("--json", action="store_true", help="for programs")
