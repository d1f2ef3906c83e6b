"""The options of ``mrclab scale``, without the imports of the command."""

from __future__ import annotations

import argparse

PIECES = ("fabric", "claims", "failures", "figures", "shares")


def scale_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab scale``."""
    parser.add_argument("--nics", type=int, metavar="N", default=131_072, help="NICs of the fabric (131072)")
    parser.add_argument("--planes", type=int, metavar="P", default=8, help="1 to 16 (8)")
    parser.add_argument("--tiers", type=int, metavar="L", help="of switches (as few as there can be)")
    parser.add_argument(
        "--parts", metavar="FILE", default="typical", help="a table of parts, in YAML (typical)"
    )
    parser.add_argument("--print-parts", action="store_true", help="print the table of parts, to change it")
    parser.add_argument("--job", type=int, metavar="N", default=75_000, help="GPUs of the job (75000)")
    parser.add_argument("--days", type=float, metavar="D", default=90.0, help="of the job (90)")
    parser.add_argument("--runs", type=int, metavar="N", default=20, help="lives of the job to draw (20)")
    parser.add_argument("--seed", type=int, metavar="S", default=1, help="of failures and traffic (1)")
    parser.add_argument(
        "--dead-links", metavar="K,...", default="0,1,100,1000,10000", help="T0-T1 links that are dead"
    )
    parser.add_argument(
        "--only", metavar="PART,...", default=",".join(PIECES), help=f"of {', '.join(PIECES)} (all)"
    )
    parser.add_argument("--out", metavar="DIR", help="where the page goes (default: results/scale/<time>/)")
