"""``mrclab chakra``: show the content of a Chakra execution trace, or write the trace of a training step."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from mrclab.hosts.workloads.chakra import write_rank
from mrclab.hosts.workloads.graph import groups_of
from mrclab.hosts.workloads.player import summary_of
from mrclab.hosts.workloads.sources import source_of, trace_source
from mrclab.hosts.workloads.training_steps import LlmStep, llm_graph
from mrclab.linux.errors import InputError
from mrclab.terminal import terminal

MAX_RANKS_PER_HOST = 64
NAME = "llm"


def chakra(args: argparse.Namespace) -> int:
    """Carry out an action of ``mrclab chakra``."""
    return show(args) if args.action == "show" else make(args)


def show(args: argparse.Namespace) -> int:
    """Print a trace's ranks, messages, bytes and times. Raise InputError if the files are not valid."""
    if args.ranks < 0 or not 1 <= args.ranks_per_host <= MAX_RANKS_PER_HOST:
        raise InputError(f"--ranks is 0 or more, --ranks-per-host 1 to {MAX_RANKS_PER_HOST}")
    found = summary_of(source_of(trace_source(args.path, args.groups, args.ranks)), {}, args.ranks_per_host)
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    console = terminal()
    console.print(f"{found['name']}: {found['ranks']} ranks, {found['messages']} messages a step")
    console.print(", ".join(f"{count} {kind}" for kind, count in found["operations"].items()))
    console.print(_table(found))
    sent, computing = found["sent_bytes"], found["computing_us"]
    console.print(f"a rank sends {_mb(sent['least'])} to {_mb(sent['most'])} MB, all {_mb(sent['all'])} MB")
    console.print(
        f"a rank computes {computing['least']:,.0f} to {computing['most']:,.0f} us; "
        f"without communication a step takes at least {found['step_us']:,.0f} us"
    )
    return 0


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE)
    for name in ("operation", "ranks", "count", "MB", "MB sent"):
        table.add_column(name, justify="left" if name == "operation" else "right")
    for row in found["communication"]:
        table.add_row(
            row["what"], str(row["ranks"]), str(row["count"]), _mb(row["bytes"]), _mb(row["wire_bytes"])
        )
    return table


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.2f}"


def make(args: argparse.Namespace) -> int:
    """Write a trace and the file of its process groups. Raise InputError if a file cannot be written."""
    graph = llm_graph(LlmStep(**{item.name: getattr(args, item.name) for item in fields(LlmStep)}))
    known = groups_of(op for listed in graph.ranks for op in listed)
    names = {group: str(number) for number, group in enumerate(known, 1)}
    folder = Path(args.directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, ops in enumerate(graph.ranks):
            (folder / f"{NAME}.{rank}.et").write_bytes(write_rank(ops, names))
        groups = {name: list(group) for group, name in names.items()}
        (folder / "groups.json").write_text(json.dumps(groups) + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from None
    print(f"{folder / NAME}.0.et to {NAME}.{graph.size - 1}.et, and groups.json")
    return 0
