"""Recovery times from what was on the wire: arrays, events and faults in, results out; no clock, no files.

For every fault three times, counted from the middle of its interval:

* detect: until the sender retired the first EV whose path the fault broke (the sender's event log);
* switch: until the last data packet went out at the sender's NIC onto a path that it broke (capture at the
  sender);
* whole: until the first copy of the last PSN that it took had come in at the receiver (captures at both
  ends).

Where a time has no value it is None and a reason says why; a fault that hit no packet has none of the three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.measure.events import EventLog
from experiments.measure.faults import FaultRecord
from experiments.measure.trace import NEVER, BoolArray, IntArray, Trace

# The kernel stamps a frame as it hands it to the driver (or takes it from it), within about this of the wire.
CAPTURE_STAMP_NS = 1_000
# An agent reads the clock once per wake-up, before it handles what woke it.
EVENT_STAMP_NS = 1_000
# RTTs, gaps and usual path use are measured in a window of at most this before the fault.
BASELINE_NS = 100_000_000
# A packet sent longer than this before the cut was not in flight any more.
IN_FLIGHT_NS = 20_000_000
# The sender counts as having left a path when it stayed silent on it for this many usual intervals.
SILENT_INTERVALS = 5.0

TIMES = ("detect", "switch", "whole")


@dataclass(frozen=True, slots=True)
class Measured:
    """A time since the fault in ns with its error (+-), or no time and the reason."""

    ns: int | None
    error_ns: int | None = None
    reason: str | None = None

    @property
    def us(self) -> float | None:
        """In microseconds, to the nanosecond."""
        return None if self.ns is None else round(self.ns / 1000, 3)

    @property
    def error_us(self) -> float | None:
        """The error in microseconds."""
        return None if self.error_ns is None else round(self.error_ns / 1000, 3)


@dataclass(frozen=True, slots=True)
class Check:
    """A claim held against the other evidence. ``ok`` is None where there was nothing to check."""

    name: str
    ok: bool | None
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """As it goes into result.json."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Intervals between successive message completions, in ns.

    ``longest_ns`` of those that overlap the time from fault to repair; ``before_*`` over the baseline window.
    """

    source: str
    longest_ns: int | None
    before_p50_ns: int | None
    before_p99_ns: int | None
    before_max_ns: int | None


@dataclass(frozen=True)
class Trial:
    """One fault and what came of it. Times in ns; the window is what the counts are of.

    ``first_hit_ns`` is when the first packet that it took was sent, ``first_rtx_ns`` when the first of them
    was sent again (capture at the sender: an upper bound of detect that does not rest on the sender's
    word).
    """

    index: int
    fault: FaultRecord
    window_ns: tuple[int, int]
    detect: Measured
    switch: Measured
    whole: Measured
    first_hit_ns: int | None
    first_rtx_ns: int | None
    rtt_ns: float | None
    rtt_p99_ns: float | None
    rtt_samples: int
    lost_packets: int
    in_flight_lost: int
    lost_elsewhere: int
    retransmitted_packets: int
    spurious_retransmissions: int
    bytes_delivered: int
    packets_sent: int
    evs_used: int
    paths_used: int
    broken_paths: int
    gaps: Gaps
    integrity: str
    checks: tuple[Check, ...] = field(default=())

    @property
    def whole_since_hit_ns(self) -> int | None:
        """From the first packet lost until all was delivered: the recovery without the wait for a packet."""
        if self.whole.ns is None or self.first_hit_ns is None:
            return None
        return self.whole.ns - self.first_hit_ns

    def times(self) -> Mapping[str, Measured]:
        """The three times by name."""
        return {"detect": self.detect, "switch": self.switch, "whole": self.whole}


def analyse(
    trace: Trace,
    faults: Sequence[FaultRecord],
    sender_events: EventLog,
    receiver_events: EventLog | None = None,
    integrity: str | Sequence[str] = "ok",
) -> tuple[Trial, ...]:
    """The trials of a run, one for each fault, in order of time.

    ``integrity`` is the receiver's verdict, for the run or for each fault. Raises ValueError where the
    verdicts are not as many as the faults.
    """
    faults = sorted(faults, key=lambda fault: fault.t_before_ns)
    verdicts = [integrity] * len(faults) if isinstance(integrity, str) else list(integrity)
    if len(verdicts) != len(faults):
        raise ValueError(f"{len(faults)} faults, but {len(verdicts)} verdicts on integrity")
    windows = _windows(trace, faults)
    receiver = receiver_events if receiver_events is not None else EventLog(())
    return tuple(
        _trial(i, trace, fault, windows[i], sender_events, receiver, verdicts[i])
        for i, fault in enumerate(faults)
    )


def _windows(trace: Trace, faults: Sequence[FaultRecord]) -> list[tuple[int, int]]:
    """What belongs to which trial: from the baseline window before a fault to that before the next one."""
    first, last = trace.span_ns
    starts = []
    healed = first
    for fault in faults:
        starts.append(min(max(fault.t_before_ns - BASELINE_NS, healed), fault.t_before_ns))
        healed = fault.restore_after_ns if fault.restore_after_ns is not None else fault.t_after_ns
    ends = [*starts[1:], max(last + 1, healed)] if starts else []
    return list(zip(starts, ends, strict=True))


def _within(t_ns: IntArray, start_ns: int, end_ns: int) -> slice:
    """The part of sorted stamps with start <= t < end."""
    low, high = np.searchsorted(t_ns, [start_ns, end_ns], side="left")
    return slice(int(low), int(high))


@dataclass(frozen=True)
class _Scene:
    """What all steps of a trial's analysis look at."""

    trace: Trace
    fault: FaultRecord
    events: EventLog
    start: int
    end: int
    heal_before: int
    heal_after: int
    broken: BoolArray  # of each transmission: was it sent onto a path that the fault breaks
    broken_evs: frozenset[int]
    lost: npt.NDArray[np.intp]  # indices of the transmissions that the fault took

    @property
    def zero(self) -> int:
        return self.fault.middle_ns

    def error_ns(self, *, captured: bool, at_ns: int) -> int:
        """The error of a time that ends at ``at_ns``, by a capture's stamp or by an agent's."""
        if not captured:
            return self.fault.half_width_ns + EVENT_STAMP_NS
        return self.fault.half_width_ns + CAPTURE_STAMP_NS + self.trace.clock.error_ns(at_ns)


def _trial(
    index: int,
    trace: Trace,
    fault: FaultRecord,
    window: tuple[int, int],
    events: EventLog,
    receiver: EventLog,
    integrity: str,
) -> Trial:
    scene = _scene(trace, fault, window, events)
    sent, received = trace.sent, trace.received
    start, end = window
    here = _within(sent.t_ns, start, end)
    before = _within(sent.t_ns, start, fault.t_before_ns)
    arrived = _within(received.t_ns, start, end)

    if len(scene.lost):
        detect, switch, whole = _detect(scene), _switch(scene), _whole(scene)
        first_hit = max(0, int(sent.t_ns[scene.lost].min()) - scene.zero)
    else:
        detect = switch = whole = Measured(None, reason=_why_nothing(scene, before))
        first_hit = None

    round_trips = trace.round_trips
    rtts = round_trips.rtt_ns[_within(round_trips.t_ns, start, fault.t_before_ns)]
    lost_here = np.flatnonzero(sent.lost[here]) + here.start
    # what was sent just before the capture ended had no time to arrive
    settled = lost_here[sent.t_ns[lost_here] < trace.span_ns[1] - IN_FLIGHT_NS]
    elsewhere = np.setdiff1d(settled, scene.lost)
    known = sent.path[before] >= 0
    return Trial(
        index=index,
        fault=fault,
        window_ns=window,
        detect=detect,
        switch=switch,
        whole=whole,
        first_hit_ns=first_hit,
        first_rtx_ns=_first_rtx(scene),
        rtt_ns=float(np.median(rtts)) if len(rtts) else None,
        rtt_p99_ns=float(np.percentile(rtts, 99)) if len(rtts) else None,
        rtt_samples=len(rtts),
        lost_packets=len(scene.lost),
        in_flight_lost=int(np.count_nonzero(sent.t_ns[scene.lost] < fault.t_before_ns)),
        lost_elsewhere=len(elsewhere),
        retransmitted_packets=int(np.count_nonzero(sent.rtx[here])),
        spurious_retransmissions=int(np.count_nonzero(sent.needless[here])),
        bytes_delivered=int(received.payload[arrived][received.first[arrived]].sum()),
        packets_sent=here.stop - here.start,
        evs_used=len(np.unique(sent.ev[before])),
        paths_used=len(np.unique(sent.path[before][known])),
        broken_paths=sum(fault.breaks(path) for path in trace.paths),
        gaps=_gaps(scene, events, receiver),
        integrity=integrity,
        checks=_checks(scene, detect, switch, whole, elsewhere, here),
    )


def _scene(trace: Trace, fault: FaultRecord, window: tuple[int, int], events: EventLog) -> _Scene:
    sent = trace.sent
    start, end = window
    heal_before = fault.restore_before_ns if fault.restore_before_ns is not None else end
    heal_after = fault.restore_after_ns if fault.restore_after_ns is not None else end
    breaks = np.array([fault.breaks(path) for path in trace.paths] + [False])  # the last for path -1
    broken = breaks[sent.path]
    exposed = _within(sent.t_ns, max(start, fault.t_before_ns - IN_FLIGHT_NS), heal_after)
    lost = np.flatnonzero(broken[exposed] & sent.lost[exposed]) + exposed.start
    evs = frozenset(path.ev for path in trace.paths if fault.breaks(path))
    return _Scene(trace, fault, events, start, end, heal_before, heal_after, broken, evs, lost)


def _why_nothing(scene: _Scene, before: slice) -> str:
    if not scene.broken_evs:
        return f"{scene.fault.where} lies on no path from sender to receiver"
    if not scene.broken[before].any():
        return "the fault hit no packet: its link carried no data before it"
    return "the fault hit no packet: none was sent over its link while it was cut"


def _detect(scene: _Scene) -> Measured:
    """The sender's own claim: the first retirement of a broken EV while the fault lasted."""
    for event in scene.events.between("EvRetired", scene.fault.t_before_ns, scene.heal_after):
        if event.int_field("ev") in scene.broken_evs:
            error = scene.error_ns(captured=False, at_ns=event.t_ns)
            return Measured(max(event.t_ns - scene.zero, 0), error)
    return Measured(None, reason="the sender retired none of the broken EVs while the fault lasted")


def _switch(scene: _Scene) -> Measured:
    sent = scene.trace.sent
    during = _within(sent.t_ns, scene.fault.t_before_ns, scene.heal_before)
    onto = sent.t_ns[during][scene.broken[during]]
    if len(onto) == 0:
        # all that it lost was in flight: nothing was sent onto the broken path any more
        return Measured(0, scene.error_ns(captured=True, at_ns=scene.zero))
    last = int(onto[-1])
    interval = _usual_interval(scene)
    silent = scene.heal_before - last
    retired = {
        event.int_field("ev") for event in scene.events.between("EvRetired", scene.start, scene.heal_before)
    }
    used = {int(ev) for ev in np.unique(sent.ev[during][scene.broken[during]])}
    if silent < SILENT_INTERVALS * interval and not used <= retired:
        return Measured(None, reason="the sender still used a broken path when the fault was healed")
    return Measured(max(last - scene.zero, 0), scene.error_ns(captured=True, at_ns=last))


def _usual_interval(scene: _Scene) -> float:
    """The mean time in ns between data packets onto the broken paths before the fault; 0 where none were."""
    sent = scene.trace.sent
    before = _within(sent.t_ns, scene.start, scene.fault.t_before_ns)
    count = int(np.count_nonzero(scene.broken[before]))
    return (scene.fault.t_before_ns - scene.start) / count if count else 0.0


def _whole(scene: _Scene) -> Measured:
    first = scene.trace.sent.first_ns[scene.lost]
    missing = int(np.count_nonzero(first == NEVER))
    if missing:
        return Measured(None, reason=f"{missing} of {len(first)} lost packets were never delivered")
    last = int(first.max())
    return Measured(max(last - scene.zero, 0), scene.error_ns(captured=True, at_ns=last))


def _gaps(scene: _Scene, sender: EventLog, receiver: EventLog) -> Gaps:
    """The application's view, by the receiver's completions where it logs them, else by the sender's."""
    source, completions = "ReceiveCompleted", receiver.of("ReceiveCompleted")
    if len(completions) < 2:
        source, completions = "SendCompleted", sender.of("SendCompleted")
    t_ns = np.array([event.t_ns for event in completions], np.int64)
    if len(t_ns) < 2:
        return Gaps("none", None, None, None, None)
    gaps, ends, starts = np.diff(t_ns), t_ns[1:], t_ns[:-1]
    around = (ends > scene.fault.t_before_ns) & (starts < scene.heal_before)
    before = (ends <= scene.fault.t_before_ns) & (starts >= scene.start)
    usual = gaps[before]
    return Gaps(
        source=source,
        longest_ns=int(gaps[around].max()) if around.any() else None,
        before_p50_ns=int(np.median(usual)) if len(usual) else None,
        before_p99_ns=int(np.percentile(usual, 99)) if len(usual) else None,
        before_max_ns=int(usual.max()) if len(usual) else None,
    )


def _checks(
    scene: _Scene,
    detect: Measured,
    switch: Measured,
    whole: Measured,
    elsewhere: npt.NDArray[np.intp],
    here: slice,
) -> tuple[Check, ...]:
    """Captures and endpoints held against each other."""
    return (
        _check_effective(scene),
        _check_first_rtx(scene, detect),
        _check_silence(scene, switch),
        _check_claimed(scene, here),
        _check_retired_only_broken(scene),
        Check(
            "all_recovered",
            whole.ns is not None if len(scene.lost) else None,
            whole.reason or f"{len(scene.lost)} lost packets delivered",
        ),
        Check(
            "no_loss_elsewhere",
            len(elsewhere) == 0,
            f"{len(elsewhere)} packets lost on other paths or at other times",
        ),
        _check_wire_paths(scene, here),
    )


def _check_effective(scene: _Scene) -> Check:
    """A packet sent after the cut must not come in before the repair, or the cut was none."""
    sent = scene.trace.sent
    during = _within(sent.t_ns, scene.fault.t_after_ns, scene.heal_before)
    onto = scene.broken[during]
    slipped = int(np.count_nonzero(sent.arrived_ns[during][onto] < scene.heal_before))
    count = int(np.count_nonzero(onto))
    ok = None if count == 0 else slipped == 0
    return Check("fault_effective", ok, f"{slipped} of {count} packets sent onto the cut link came through")


def _check_first_rtx(scene: _Scene, detect: Measured) -> Check:
    """The first retransmission of a lost PSN cannot be sent before the sender knew of the loss."""
    if detect.ns is None:
        return Check("rtx_not_before_detect", None, "no detection to compare with")
    first = _first_rtx(scene)
    if first is None:
        return Check("rtx_not_before_detect", None, "no lost packet was retransmitted")
    after = first - detect.ns
    slack = EVENT_STAMP_NS + CAPTURE_STAMP_NS + scene.trace.clock.error_ns(scene.zero + first)
    return Check(
        "rtx_not_before_detect", after >= -slack, f"first retransmission {after / 1000:+.1f} us from detect"
    )


def _first_rtx(scene: _Scene) -> int | None:
    """When the first of the lost packets was sent again, in ns since the fault; 0 within its interval."""
    sent = scene.trace.sent
    during = _within(sent.t_ns, scene.fault.t_before_ns, scene.end)
    lost = {(int(sent.flow[i]), int(sent.psn[i])) for i in scene.lost}
    rtx = np.flatnonzero(sent.rtx[during]) + during.start
    first = next((int(sent.t_ns[i]) for i in rtx if (int(sent.flow[i]), int(sent.psn[i])) in lost), None)
    return None if first is None else max(0, first - scene.zero)


def _check_silence(scene: _Scene, switch: Measured) -> Check:
    """Whether the silence after the switch is long enough to tell it from chance."""
    if switch.ns is None:
        return Check("silent_after_switch", None if not len(scene.lost) else False, switch.reason or "")
    silent = scene.heal_before - scene.zero - switch.ns
    interval = _usual_interval(scene)
    ok = None if interval == 0 else silent >= SILENT_INTERVALS * interval
    detail = f"silent for {silent / 1e6:.1f} ms; usual interval {interval / 1e6:.2f} ms"
    return Check("silent_after_switch", ok, detail)


def _check_claimed(scene: _Scene, here: slice) -> Check:
    """The sender's count of its retransmissions against the capture's."""
    claimed = len(scene.events.between("Retransmitted", scene.start, scene.end))
    seen = int(np.count_nonzero(scene.trace.sent.rtx[here]))
    if not scene.events.of("Retransmitted"):
        return Check("retransmissions_as_claimed", None if seen else True, f"none claimed, {seen} captured")
    # one at either edge of the window may fall on different sides of it
    return Check(
        "retransmissions_as_claimed", abs(claimed - seen) <= 1, f"{claimed} claimed, {seen} captured"
    )


def _check_retired_only_broken(scene: _Scene) -> Check:
    """EVs that the sender gave up while the fault lasted although it did not break them."""
    retired = scene.events.between("EvRetired", scene.fault.t_before_ns, scene.heal_before)
    wrong = sorted({ev for event in retired if (ev := event.int_field("ev")) is not None} - scene.broken_evs)
    detail = f"{len(wrong)} sound EVs retired" + (f", such as {wrong[0]:#x}" if wrong else "")
    return Check("only_broken_evs_retired", None if not retired else not wrong, detail)


def _check_wire_paths(scene: _Scene, here: slice) -> Check:
    """Each EV must stand for one path, the one that the outer destination spells out."""
    sent = scene.trace.sent
    evs = np.array([path.ev for path in scene.trace.paths] + [-1], np.int64)
    wrong = int(np.count_nonzero(evs[sent.path[here]] != sent.ev[here]))
    count = here.stop - here.start
    return Check("ev_matches_path", None if count == 0 else wrong == 0, f"{wrong} of {count} packets differ")
