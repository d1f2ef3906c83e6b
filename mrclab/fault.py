"""``mrclab fault`` and ``mrclab restore``: break a part of the running fabric, and restore it."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from controller.fault_kinds import KINDS, Fault, flag, kind_named
from linux.errors import InputError
from mrclab.control import call
from testbed.names import Names
from testbed.ownership import require_ours
from topologies.units import option_value, time_ns

# Options of a fault that are not times are taken as they are: text or numbers.
_TIMES = ("delay_ns", "period_ns", "down_ns")


def fault(args: argparse.Namespace) -> int:
    """Make a fault. Raise InputError if it is not valid."""
    if args.kind is None:
        Console().print(_kinds())
        return 0
    kind = kind_named(args.kind)
    if args.where is None:
        raise InputError(f"where? {kind.name} breaks a {kind.place.value}")
    wanted = Fault(args.kind, args.where, **_options(args))
    names = Names.from_environment()
    require_ours(names, force=args.force)
    answer = call(names, "fault", fault=asdict(wanted))
    _tell_moment(f"{args.kind} at {args.where}", answer)
    return 0


def restore(args: argparse.Namespace) -> int:
    """Undoes a fault, or all. Raises InputError where there is none."""
    if (args.where is None) != args.all:
        raise InputError("restore what? Give the place of a fault, or --all")
    names = Names.from_environment()
    require_ours(names, force=args.force)
    answer = call(names, "restore", where=args.where)
    for where, moment in answer["restored"].items():
        _tell_moment(f"restored {where}", moment)
    if not answer["restored"]:
        print("there were no faults")
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name in ("direction", "ratio", *_TIMES, "of"):
        text = getattr(args, name.removesuffix("_ns"))
        if text is not None:
            given[name] = option_value(time_ns, text, flag(name)) if name in _TIMES else text
    if math.isnan(given.get("ratio", 1.0)):
        raise InputError("a ratio is above 0 and at most 1, not nan")
    return given


def _kinds() -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("kind", "where", "options", "what it does"):
        table.add_column(heading)
    for kind in KINDS.values():
        options = " ".join(flag(name) for name in kind.takes)
        table.add_row(kind.name, kind.place.value, options, kind.does)
    return table


def _tell_moment(what: str, moment: dict[str, int]) -> None:
    before, after = moment["t_before_ns"], moment["t_after_ns"]
    print(
        f"{what}: at {before / 1e9:.6f} s of CLOCK_MONOTONIC, known to {(after - before) / 1e3:.0f} us "
        f"(stamped by the {moment['stamped_by']})"
    )
