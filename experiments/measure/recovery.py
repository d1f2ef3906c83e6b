"""The times of a fault, computed by the same rule for all transports from traces, faults and detections.

All times are counted from the fault. The clock is read before and after the fault is made. The time of the
fault is the middle between these two readings.

* first loss: when the first packet that was lost because of the fault was sent;
* detected: when a sender retired the first path that the fault broke, or the first route changed
(`mrclab.experiments.measure.events`);
* rerouted: when the last data packet was sent onto a path that the fault broke;
* recovered: when the last byte that was lost because of the fault has arrived, and a sender has detected the
fault.

A transmission was lost because of the fault if it left the sender's NIC on a path that the fault breaks, and
did not arrive at the receiver. Only transmissions from shortly before the fault until the repair count.
Without a segment list, packets do not show their path, but all packets of a flow (queue pair, connection)
take one path. If the fault drops every frame, the flow's losses count until the first packet that arrives.
This packet shows that the flow uses a working path. If a fault drops only a share of the frames, every loss
counts.

If nothing was lost because of a fault, the fault was not felt, and has no times. It is possible that a fault
drops only acknowledgements. Then no data is lost, but the sender may stop sending for some time. The longest
gap between messages shows how long this time was. The sender may also send data again that has arrived
already. If such a copy is lost, no data is lost either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.trace import NEVER, BoolArray, IntArray, Trace

# The largest difference between the kernel's time of a frame and the time on the wire.
CAPTURE_STAMP_NS = 1_000
# The largest error of an event's time: an endpoint reads the clock once per wake-up, before the event.
EVENT_STAMP_NS = 1_000
# The longest time of a packet between software hosts. Packets sent this long before a fault have arrived.
IN_FLIGHT_NS = 20_000_000
# If a sender sends nothing on a path for this number of normal intervals, it does not use the path any more.
SILENT_INTERVALS = 5.0
# The time before the fault in which the normal interval between packets is measured.
BASELINE_NS = 100_000_000

BY_SEGMENT_LIST = "captures at both ends; paths by the packets' segment lists"
BY_FLOW = (
    "captures at both ends; a flow's unbroken run of losses from the fault on, since packets show no path"
)
BY_LATE_MESSAGES = (
    "late messages of the application: captures cannot say which bytes were sent again on another subflow"
)
NOT_CAPTURED = "late messages of the application: nothing was captured"
NO_RULE = "none: nothing was captured that could say, and the workload has no messages that could be late"

STILL_USED = "a path that the fault broke was still in use when it was repaired"
NOT_FELT = "the fault took no packet"
TOOK_ANSWERS = "the fault took no data, but acknowledgements: see the longest gap"
NO_MESSAGE_LATE = "no message was late while the fault lasted"
FEW_MESSAGES = "too few messages arrived in the 500 ms before the fault to know which ones are late"
NO_PACKETS = "not applicable: this rule looks at messages, not at packets"


@dataclass(frozen=True, slots=True)
class Measured:
    """A time since the fault and its error (+-), ns. If ``ns`` is None, ``reason`` says why."""

    ns: int | None
    error_ns: int | None = None
    reason: str | None = None


class Retirements(NamedTuple):
    """The times at which a sender retired EVs, and these EVs: two arrays of shape (n,) in order of time."""

    t_ns: IntArray
    ev: IntArray

    def between(self, start_ns: int, end_ns: int) -> Retirements:
        """Return the retirements with start <= t < end."""
        chosen = within(self.t_ns, start_ns, end_ns)
        return Retirements(self.t_ns[chosen], self.ev[chosen])


@dataclass(frozen=True, slots=True)
class Span:
    """The time span of a fault (monotonic ns).

    The baseline begins at ``start``. ``repair_before`` and ``repair_after`` are the times around the repair.
    If there is no repair, both are ``end``. ``in_flight_ns`` is the longest time that a packet spends in the
    network.
    """

    start: int
    end: int
    repair_before: int
    repair_after: int
    in_flight_ns: int = IN_FLIGHT_NS


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one fault. ``felt`` is None if it is unknown whether a packet was lost."""

    rule: str
    felt: bool | None
    first_loss: Measured
    detected: Measured
    rerouted: Measured
    recovered: Measured
    lost: int | None = None
    in_flight_lost: int | None = None

    @property
    def recovered_since_loss(self) -> Measured:
        """The time from the first loss to the recovery. The time before this loss does not count."""
        if self.recovered.ns is None or self.first_loss.ns is None:
            return Measured(None, reason=self.recovered.reason)
        return Measured(self.recovered.ns - self.first_loss.ns, self.recovered.error_ns)


def spans(
    faults: Sequence[FaultRecord], first_ns: int, last_ns: int, in_flight_ns: int = IN_FLIGHT_NS
) -> list[Span]:
    """Return the time span of each fault in a run from ``first_ns`` to ``last_ns``.

    A fault that is never repaired lasts until the end of the run. ``in_flight_ns`` is the longest time of a
    packet in the network.
    """
    found = []
    repaired = first_ns
    starts = []
    for fault in faults:
        start = max(fault.t_before_ns - BASELINE_NS, min(repaired, fault.t_before_ns))
        starts.append(min(start, fault.t_before_ns))
        repaired = fault.restore_after_ns if fault.restore_after_ns is not None else fault.t_after_ns
    ends = [*starts[1:], max(last_ns + 1, repaired)] if starts else []
    for fault, start, following in zip(faults, starts, ends, strict=True):
        before = fault.restore_before_ns if fault.restore_before_ns is not None else last_ns + 1
        after = fault.restore_after_ns if fault.restore_after_ns is not None else last_ns + 1
        found.append(Span(start, max(following, fault.t_after_ns), before, after, in_flight_ns))
    return found


def within(t_ns: IntArray, start_ns: int, end_ns: int) -> slice:
    """Return the slice of sorted times with start <= t < end."""
    low, high = np.searchsorted(t_ns, [start_ns, end_ns], side="left")
    return slice(int(low), int(high))


def on_broken_path(trace: Trace, fault: FaultRecord) -> BoolArray:
    """Return a mask of the transmissions on a path that the fault breaks; all False if paths are unknown."""
    breaks = np.array([fault.breaks(path) for path in trace.paths] + [False])  # the last value is for path -1
    return breaks[trace.sent.path]


def taken(trace: Trace, fault: FaultRecord, span: Span) -> IntArray:
    """Return the indices of the transmissions that were lost because of the fault, in order of time."""
    if not any(fault.breaks(path) for path in trace.paths):
        return np.zeros(0, np.int64)
    sent = trace.sent
    exposed = within(sent.t_ns, max(span.start, fault.t_before_ns - span.in_flight_ns), span.repair_after)
    lost = sent.lost[exposed]
    if trace.paths_known:
        found: IntArray = np.flatnonzero(on_broken_path(trace, fault)[exposed] & lost) + exposed.start
        return found
    if fault.takes_share:
        since: IntArray = np.flatnonzero(lost & (sent.t_ns[exposed] >= fault.t_before_ns)) + exposed.start
        return since
    runs = [np.zeros(0, np.int64)]
    for flow in np.unique(sent.flow[exposed]):
        ours = np.flatnonzero(sent.flow[exposed] == flow) + exposed.start
        runs.append(ours[_run_of_losses(sent.t_ns[ours], sent.lost[ours], fault, span)])
    return np.sort(np.concatenate(runs))


def _with_data(trace: Trace, lost: IntArray) -> IntArray:
    """Return the lost transmissions whose data had not arrived earlier."""
    found: IntArray = lost[trace.sent.first_ns[lost] > trace.sent.t_ns[lost]]
    return found


def _run_of_losses(t_ns: IntArray, lost: BoolArray, fault: FaultRecord, span: Span) -> slice:
    """Return a flow's unbroken series of losses around the fault; empty if packets continue to arrive."""
    made = int(np.searchsorted(t_ns, fault.t_after_ns, side="left"))
    repair = int(np.searchsorted(t_ns, span.repair_before, side="left"))
    arrived = np.flatnonzero(~lost)
    before, after = arrived[arrived < made], arrived[arrived >= made]
    start = int(before[-1]) + 1 if len(before) else 0
    end = int(after[0]) if len(after) else len(lost)
    if end == made and made < repair:
        return slice(0, 0)  # the first packet during the fault arrived: the flow is on another path
    return slice(start, end)


def times(
    traces: Sequence[Trace],
    fault: FaultRecord,
    span: Span,
    detected: Measured,
    retired: Mapping[str, Retirements] | None = None,
) -> Times:
    """Return the times of a fault from the traces of all pairs of hosts (at least one).

    ``detected`` comes from endpoints or routes. If senders detect faults, ``retired`` has the retirements of
    each sending host. Then a recovery cannot end before the detection, because the sender uses the broken
    path until the detection.
    """
    lost = [taken(trace, fault, span) for trace in traces]
    rule = BY_SEGMENT_LIST if all(trace.paths_known for trace in traces) else BY_FLOW
    with_data = [_with_data(trace, indices) for trace, indices in zip(traces, lost, strict=True)]
    hit = [(trace, data) for trace, data in zip(traces, with_data, strict=True) if len(data)]
    if not hit:
        nothing = Measured(None, reason=why_not_felt(traces, fault, span))
        return Times(rule, False, nothing, nothing, nothing, nothing, 0, 0)
    clock = traces[0].clock
    zero = fault.middle_ns

    def since(at_ns: int) -> Measured:
        error = fault.half_width_ns + CAPTURE_STAMP_NS + clock.error_ns(at_ns)
        return Measured(max(at_ns - zero, 0), error)

    first_ns = min(int(trace.sent.t_ns[indices].min()) for trace, indices in hit)
    left = [
        _left(trace, fault, span, indices, retired or {})
        for trace, indices, data in zip(traces, lost, with_data, strict=True)
        if len(data)
    ]
    rerouted = (
        Measured(None, reason=STILL_USED) if None in left else since(max(t for t in left if t is not None))
    )
    firsts = np.concatenate([trace.sent.first_ns[indices] for trace, indices in hit])
    missing = int(np.count_nonzero(firsts == NEVER))
    if missing:
        recovered = Measured(None, reason=f"{missing} of {len(firsts)} lost packets were never delivered")
    else:
        recovered = since(int(firsts.max()))
        if retired is not None and detected.ns is not None and recovered.ns is not None:
            recovered = max(recovered, detected, key=lambda measured: measured.ns or 0)
    frames = sum(len(np.unique(trace.sent.frame[indices])) for trace, indices in hit)
    in_flight = sum(
        len(np.unique(trace.sent.frame[indices[trace.sent.t_ns[indices] < fault.t_before_ns]]))
        for trace, indices in hit
    )
    return Times(rule, True, since(first_ns), detected, rerouted, recovered, frames, in_flight)


def why_not_felt(traces: Sequence[Trace], fault: FaultRecord, span: Span) -> str:
    """Return why nothing was lost because of a fault, as far as the traces show it."""
    meets = [trace for trace in traces if any(fault.breaks(path) for path in trace.paths)]
    if not meets:
        return f"{NOT_FELT}: {fault.where} lies on no path from a sender to a receiver"
    known = [trace for trace in meets if trace.paths_known]
    for trace in meets:
        during = within(trace.sent.t_ns, fault.t_before_ns, max(span.end, span.repair_after))
        if not trace.paths_known and trace.sent.needless[during].any():
            return TOOK_ANSWERS
    if len(known) < len(meets):
        return f"{NOT_FELT}: no flow was on a path that it broke"
    for trace in known:
        if on_broken_path(trace, fault)[within(trace.sent.t_ns, span.start, span.repair_after)].any():
            return f"{NOT_FELT}: none was lost where it broke the fabric"
    return f"{NOT_FELT}: none was sent where it broke the fabric"


def _left(
    trace: Trace, fault: FaultRecord, span: Span, lost: IntArray, retired: Mapping[str, Retirements]
) -> int | None:
    """Return when the last packet was sent onto a broken path; None if the path was in use until its repair.

    If all lost packets were sent before the fault, return the time of the fault.
    """
    sent = trace.sent
    if not trace.paths_known:
        return _left_by_flow(trace, fault, span, lost)
    broken = on_broken_path(trace, fault)
    during = within(sent.t_ns, fault.t_before_ns, span.repair_before)
    onto = sent.t_ns[during][broken[during]]
    if not len(onto):
        return fault.middle_ns
    last = int(onto[-1])
    if span.repair_before - last >= SILENT_INTERVALS * usual_interval(trace, broken, fault, span):
        return last
    src = trace.paths[0].src
    given_up = retired[src].between(span.start, span.repair_before).ev if src in retired else ()
    return last if set(sent.ev[during][broken[during]].tolist()) <= set(map(int, given_up)) else None


def _left_by_flow(trace: Trace, fault: FaultRecord, span: Span, lost: IntArray) -> int | None:
    sent = trace.sent
    during = within(sent.t_ns, fault.t_before_ns, span.repair_before)
    for flow in np.unique(sent.flow[lost]):
        last = int(sent.t_ns[lost[sent.flow[lost] == flow]].max())
        later = (sent.flow[during] == flow) & (sent.t_ns[during] > last) & ~sent.lost[during]
        if not later.any():
            return None
    return max(int(sent.t_ns[lost].max()), fault.middle_ns)


def usual_interval(trace: Trace, broken: BoolArray, fault: FaultRecord, span: Span) -> float:
    """Return the mean time (ns) between packets onto the broken paths before the fault; 0 without packets."""
    before = within(trace.sent.t_ns, span.start, fault.t_before_ns)
    count = int(np.count_nonzero(broken[before]))
    return (fault.t_before_ns - span.start) / count if count else 0.0


def times_of_messages(
    rule: str, late_ns: tuple[int, int] | None, missing: int, fault: FaultRecord, detected: Measured
) -> Times:
    """Return the times of a fault by late messages, for runs without usable captures.

    ``late_ns`` has the time when the first late message was posted and the time when the last one arrived;
    None if no message was late. ``missing`` is the number of messages that never arrived.
    """
    if late_ns is None and not missing:
        nothing = Measured(None, reason=NO_MESSAGE_LATE)
        return Times(rule, False, nothing, nothing, nothing, nothing)
    unknown = Measured(None, reason=NO_PACKETS)
    if missing or late_ns is None:
        recovered = Measured(None, reason=f"{missing} late messages were never delivered")
    else:
        error = fault.half_width_ns + EVENT_STAMP_NS
        recovered = Measured(max(late_ns[1] - fault.middle_ns, 0), error)
    return Times(rule, True, unknown, detected, unknown, recovered)


def times_unknown(rule: str, detected: Measured, reason: str = "") -> Times:
    """Return the times of a fault of which only the detection was measured. The reason may be the rule."""
    unknown = Measured(None, reason=reason or rule)
    return Times(rule, None, unknown, detected, unknown, unknown)
