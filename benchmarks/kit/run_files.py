"""The files of a finished `mrclab run link-kill`, read back for benchmarks that look at single packets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.events import EventLog, load_events
from mrclab.experiments.measure.faults import FaultRecord, load_faults
from mrclab.experiments.measure.pcap import Packets, read_pcap
from mrclab.experiments.measure.recording import load_recording
from mrclab.experiments.measure.recovery import IN_FLIGHT_NS, Span, spans
from mrclab.experiments.measure.trace import Trace, build_trace
from mrclab.topologies import load_fabric


@dataclass(frozen=True)
class RunFiles:
    """One repetition of a spray between two hosts: its result, faults, captures, trace and event log."""

    result: dict[str, Any]
    faults: tuple[FaultRecord, ...]
    spans: tuple[Span, ...]
    sender: Packets
    receiver: Packets
    trace: Trace
    log: EventLog
    """The event log of the sender."""


def read_run(directory: Path, transport: str = "mrc") -> RunFiles:
    """Read a result directory. Raise InputError on a malformed file."""
    result = json.loads((directory / "result.json").read_text())
    folder = directory / f"{transport}-0"
    src, dst = sorted(path.stem for path in (folder / "captures").glob("*.pcap"))
    sender, receiver = (read_pcap(folder / "captures" / f"{host}.pcap") for host in (src, dst))
    fabric = load_fabric(result["parameters"]["topology"])
    clock = load_recording(next(folder.rglob("recording.json"))).clock
    trace = build_trace(sender, receiver, fabric.paths(src, dst), clock, fabric)
    faults = load_faults(folder / "faults.json")
    begin, end = trace.span_ns
    return RunFiles(
        result,
        faults,
        tuple(spans(faults, begin, end, IN_FLIGHT_NS)),
        sender,
        receiver,
        trace,
        load_events(folder / "events" / f"{src}.jsonl"),
    )
