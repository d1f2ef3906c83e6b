"""Results of programs: numbers in their output, reasons of failures, and a check of the arrived bytes."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.trace import Trace

MOST_BYTES = 16 << 20
"""Only the last part of an output is read: this number of bytes."""
MOST_VALUES = 100_000
MOST_CHARACTERS = 200


def tail_of(path: Path) -> str:
    """Return the end of a program's output; empty if the file does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - MOST_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def found_in(path: Path, patterns: Mapping[str, str]) -> dict[str, list[float]]:
    """Return, for each pattern, the numbers that its group matches in the lines of an output, in order."""
    return {name: values_in(tail_of(path), pattern) for name, pattern in patterns.items()}


def values_in(text: str, pattern: str) -> list[float]:
    """Return the finite numbers that the pattern's only group matches in the lines of a text."""
    found: list[float] = []
    for line in text.splitlines():
        for match in re.finditer(pattern, line):
            try:
                value = float((match[1] or "").replace(",", ""))
            except ValueError:
                continue
            if math.isfinite(value) and len(found) < MOST_VALUES:
                found.append(value)
    return found


def failure_of(host: str, words: Sequence[str], code: int, output: Path) -> str:
    """Return a message about a failed program: host, name, exit code or signal, and last line of output."""
    how = f"exit code {code}"
    if code < 0:
        try:
            how = f"ended by {signal.Signals(-code).name}"
        except ValueError:
            how = f"ended by signal {-code}"
    lines = [line.strip() for line in tail_of(output).splitlines() if line.strip()]
    last = "".join(c for c in lines[-1] if c.isprintable())[:MOST_CHARACTERS] if lines else ""
    return f"{host} {Path(words[0]).name} {how}" + (f" ({last})" if last else "")


def program_metrics(details: Mapping[str, Any], goodput_mbps: list[float] | None) -> dict[str, list[float]]:
    """Return programs' metrics: goodput from captures, bytes of completed writes, values from output."""
    found: dict[str, list[float]] = {} if goodput_mbps is None else {"goodput_mbps": goodput_mbps}
    found["completed_bytes"] = [float(sum(row["bytes"] for row in details.get("requests", ())))]
    for program in details.get("programs", ()):
        for name, values in program["metrics"].items():
            found.setdefault(name, []).extend(values)
    return found


def missing_bytes(e: Evidence, traces: Sequence[Trace]) -> str | None:
    """Return an error if the captures have fewer arrived bytes than the programs' completed writes.

    Return None without captures, or if a capture lost packets.
    """
    lossless = e.recording is not None and not any(e.recording.drops.values())
    arrived = {
        (trace.paths[0].src, trace.paths[0].dst): int(trace.received.payload[trace.received.first].sum())
        for trace in traces
        if trace.paths and lossless
    }
    for row in e.details.get("requests", ()):
        there = arrived.get((row["src"], row["dst"]))
        if there is not None and there < row["bytes"]:
            return (
                f"{row['src']} to {row['dst']}: writes of {row['bytes']} bytes completed, "
                f"{there} bytes arrived"
            )
    return None
