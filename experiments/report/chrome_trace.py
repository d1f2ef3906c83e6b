"""Convert a run to a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: faults, queue pairs, EVs.

The format is Chrome's JSON Trace Event Format. It has slices ("X") and instants ("i") on tracks, and each
track is a thread of a process. Here, a process is one host in one repetition, or the faults of a repetition.
A thread is a broken place, or an EV of a queue pair. Times are us from the repetition's first fault or event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.events import EventLog, load_events
from mrclab.experiments.measure.faults import FaultRecord, load_faults
from mrclab.linux.errors import InputError

Record = dict[str, Any]
INSTANTS = (
    "PacketLost",
    "Retransmitted",
    "SpuriousLoss",
    "ProbeSent",
    "ProbeAnswered",
    "EvSkipped",
    "EvReplaced",
)
PLANES = ("PlaneDown", "PlaneUp")


class _Tracks:
    """The numbers of processes and threads in a trace, and the records that contain their names."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}

    def place(self, process: str, thread: str) -> dict[str, int]:
        """Return the numbers of a track's process and thread. New names get new numbers."""
        pid = self._processes.get(process)
        if pid is None:
            pid = self._processes[process] = len(self._processes) + 1
            self.records.append(_named("process_name", process, pid=pid))
        tid = self._threads.get((pid, thread))
        if tid is None:
            tid = self._threads[pid, thread] = len(self._threads) + 1
            self.records.append(_named("thread_name", thread, pid=pid, tid=tid))
        return {"pid": pid, "tid": tid}


def _named(what: str, name: str, **place: int) -> Record:
    return {"ph": "M", "name": what, "args": {"name": name}, **place}


def trace_of(directory: Path) -> dict[str, Any]:
    """Return the trace of a run's result directory, as a JSON object.

    Raise InputError if the directory has no event logs and no faults, or if a file cannot be read.
    """
    tracks = _Tracks()
    records: list[Record] = []
    for repetition in sorted(path for path in directory.iterdir() if path.is_dir()):
        records += _repetition(repetition, tracks)
    if not records:
        raise InputError(f"{directory} has no event logs and no faults: is it the directory of a run?")
    return {"displayTimeUnit": "ns", "traceEvents": [*tracks.records, *records]}


def _repetition(directory: Path, tracks: _Tracks) -> Iterator[Record]:
    log = directory / "faults.json"
    faults = load_faults(log) if log.exists() else ()
    logs = {path.stem: load_events(path) for path in sorted((directory / "events").glob("*.jsonl"))}
    moments = [fault.t_before_ns for fault in faults]
    moments += [log.events[0].t_ns for log in logs.values() if log.events]
    if not moments:
        return
    zero = min(moments)
    ends = [fault.restore_after_ns or fault.t_after_ns for fault in faults]
    end = max([*ends, *(log.events[-1].t_ns for log in logs.values() if log.events)])
    for fault in faults:
        yield _fault(fault, tracks.place(f"{directory.name}: faults", fault.where), zero, end)
    for host, events in logs.items():
        yield from _host(f"{directory.name}: {host}", events, tracks, zero, end)


def _fault(fault: FaultRecord, place: Mapping[str, int], zero: int, end: int) -> Record:
    until = fault.restore_before_ns if fault.restore_before_ns is not None else end
    return _slice(fault.kind, place, fault.middle_ns - zero, until - zero, fault.to_dict())


def _slice(
    name: str, place: Mapping[str, int], begin_ns: int, end_ns: int, about: Mapping[str, Any]
) -> Record:
    return {
        "ph": "X",
        "name": name,
        "ts": begin_ns / 1e3,
        "dur": max(0, end_ns - begin_ns) / 1e3,
        "args": dict(about),
        **place,
    }


def _host(process: str, log: EventLog, tracks: _Tracks, zero: int, end: int) -> Iterator[Record]:
    bad: dict[str, tuple[int, Mapping[str, Any]]] = {}
    down: dict[str, int] = {}
    for event in log.events:
        thread = _thread(event.fields)
        if event.name == "EvRetired":
            bad[thread] = event.t_ns, event.fields
        elif event.name == "EvRestored" and thread in bad:
            begun, about = bad.pop(thread)
            yield _slice("assumed bad", tracks.place(process, thread), begun - zero, event.t_ns - zero, about)
        elif event.name in PLANES:
            plane = f"plane {event.fields.get('plane')}"
            if event.name == "PlaneDown":
                down.setdefault(plane, event.t_ns)
            elif plane in down:
                begun = down.pop(plane)
                yield _slice("down", tracks.place(process, plane), begun - zero, event.t_ns - zero, {})
        elif event.name in INSTANTS:
            yield {
                "ph": "i",
                "s": "t",
                "name": event.name,
                "ts": (event.t_ns - zero) / 1e3,
                "args": dict(event.fields),
                **tracks.place(process, thread),
            }
    for thread, (begun, about) in bad.items():
        yield _slice("assumed bad", tracks.place(process, thread), begun - zero, end - zero, about)
    for plane, begun in down.items():
        yield _slice("down", tracks.place(process, plane), begun - zero, end - zero, {})


def _thread(fields: Mapping[str, Any]) -> str:
    qpn, ev = fields.get("qpn"), fields.get("ev")
    return f"QP {qpn}" if ev is None else f"QP {qpn}, EV {ev:#x}"
