"""The complete description of one fault: its times, the packets around it, and checks of the endpoints' logs.

The functions are pure. They compute an entry of ``trials`` in result.json from traces, events and times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mrclab.experiments.measure.events import EventLog
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.recovery import (
    CAPTURE_STAMP_NS,
    EVENT_STAMP_NS,
    SILENT_INTERVALS,
    Measured,
    Span,
    Times,
    on_broken_path,
    taken,
    usual_interval,
    within,
)
from mrclab.experiments.measure.trace import IntArray, Trace

TIMES = ("first_loss", "detected", "rerouted", "recovered")


@dataclass(frozen=True, slots=True)
class Check:
    """A check: a claim about a fault, compared with other evidence. ``ok`` is None without such evidence."""

    name: str
    ok: bool | None
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """Return the check as in result.json."""
        return asdict(self)


@dataclass(frozen=True)
class Scene:
    """A fault and its evidence. ``logs`` has the agents' event logs by host; ranks have no logs."""

    traces: tuple[Trace, ...]
    fault: FaultRecord
    span: Span
    times: Times
    logs: Mapping[str, EventLog] = field(default_factory=dict)

    def events(self, trace: Trace) -> EventLog | None:
        """Return the event log of the trace's sender."""
        return self.logs.get(trace.paths[0].src)


def trial_of(scene: Scene, integrity: str = "ok") -> dict[str, Any]:
    """Return the entry of ``trials``, still without the transport, the repetition and the number."""
    traces, fault, span = scene.traces, scene.fault, scene.span
    before = [within(t.sent.t_ns, span.start, fault.t_before_ns) for t in traces]
    here = [within(t.sent.t_ns, span.start, span.end) for t in traces]
    rtts = [t.round_trips.rtt_ns[within(t.round_trips.t_ns, span.start, fault.t_before_ns)] for t in traces]
    rtt = np.concatenate(rtts) if rtts else np.zeros(0, np.int64)
    rtt_us = us(float(np.median(rtt))) if len(rtt) else None
    elsewhere = sum(len(_elsewhere(scene, trace)) for trace in traces)
    pairs = list(zip(traces, before, here, strict=True))
    counts: dict[str, int | None] = {
        "packets_sent": sum(len(np.unique(t.sent.frame[h])) for t, _, h in pairs),
        "lost_packets": scene.times.lost,
        "lost_in_flight": scene.times.in_flight_lost,
        "lost_elsewhere": elsewhere,
        "retransmitted_packets": sum(_frames(t, h, t.sent.rtx) for t, _, h in pairs),
        "spurious_retransmissions": sum(_frames(t, h, t.sent.needless) for t, _, h in pairs),
        "bytes_delivered": sum(_delivered(t, span) for t in traces),
    }
    if not traces:
        counts = dict.fromkeys(counts)
    known = [(t, b) for t, b, _ in pairs if t.paths_known]
    return {
        **times_dict(scene.times, rtt_us),
        "first_rtx_us": us(_first_rtx(scene)),
        "rtt_us": rtt_us,
        "rtt_p99_us": us(float(np.percentile(rtt, 99))) if len(rtt) else None,
        "rtt_samples": len(rtt),
        "in_flight_us": us(span.in_flight_ns),
        **counts,
        "integrity": integrity,
        "evs_used": sum(len(np.unique(t.sent.ev[b])) for t, b in known) if known else None,
        "paths_used": sum(len(np.unique(t.sent.path[b][t.sent.path[b] >= 0])) for t, b in known)
        if known
        else None,
        "broken_paths": sum(fault.breaks(path) for t in traces for path in t.paths) if traces else None,
        "app_gap_us": _gaps(scene),
        "checks": [check.to_dict() for check in checks(scene, elsewhere)] if traces else [],
    }


def times_dict(times: Times, rtt_us: float | None = None) -> dict[str, Any]:
    """Return a fault's times as in a trial: in us with errors, in RTTs, and why a time is missing."""
    found: dict[str, Any] = {"felt": times.felt, "rule": times.rule}
    for name in TIMES:
        measured: Measured = getattr(times, name)
        value = us(measured.ns)
        found[f"{name}_us"] = value
        found[f"{name}_error_us"] = us(measured.error_ns)
        found[f"{name}_rtts"] = round(value / rtt_us, 3) if value is not None and rtt_us else None
        if measured.reason is not None:
            found[f"{name}_reason"] = measured.reason
    return found | {"recovered_since_loss_us": us(times.recovered_since_loss.ns)}


def us(ns: float | None) -> float | None:
    """Convert ns to us, with three decimals; None stays None."""
    return None if ns is None else round(ns / 1000, 3)


def _frames(trace: Trace, part: slice, mask: Any) -> int:
    return len(np.unique(trace.sent.frame[part][mask[part]]))


def _delivered(trace: Trace, span: Span) -> int:
    here = within(trace.received.t_ns, span.start, span.end)
    return int(trace.received.payload[here][trace.received.first[here]].sum())


def _settled(scene: Scene, trace: Trace) -> slice:
    """Return the transmissions that were sent early enough to arrive before the capture ended."""
    end = min(scene.span.end, trace.span_ns[1] - scene.span.in_flight_ns)
    return within(trace.sent.t_ns, scene.span.start, max(end, scene.span.start))


def _elsewhere(scene: Scene, trace: Trace) -> IntArray:
    """Return the lost transmissions that were not lost because of the fault."""
    settled = _settled(scene, trace)
    lost = np.flatnonzero(trace.sent.lost[settled]) + settled.start
    return np.setdiff1d(lost, taken(trace, scene.fault, scene.span))


def _gaps(scene: Scene) -> dict[str, Any]:
    """Return the intervals between the applications' completed messages, from the agents' logs."""
    t_ns, source = np.zeros(0, np.int64), "none"
    for end, name in (("dst", "ReceiveCompleted"), ("src", "SendCompleted")):
        hosts = {getattr(trace.paths[0], end) for trace in scene.traces}
        logged = [event.t_ns for host in hosts if host in scene.logs for event in scene.logs[host].of(name)]
        if len(logged) >= 2:
            t_ns, source = np.sort(np.array(logged, np.int64)), name
            break
    gaps, ends, starts = np.diff(t_ns), t_ns[1:], t_ns[:-1]
    around = (ends > scene.fault.t_before_ns) & (starts < scene.span.repair_before)
    usual = gaps[(ends <= scene.fault.t_before_ns) & (starts >= scene.span.start)]
    return {
        "source": source,
        "longest": us(int(gaps[around].max())) if around.any() else None,
        "before_p50": us(float(np.median(usual))) if len(usual) else None,
        "before_p99": us(float(np.percentile(usual, 99))) if len(usual) else None,
        "before_max": us(int(usual.max())) if len(usual) else None,
    }


def checks(scene: Scene, elsewhere: int) -> tuple[Check, ...]:
    """Compare the endpoints' logs with the captures."""
    recovered = scene.times.recovered
    found = [
        _check_effective(scene),
        Check(
            "all_recovered",
            recovered.ns is not None if scene.times.felt else None,
            recovered.reason or f"{scene.times.lost} lost packets delivered",
        ),
        _check_elsewhere(scene, elsewhere),
    ]
    known = [trace for trace in scene.traces if trace.paths_known]
    if known:
        found += [_check_silence(scene, known), _check_paths(scene, known)]
    if known and all(scene.events(trace) is not None for trace in known):
        found += [_check_first_rtx(scene), _check_claimed(scene), _check_retired(scene, known)]
    return tuple(found)


def _check_effective(scene: Scene) -> Check:
    """Check that no packet sent onto the broken link during the fault arrived before the repair."""
    slipped = count = 0
    for trace in scene.traces:
        during = within(trace.sent.t_ns, scene.fault.t_after_ns, scene.span.repair_before)
        onto = on_broken_path(trace, scene.fault)[during]
        slipped += int(np.count_nonzero(trace.sent.arrived_ns[during][onto] < scene.span.repair_before))
        count += int(np.count_nonzero(onto))
    ok = None if count == 0 or scene.fault.lets_through else slipped == 0
    return Check("fault_effective", ok, f"{slipped} of {count} packets sent onto the cut link came through")


def _check_elsewhere(scene: Scene, lost: int) -> Check:
    settled = [_settled(scene, trace) for trace in scene.traces]
    ok = lost == 0 if any(part.start < part.stop for part in settled) else None
    return Check("no_loss_elsewhere", ok, f"{lost} packets lost on other paths or at other times")


def _check_first_rtx(scene: Scene) -> Check:
    """Check that no lost packet was retransmitted before the sender detected the loss."""
    name = "rtx_not_before_detected"
    if scene.times.detected.ns is None:
        return Check(name, None, "no detection to compare with")
    first = _first_rtx(scene)
    if first is None:
        return Check(name, None, "no lost packet was retransmitted")
    after = first - scene.times.detected.ns
    clock = scene.traces[0].clock
    slack = EVENT_STAMP_NS + CAPTURE_STAMP_NS + clock.error_ns(scene.fault.middle_ns + first)
    return Check(name, after >= -slack, f"first retransmission {after / 1000:+.1f} us from the detection")


def _first_rtx(scene: Scene) -> int | None:
    """Return when the first lost packet was retransmitted, in ns since the fault.

    If this packet was itself a retransmission, return the time of its next retransmission.
    """
    found = []
    for trace in scene.traces:
        sent = trace.sent
        during = within(sent.t_ns, scene.fault.t_before_ns, scene.span.end)
        first: dict[tuple[int, int], int] = {}
        for i in taken(trace, scene.fault, scene.span).tolist():
            first.setdefault((int(sent.flow[i]), int(sent.psn[i])), i)
        for i in (np.flatnonzero(sent.rtx[during]) + during.start).tolist():
            if i > first.get((int(sent.flow[i]), int(sent.psn[i])), i):
                found.append(int(sent.t_ns[i]))
                break
    return max(0, min(found) - scene.fault.middle_ns) if found else None


def _check_silence(scene: Scene, traces: Sequence[Trace]) -> Check:
    """Check that the broken paths had no packets for much longer than the usual time between two packets."""
    rerouted = scene.times.rerouted
    if rerouted.ns is None:
        return Check("silent_after_rerouting", False if scene.times.felt else None, rerouted.reason or "")
    silent = scene.span.repair_before - scene.fault.middle_ns - rerouted.ns
    usual = [usual_interval(t, on_broken_path(t, scene.fault), scene.fault, scene.span) for t in traces]
    interval = max(usual)
    ok = None if interval == 0 else silent >= SILENT_INTERVALS * interval
    detail = f"silent for {silent / 1e6:.1f} ms; usual interval {interval / 1e6:.2f} ms"
    return Check("silent_after_rerouting", ok, detail)


def _check_claimed(scene: Scene) -> Check:
    """Compare the number of retransmissions in the senders' logs with the number in the captures."""
    name, claimed, seen, logged = "retransmissions_as_claimed", 0, 0, False
    for host in {trace.paths[0].src for trace in scene.traces}:
        log = scene.logs[host]
        claimed += len(log.between("Retransmitted", scene.span.start, scene.span.end))
        logged |= bool(log.of("Retransmitted"))
    for trace in scene.traces:
        seen += int(
            np.count_nonzero(trace.sent.rtx[within(trace.sent.t_ns, scene.span.start, scene.span.end)])
        )
    if not logged:
        return Check(name, None if seen else True, f"none claimed, {seen} captured")
    # Near the beginning or the end of the span, an event may count in the log but not in the capture.
    return Check(name, abs(claimed - seen) <= len(scene.traces), f"{claimed} claimed, {seen} captured")


def _check_retired(scene: Scene, traces: Sequence[Trace]) -> Check:
    """Check that during the fault the sender retired only EVs whose paths were broken."""
    wrong: set[int] = set()
    count = 0
    for host in {trace.paths[0].src for trace in traces}:
        broken = {p.ev for t in traces if t.paths[0].src == host for p in t.paths if scene.fault.breaks(p)}
        events = scene.logs[host].between("EvRetired", scene.fault.t_before_ns, scene.span.repair_before)
        count += len(events)
        wrong |= {ev for event in events if (ev := event.int_field("ev")) is not None} - broken
    detail = f"{len(wrong)} sound EVs retired" + (f", such as {min(wrong):#x}" if wrong else "")
    return Check("only_broken_evs_retired", None if not count else not wrong, detail)


def _check_paths(scene: Scene, traces: Sequence[Trace]) -> Check:
    """Check that each packet's outer destination leads to the path of its EV."""
    wrong = count = 0
    for trace in traces:
        here = within(trace.sent.t_ns, scene.span.start, scene.span.end)
        evs = np.array([path.ev for path in trace.paths] + [-1], np.int64)
        wrong += int(np.count_nonzero(evs[trace.sent.path[here]] != trace.sent.ev[here]))
        count += here.stop - here.start
    return Check("ev_matches_path", None if count == 0 else wrong == 0, f"{wrong} of {count} packets differ")
