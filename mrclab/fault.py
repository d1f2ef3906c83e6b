"""``mrclab fault`` and ``mrclab restore``: break a part of the running fabric, and restore it."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from typing import Any

from rich.table import Table

from mrclab.control import call
from mrclab.faults.kinds import KINDS, PARAMETERS, Fault, kind_named
from mrclab.linux.errors import InputError
from mrclab.linux.system import require_linux
from mrclab.terminal import moment, offset_ns, terminal
from mrclab.testbed.names import Names
from mrclab.testbed.ownership import require_ours
from mrclab.topologies.units import option_value, time_ns


def fault(args: argparse.Namespace) -> int:
    """Make a fault. If no kind is named, list the kinds of faults. Raise InputError on bad input."""
    if args.kind is None:
        terminal().print(_kinds())
        return 0
    require_linux("mrclab fault")
    kind = kind_named(args.kind)
    if args.where is None:
        raise InputError(f"where? {kind.name} breaks a {kind.place.value}")
    wanted = Fault(args.kind, args.where, **_options(args))
    names = Names.from_environment()
    require_ours(names, force=args.force)
    answer = call(names, "fault", fault=asdict(wanted))
    if args.json:
        print(json.dumps({"fault": asdict(wanted), **answer}))
    else:
        _tell_moment(f"{args.kind} on {args.where}", answer)
    return 0


def restore(args: argparse.Namespace) -> int:
    """Undo a fault, or all faults. Raise InputError if there is no such fault."""
    if (args.where is None) != args.all:
        raise InputError("restore what? Give the place of a fault, or --all")
    names = Names.from_environment()
    require_ours(names, force=args.force)
    answer = call(names, "restore", where=args.where)
    if args.json:
        print(json.dumps(answer))
        return 0
    for where, found in answer["restored"].items():
        _tell_moment(f"restored {where}", found)
    if not answer["restored"]:
        print("there were no faults")
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, parameter in PARAMETERS.items():
        text = getattr(args, parameter.key)
        if text is not None:
            is_time = parameter.form == "time"
            given[name] = option_value(time_ns, text, parameter.flag) if is_time else text
    if math.isnan(given.get("ratio", 1.0)):
        raise InputError("a ratio is above 0 and at most 1, not nan")
    return given


def _kinds() -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("kind", "where", "options", "what it does"):
        table.add_column(heading)
    for kind in KINDS.values():
        options = " ".join(PARAMETERS[name].flag for name in kind.takes)
        table.add_row(kind.name, kind.place.value, options, kind.does)
    return table


def _tell_moment(what: str, found: dict[str, Any]) -> None:
    at = moment(found["t_before_ns"], found["t_after_ns"], offset_ns())
    print(f"{what} at {at} (stamped by the {found['stamped_by']})")
