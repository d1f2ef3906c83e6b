"""The times of a fault that a viewer made, transport by transport, from the captures of the last seconds.

The rule is that of every experiment: `experiments.measure.recovery`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from experiments.measure.clock import ClockMap, OffsetSample
from experiments.measure.detection import detected, retires_paths, ways_between
from experiments.measure.faults import FaultRecord
from experiments.measure.pcap import Packets
from experiments.measure.recovery import Measured, Retirements, Span, Times, spans, times
from experiments.measure.trace import NEVER, Trace, build_trace
from experiments.spec.transports import Transport
from hosts.transports import TRANSPORTS
from mrclab.live.recent_capture import RecentCapture
from mrclab.live.traffic import Flow
from topologies import Fabric

BEFORE_NS = 150_000_000
"""How much is looked at before the fault."""
LOOK_AFTER_S = (0.35, 0.8, 1.6, 3.0, 5.0, 8.0)
"""When the times are worked out, after the fault and again after it is undone."""
MOST_PACKETS = 1500
AROUND_NS = 3_000_000


@dataclass
class Card:
    """One fault, and what is known of it so far."""

    number: int
    fault: FaultRecord
    text: str
    undone: bool = False
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By transport: the times in microseconds, and why where there is none."""
    due_s: list[float] = field(default_factory=list)
    """Moments (monotonic) at which to look again."""

    def __post_init__(self) -> None:
        self.due_s = [self.fault.t_after_ns / 1e9 + after for after in LOOK_AFTER_S]

    def undo(self, before_ns: int, after_ns: int) -> None:
        """Note when the fault was undone, and look again after that."""
        self.fault = replace(self.fault, restore_before_ns=before_ns, restore_after_ns=after_ns)
        self.undone = True
        self.due_s += [after_ns / 1e9 + after for after in LOOK_AFTER_S[:4]]

    @property
    def due(self) -> bool:
        """Return True if it is time to look."""
        return bool(self.due_s) and self.due_s[0] <= time.monotonic()

    def looked(self) -> None:
        """Strike out the moments that are over, and those that would show nothing new."""
        now = time.monotonic()
        self.due_s = [due for due in self.due_s if due > now]
        if self.results and all(r["recovered_us"] is not None for r in self.results.values()):
            self.due_s = []

    def to_dict(self) -> dict[str, Any]:
        """Return it as the page takes it."""
        return {
            "number": self.number,
            "where": self.fault.where,
            "kind": self.fault.kind,
            "text": self.text,
            "t_ns": self.fault.middle_ns,
            "undone": self.undone,
            "results": self.results,
        }


@dataclass(frozen=True)
class Watched:
    """What is known of a transport's flows: who sends to whom, and when which host retired which EVs."""

    name: str
    flows: Sequence[Flow]
    retired: Mapping[str, Retirements]

    @property
    def transport(self) -> Transport:
        """The transport as experiments know it."""
        known = TRANSPORTS[self.name]
        return Transport(known.name, known.kind, "srv6", known.meaning, known.options)


def traces_of(
    watched: Watched, captures: Mapping[str, RecentCapture], fabric: Fabric, since_ns: int
) -> list[Trace]:
    """Return what the flows of a transport sent since a moment (monotonic)."""
    packets: dict[str, Packets] = {}
    found = []
    for pair in dict.fromkeys((flow.source, flow.target) for flow in watched.flows):
        source, target = pair
        if source not in captures or target not in captures:
            continue
        for host in pair:
            if host not in packets:
                packets[host] = captures[host].packets(since_ns)
        qpns = {
            qpn
            for flow in watched.flows
            if (flow.source, flow.target) == pair
            for qpn in (flow.source_qpn, flow.target_qpn)
        }
        offset_ns = captures[source].offset_ns
        assert offset_ns is not None
        clock = ClockMap.of([OffsetSample(since_ns, offset_ns, 0)])
        sender, receiver = (_only(packets[host], qpns) for host in pair)
        found.append(build_trace(sender, receiver, fabric.paths(source, target), clock, fabric))
    return found


def _only(packets: Packets, qpns: set[int]) -> Packets:
    """Return the packets of these queue pairs: two transports share the hosts' addresses."""
    chosen = np.isin(packets.rows["qp"], list(qpns))
    return replace(packets, rows=packets.rows[chosen])


def work_out(
    card: Card, watched: Sequence[Watched], captures: Mapping[str, RecentCapture], fabric: Fabric
) -> dict[str, list[Trace]]:
    """Work out the times of a card's fault as far as they are known now; return traces by transport."""
    fault = card.fault
    kept = {}
    now_ns = time.monotonic_ns()
    for one in watched:
        traces = traces_of(one, captures, fabric, fault.t_before_ns - BEFORE_NS)
        kept[one.name] = traces
        if not traces:
            continue
        first = min((t.span_ns[0] for t in traces if t.span_ns[0]), default=fault.t_before_ns - BEFORE_NS)
        [span] = spans([fault], first, now_ns)
        pairs = list(dict.fromkeys((flow.source, flow.target) for flow in one.flows))
        seen = detected(one.transport, ways_between(fabric, pairs), one.retired, (), fault, span)
        known = one.retired if retires_paths(one.transport) else None
        result = times(traces, fault, span, seen, known)
        card.results[one.name] = _result(result, traces, fault, span)
    return kept


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
    """Return the transmissions around a fault, for a picture packet by packet; times in us after the fault.

    ``rows`` are [time, path, PSN, fate (0 arrived, 1 lost, 2 trimmed), sent again (0, 1), arrival or null];
    ``paths`` names each path. The newest `MOST_PACKETS` at most.
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
    return {"paths": names, "broken": broken, "rows": rows}
