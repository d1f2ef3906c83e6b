"""Measure a fault that a viewer made: the times until detection, the change of paths, and recovery.

The times are computed from captures at the hosts' NICs, as in experiments
(`mrclab.experiments.measure.recovery`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np

from mrclab.experiments.live.captures.tap import RECORD, SNAP_BYTES, Tap, pcap_records
from mrclab.experiments.measure.events import detected, retires_paths, ways_between
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.pcap import LINKTYPE_LINUX_SLL2, Packets, file_header, parse_pcap
from mrclab.experiments.measure.recording import ClockMap, OffsetSample
from mrclab.experiments.measure.recovery import Measured, Retirements, Span, Times, spans, times
from mrclab.experiments.measure.tcp import Segments, build_tcp_trace, parse_segments
from mrclab.experiments.measure.trace import NEVER, Trace, build_trace
from mrclab.hosts.transports.table import TRANSPORTS, Transport
from mrclab.live.sending import Flow
from mrclab.topologies import Fabric

RING_BYTES = 8 << 20
NAME = "the live capture"
IDLE_NS = 2_000_000_000
"""The age, ns, up to which records are kept if no fault is being measured."""
MOST_NS = 12_000_000_000
"""The age, ns, up to which records are kept if a fault is being measured."""


class Pieces:
    """Pieces of a capture, oldest first. Old pieces are dropped to limit the age and the size.

    One thread adds pieces. Other threads may read them, and may set ``since_ns``.
    """

    def __init__(self, most_bytes: int) -> None:
        self.since_ns: int | None = None
        """The time (monotonic) from which records are kept. None: keep the records of the last `IDLE_NS`."""
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._dropped_ns = -1
        self._pieces: deque[tuple[int, bytes]] = deque()

    def add(self, now_ns: int, piece: bytes) -> None:
        """Add records that were captured at ``now_ns``."""
        self._pieces.append((now_ns, piece))
        self.held_bytes += len(piece)
        self.forget(now_ns)

    def forget(self, now_ns: int) -> None:
        """Drop the pieces that are too old. If the total size is too large, also drop the oldest pieces."""
        idle_ns = now_ns - IDLE_NS
        since_ns = idle_ns if self.since_ns is None else max(now_ns - MOST_NS, min(idle_ns, self.since_ns))
        while self._pieces and (self._pieces[0][0] < since_ns or self.held_bytes > self._most_bytes):
            self._dropped_ns, piece = self._pieces.popleft()
            self.held_bytes -= len(piece)

    def between(self, since_ns: int, until_ns: int) -> Iterator[bytes]:
        """Yield the pieces of the capture that were recorded between two times, oldest first."""
        return (piece for taken_ns, piece in self._pieces if since_ns <= taken_ns <= until_ns)

    def reach(self, since_ns: int) -> bool:
        """Return True if all pieces from ``since_ns`` on are still kept."""
        return self._dropped_ns < since_ns


class RecentCapture(Tap):
    """A tap that keeps the newest records in memory and writes no file."""

    def __init__(self, namespace: str, interfaces: Sequence[str], offset_ns: int, most_bytes: int) -> None:
        """Begin to record. Raise MachineError or SwitchError if the kernel refuses the capture."""
        self.pieces = Pieces(most_bytes)
        nowhere = Path(gettempdir()) / "none.pcap"  # no file is written: records stay in memory
        super().__init__(nowhere, namespace, interfaces, offset_ns, RING_BYTES)

    def _carry(self) -> None:
        now_ns = time.monotonic_ns()
        for piece in self._ring.pieces(RECORD.itemsize):
            self.pieces.add(now_ns, bytes(piece))
        self.pieces.forget(now_ns)

    def packets(self, since_ns: int, until_ns: int) -> Packets:
        """Return the packets recorded from shortly before ``since_ns`` until ``until_ns`` (both monotonic).

        Call ``carry`` first, so that the newest packets are read from the kernel's ring.
        """
        return parse_pcap(self._pcap(since_ns, until_ns), NAME)

    def segments(self, since_ns: int, until_ns: int) -> Segments:
        """Return the TCP segments with data, recorded from shortly before ``since_ns`` until ``until_ns``."""
        return parse_segments(self._pcap(since_ns, until_ns), NAME)

    def _pcap(self, since_ns: int, until_ns: int) -> bytes:
        with self._carrying:
            chosen = b"".join(self.pieces.between(since_ns, until_ns))
        records = np.frombuffer(chosen, RECORD)
        offset_ns = self.offset_ns
        assert offset_ns is not None
        return file_header(SNAP_BYTES, LINKTYPE_LINUX_SLL2) + pcap_records(records, offset_ns)

    def close(self) -> None:
        """End the capture."""
        self.kill()


BEFORE_NS = 150_000_000
"""The length, ns, of the time before a fault that is also evaluated."""
LOOK_AFTER_S = (0.35, 0.8, 1.6, 3.0, 5.0, 8.0, 11.0)
"""The times, s, after a fault at which the captures are evaluated."""
LOOK_UNDONE_S = (0.35, 0.8, 1.2, 1.6, 2.2, 3.0, 5.0)
"""The times, s, after a fault's end at which the captures are evaluated. At first the times are close
together, because viewers wait for the recovery."""
OVER_NS = 1_000_000_000
MOST_PACKETS = 1500
STAYS = "it has one path, and stays on it: the last packet into the break is its last retry"
AROUND_NS = 3_000_000


@dataclass
class Card:
    """A card of the page: one fault, with the results that are known so far."""

    number: int
    fault: FaultRecord
    text: str
    undone: bool = False
    closed: bool = False
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The measured times of each transport in microseconds, with the reason if a time is missing."""
    flows: Mapping[str, Sequence[Flow]] = field(default_factory=dict)
    """The flows of each transport when the fault began. Connections made later have different QPNs."""
    gave_up: set[str] = field(default_factory=set)
    """The transports that have given up a connection since the fault."""
    due_s: list[float] = field(default_factory=list)
    """The times (monotonic) at which the captures are evaluated again."""

    def __post_init__(self) -> None:
        self.due_s = [self.fault.t_after_ns / 1e9 + after for after in LOOK_AFTER_S]

    def undo(self, before_ns: int, after_ns: int) -> None:
        """Record when the fault was undone, and plan more evaluations after that time."""
        self.fault = replace(self.fault, restore_before_ns=before_ns, restore_after_ns=after_ns)
        self.undone = True
        if self.closed:
            return
        self.due_s += [after_ns / 1e9 + after for after in LOOK_UNDONE_S]

    @property
    def due(self) -> bool:
        """Return True if the next evaluation is due."""
        return bool(self.due_s) and self.due_s[0] <= time.monotonic()

    @property
    def urgency(self) -> tuple[bool, int]:
        """The sort key of due cards: cards without results come first, and newer cards before older cards."""
        return (bool(self.results), -self.number)

    def begin_look(self) -> None:
        """Remove the evaluation times that have passed."""
        now = time.monotonic()
        self.due_s = [due for due in self.due_s if due > now]

    @property
    def open_transports(self) -> list[str]:
        """The transports whose recovery is not known yet."""
        return [name for name in self.flows if self.results.get(name, {}).get("recovered_us") is None]

    @property
    def unsettled(self) -> bool:
        """Return True if the captures since the fault may still be needed."""
        waiting = {name for name in self.open_transports if self.results.get(name, {}).get("felt")}
        return bool(self.due_s) or (not self.undone and not self.closed and bool(waiting - self.gave_up))

    def take(self, results: Mapping[str, dict[str, Any]], *, whole: bool, over: bool = False) -> None:
        """Store the results of an evaluation. If they are complete, plan no more evaluations.

        If ``whole`` is false, the captures lack the beginning of the fault. Then keep the earlier results for
        the beginning. If ``over`` is true, the fault was undone some time ago and can cause no more losses.
        Then the results of a transport without losses are complete.
        """
        if not whole:
            results = {name: _continued(self.results.get(name), one) for name, one in results.items()}
        self.results = {**self.results, **results}
        self._mark_given_up()
        waiting = [name for name, one in self.results.items() if one["recovered_us"] is None]
        if self.results and not (any(self.results[name]["felt"] for name in waiting) if over else waiting):
            self.due_s = []

    def give_up(self, name: str) -> None:
        """Record that a transport has given up a connection, also if no evaluation will follow."""
        if not self.closed and self.results.get(name, {}).get("felt", True):
            self.gave_up.add(name)
            self._mark_given_up()

    def _mark_given_up(self) -> None:
        for name in self.gave_up & set(self.results):
            if self.results[name]["recovered_us"] is None:
                self.results[name] = {**self.results[name], "gave_up": True}

    def close(self) -> None:
        """Plan no more evaluations, because the captures of this fault's traffic were deleted."""
        self.due_s = []
        self.closed = True

    def to_dict(self) -> dict[str, Any]:
        """Return the card as a dictionary for the page. Later changes of the card do not change this copy."""
        return {
            "number": self.number,
            "where": self.fault.where,
            "kind": self.fault.kind,
            "text": self.text,
            "t_ns": self.fault.middle_ns,
            "undone": self.undone,
            "results": dict(self.results),
        }


def _continued(known: dict[str, Any] | None, later: dict[str, Any]) -> dict[str, Any]:
    """Return the known result, with the recovery times of a later evaluation.

    The captures of the later evaluation lack the start of the fault, so its other values are not used.
    """
    if known is None or not known["felt"]:
        return later
    if not later["felt"]:
        return known
    recovered = {key: value for key, value in later.items() if key.startswith("recovered")}
    return {**known, **recovered, "recovered_since_loss_us": None}


@dataclass(frozen=True)
class Watched:
    """The flows of a transport, and which EVs each sending host has retired, with the times."""

    name: str
    flows: Sequence[Flow]
    retired: Mapping[str, Retirements]

    @property
    def transport(self) -> Transport:
        """The transport's description, changed for the live page: packets take SRv6 paths in all planes."""
        known = TRANSPORTS[self.name]
        return replace(known, routing="srv6", one_plane=False) if known.core.has_nic else known


def traces_of(
    watched: Watched, captures: Mapping[str, RecentCapture], fabric: Fabric, since_ns: int, until_ns: int
) -> list[Trace]:
    """Return the packets that the flows of a transport sent between two times (CLOCK_MONOTONIC)."""
    packets: dict[str, Packets] = {}
    segments: dict[str, Segments] = {}
    found = []
    for pair in dict.fromkeys((flow.source, flow.target) for flow in watched.flows):
        source, target = pair
        if source not in captures or target not in captures:
            continue
        offset_ns = captures[source].offset_ns
        assert offset_ns is not None
        clock = ClockMap.of([OffsetSample(since_ns, offset_ns, 0)])
        paths = fabric.paths(source, target)
        if watched.transport.core.trace == "tcp":
            for host in pair:
                if host not in segments:
                    segments[host] = captures[host].segments(since_ns, until_ns)
            found.append(build_tcp_trace(segments[source], segments[target], paths, clock, fabric))
            continue
        for host in pair:
            if host not in packets:
                packets[host] = captures[host].packets(since_ns, until_ns)
        qpns = {
            qpn
            for flow in watched.flows
            if (flow.source, flow.target) == pair
            for qpn in (flow.source_qpn, flow.target_qpn)
        }
        sender, receiver = (_only(packets[host], qpns) for host in pair)
        found.append(build_trace(sender, receiver, paths, clock, fabric))
    return found


def _only(packets: Packets, qpns: set[int]) -> Packets:
    """Return only the packets of these queue pairs. All transports of a host have the same addresses."""
    chosen = np.isin(packets.rows["qp"], list(qpns))
    return replace(packets, rows=packets.rows[chosen])


@dataclass(frozen=True)
class Look:
    """The result of one evaluation of the captures, by transport."""

    results: Mapping[str, dict[str, Any]]
    packets: Mapping[str, dict[str, Any]]
    """The packets around the fault (see `packets_around`), of the flow with the most losses."""
    over: bool
    """True if the evaluated captures end more than `OVER_NS` after the fault was undone."""
    whole: bool
    """False if the captures no longer include the beginning of the fault."""


def work_out(
    fault: FaultRecord,
    watched: Sequence[Watched],
    captures: Mapping[str, RecentCapture],
    fabric: Fabric,
    until_ns: int,
) -> Look:
    """Compute the times of a fault from the captures until ``until_ns`` (monotonic).

    The caller must read the retirements in ``watched`` after ``until_ns``. Otherwise the result may
    lack the fault's detection.
    """
    results, packets = {}, {}
    for one in watched:
        traces = traces_of(one, captures, fabric, fault.t_before_ns - BEFORE_NS, until_ns)
        if not traces:
            continue
        first = min((t.span_ns[0] for t in traces if t.span_ns[0]), default=fault.t_before_ns - BEFORE_NS)
        [span] = spans([fault], first, until_ns)
        pairs = list(dict.fromkeys((flow.source, flow.target) for flow in one.flows))
        seen = detected(
            one.transport, ways_between(fabric, pairs, one.transport.routing), one.retired, (), fault, span
        )
        known = one.retired if retires_paths(one.transport) else None
        found = _result(times(traces, fault, span, seen, known), traces, fault, span)
        if known is None and one.transport.kind == "rocev2" and found["felt"]:
            found |= {"rerouted_us": None, "rerouted_why": STAYS}
        results[one.name] = found
        hit = max(traces, key=lambda trace: int(trace.sent.lost.sum()))
        packets[one.name] = packets_around(hit, fault, found["recovered_us"])
    whole = all(capture.pieces.reach(fault.t_before_ns) for capture in captures.values())
    over = fault.restore_after_ns is not None and until_ns > fault.restore_after_ns + OVER_NS
    return Look(results, packets, over, whole)


def _result(result: Times, traces: Sequence[Trace], fault: FaultRecord, span: Span) -> dict[str, Any]:
    names = ("first_loss", "detected", "rerouted", "recovered", "recovered_since_loss")
    found: dict[str, Any] = {"felt": result.felt, "lost": result.lost, "rule": result.rule}
    for name in names:
        measured: Measured = getattr(result, name)
        found[f"{name}_us"] = None if measured.ns is None else round(measured.ns / 1e3, 1)
        if measured.ns is None:
            found[f"{name}_why"] = measured.reason
    rtts = [
        t.round_trips.rtt_ns[(t.round_trips.t_ns >= span.start) & (t.round_trips.t_ns < fault.t_before_ns)]
        for t in traces
    ]
    together = np.concatenate(rtts) if rtts else np.zeros(0)
    found["rtt_us"] = round(float(np.median(together)) / 1e3, 1) if len(together) else None
    return found


def packets_around(trace: Trace, fault: FaultRecord, recovered_us: float | None) -> dict[str, Any]:
    """Return the transmissions around a fault, to draw each packet. Times are in us after the fault.

    Each of ``rows`` is [time, path, PSN, fate, sent again (0 or 1), arrival or null]. Fate: 0 arrived, 1
    lost, 2 trimmed. ``paths`` has the name of each path, ``links`` the links of each path. There are at
    most `MOST_PACKETS` rows.
    """
    zero = fault.middle_ns
    end = zero + round((recovered_us or 20_000.0) * 1e3) + AROUND_NS
    sent = trace.sent
    chosen = np.flatnonzero((sent.t_ns >= zero - AROUND_NS) & (sent.t_ns <= end))[:MOST_PACKETS]
    rows = []
    for index in chosen.tolist():
        arrived = int(sent.arrived_ns[index])
        fate = 2 if sent.trimmed[index] else int(arrived == NEVER)
        rows.append(
            [
                round((int(sent.t_ns[index]) - zero) / 1e3, 1),
                int(sent.path[index]),
                int(sent.psn[index]),
                fate,
                int(sent.rtx[index]),
                None if arrived == NEVER else round((arrived - zero) / 1e3, 1),
            ]
        )
    names = [f"plane {p.plane}" + ("" if p.t1 is None else f", T1 {p.t1}") for p in trace.paths]
    broken = [index for index, path in enumerate(trace.paths) if fault.breaks(path)]
    links = [list(path.links) for path in trace.paths]
    return {"paths": names, "links": links, "broken": broken, "rows": rows}
