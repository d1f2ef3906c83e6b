"""``mrclab trace DIR``: write a run's events as a trace file for Perfetto or chrome://tracing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mrclab.experiments.report.chrome_trace import trace_of
from mrclab.linux.errors import InputError

NAME = "trace.json"


def trace(args: argparse.Namespace) -> int:
    """Write the trace of a result directory. Raise InputError if it has no events and no faults."""
    source = Path(args.directory)
    if not source.is_dir():
        raise InputError(f"no directory '{args.directory}': give the result directory of a run")
    target = Path(args.out) if args.out is not None else source / NAME
    document = trace_of(source)
    try:
        target.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from None
    print(target)
    return 0
