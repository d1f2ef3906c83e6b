"""The options of ``mrclab fault``."""

from __future__ import annotations

import argparse
from typing import Any

from mrclab.faults.model import DIRECTIONS, PARAMETERS
from mrclab.topologies.units import share


def fault_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``mrclab fault``."""
    parser.add_argument(
        "kind", metavar="KIND", nargs="?", help="what to do; without it, all kinds are listed"
    )
    parser.add_argument("where", metavar="WHERE", nargs="?", help="a link a:b, a NIC port, a switch, a plane")
    forms: dict[str, dict[str, Any]] = {
        "direction": {"choices": DIRECTIONS},
        "ratio": {"type": share, "metavar": "SHARE"},
        "time": {"metavar": "TIME"},
        "kind": {"metavar": "KIND"},
    }
    for parameter in PARAMETERS.values():
        parser.add_argument(parameter.flag, help=parameter.help, **forms[parameter.form])
    parser.add_argument("--json", action="store_true", help="stamps of CLOCK_MONOTONIC, for programs")
