from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.experiments.measure.events import NONE_RETIRED, Event, EventLog, detected, retirements_of_log
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.pcap import parse_pcap, read_pcap
from mrclab.experiments.measure.recording import ClockMap, OffsetSample, load_recording
from mrclab.experiments.measure.recovery import (
    CAPTURE_STAMP_NS,
    EVENT_STAMP_NS,
    IN_FLIGHT_NS,
    STILL_USED,
    Times,
    spans,
    times,
)
from mrclab.experiments.measure.trace import NEVER, Trace, build_trace, unwrap
from mrclab.experiments.measure.trial import Scene as FaultScene
from mrclab.experiments.measure.trial import trial_of
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.topologies import Fabric, load_fabric
from mrclab.topologies import Path as NetworkPath
from tests.support.synthetic_run import OFFSET_NS, ONE_WAY_NS, RTT_NS, Story, Wire, tell

pytestmark = pytest.mark.slow

CLOCK = ClockMap((OffsetSample(0, OFFSET_NS, 25),))
T = 10_000_000_000  # the time of the cut
FAULT = FaultRecord("blackhole", "p0-t0-0:p0-t1-0", T - 500, T + 500, T + 100_000_000, T + 100_001_000)


def trace_of(wire: Wire, paths: tuple[NetworkPath, ...]) -> Trace:
    sender, receiver = wire.captures()
    return build_trace(parse_pcap(sender), parse_pcap(receiver), paths, CLOCK)


@dataclass(frozen=True)
class Found:
    """A fault's times, and the rest of its entry in a result."""

    times: Times
    entry: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.entry[name]


def analyse(
    trace: Trace,
    faults: Sequence[FaultRecord],
    events: EventLog,
    receiver_events: EventLog | None = None,
    in_flight_ns: int = IN_FLIGHT_NS,
) -> list[Found]:
    src, dst = trace.paths[0].src, trace.paths[0].dst
    logs = {src: events, dst: receiver_events or EventLog(())}
    retired = {src: retirements_of_log(events)}
    found = []
    for fault, span in zip(faults, spans(faults, *trace.span_ns, in_flight_ns), strict=True):
        seen = detected(TRANSPORTS["mrc"], {(src, dst): trace.paths}, retired, (), fault, span)
        result = times([trace], fault, span, seen, retired)
        found.append(Found(result, trial_of(FaultScene((trace,), fault, span, result, logs))))
    return found


FABRIC = {16: "lab", 256: "wide"}


def told_trace(told: Path, lab: Fabric) -> Trace:
    recording = load_recording(told / "recording.json")
    ends = (read_pcap(told / f"{name}.pcap") for name in ("sender", "receiver"))
    return build_trace(*ends, lab.paths("h0", "h6"), recording.clock)


class Scene:
    """A steady stream over two paths. The first path is cut. The tests add the events after the cut."""

    def __init__(self, fabric: Fabric, first_psn: int = 1000) -> None:
        self.paths = fabric.paths("h0", "h6")
        self.broken, self.sound = self.paths[0], self.paths[5]
        self.wire = Wire(fabric)
        self.psn = first_psn
        for i in range(200):
            path = self.broken if i % 2 else self.sound
            self.wire.send(T - 20_000_000 + i * 99_000, self.next_psn(), path)
        for i in range(400):
            self.wire.send(T + 10_000_000 + i * 250_000, self.next_psn(), self.sound)

    def next_psn(self) -> int:
        self.psn += 1
        return self.psn - 1

    def trial(self, *events: Event, fault: FaultRecord = FAULT, **more: object) -> Found:
        trace = trace_of(self.wire, self.paths)
        (trial,) = analyse(trace, [fault], EventLog.of_events(events), **more)  # type: ignore[arg-type]
        return trial

    def retired(self, t_ns: int, path: NetworkPath | None = None) -> Event:
        path = path or self.broken
        return Event(t_ns, "EvRetired", {"ev": path.ev, "plane": path.plane})


def check(trial: Found, name: str) -> bool | None:
    return next(c["ok"] for c in trial.checks if c["name"] == name)


def test_a_whole_run_gives_the_answers_that_it_was_made_from(story: Story, told: Path, lab: Fabric) -> None:
    trace = told_trace(told, lab)
    trials = analyse(trace, story.faults, story.events, story.receiver_events)
    assert len(trials) == len(story.answers) == 12
    for trial, answer in zip(trials, story.answers, strict=True):
        assert trial.times.detected.ns == answer.detect
        assert trial.times.rerouted.ns == max(answer.switch, 0)
        assert trial.times.recovered.ns == answer.whole
        assert trial.lost_packets == trial.retransmitted_packets == answer.lost
        assert trial.spurious_retransmissions == trial.lost_elsewhere == 0
        assert trial.rtt_us == RTT_NS / 1e3
        assert trial.paths_used == trial.evs_used == 16
        assert [c for c in trial.checks if c["ok"] is False] == []
    sent = len(np.unique(trace.sent.psn))
    assert sum(trial.bytes_delivered for trial in trials) == sent * 1000


def test_errors_add_up_from_their_parts(story: Story, told: Path, lab: Fabric) -> None:
    trial = analyse(told_trace(told, lab), story.faults, story.events)[0]
    half, clock = 2_000, 30
    assert trial.times.detected.error_ns == half + EVENT_STAMP_NS
    assert trial.times.rerouted.error_ns == trial.times.recovered.error_ns == half + CAPTURE_STAMP_NS + clock


def test_the_three_times_are_counted_from_the_middle_of_the_fault(lab: Fabric) -> None:
    scene = Scene(lab)
    a, b = scene.next_psn(), scene.next_psn()
    scene.wire.send(T + 10_000, a, scene.broken, arrives_ns=None)
    scene.wire.send(T + 90_001, b, scene.broken, arrives_ns=None)
    scene.wire.send(T + 100_003, a, scene.sound, rtx=True)
    scene.wire.send(T + 120_007, b, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 95_002))
    assert (trial.times.detected.ns, trial.times.rerouted.ns) == (95_002, 90_001)
    assert trial.times.recovered.ns == 120_007 + ONE_WAY_NS
    assert (trial.times.first_loss.ns, trial.lost_packets, trial.lost_in_flight) == (10_000, 2, 0)
    assert trial.first_rtx_us == 100.003
    assert trial.times.recovered_since_loss.ns == 110_007 + ONE_WAY_NS
    assert check(trial, "rtx_not_before_detected")


def test_packets_in_flight_at_the_cut_count(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T - 30_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 200_000, psn, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 199_000))
    assert (trial.lost_packets, trial.lost_in_flight, trial.times.first_loss.ns) == (1, 1, 0)
    assert trial.times.rerouted.ns == 0  # nothing was sent onto the path any more
    assert trial.times.recovered.ns == 200_000 + ONE_WAY_NS


def test_a_fault_that_took_nothing_has_no_times_but_a_reason(lab: Fabric) -> None:
    trial = Scene(lab).trial()
    for name in ("first_loss", "detected", "rerouted", "recovered"):
        measured = getattr(trial.times, name)
        assert measured.ns is None
        assert "the fault took no packet" in measured.reason
        assert (trial.entry[f"{name}_us"], trial.entry[f"{name}_reason"]) == (None, measured.reason)
    assert (trial.felt, trial.lost_packets) == (False, 0)
    assert trial.first_rtx_us is trial.recovered_since_loss_us is None
    elsewhere = replace(FAULT, where="p0-t0-1:p0-t1-0")
    assert "lies on no path" in (Scene(lab).trial(fault=elsewhere).times.recovered.reason or "")
    unused = replace(FAULT, where="p3-t0-0:p3-t1-3")
    assert "none was sent" in (Scene(lab).trial(fault=unused).times.recovered.reason or "")


def test_what_is_never_delivered_or_detected_or_left_is_said(lab: Fabric) -> None:
    scene = Scene(lab)
    for i in range(1, 500):
        scene.wire.send(T + i * 199_000, scene.next_psn(), scene.broken, arrives_ns=None)
    trial = scene.trial()
    assert trial.times.detected.reason == NONE_RETIRED
    assert trial.times.rerouted.reason == STILL_USED
    assert trial.times.recovered.reason == "499 of 499 lost packets were never delivered"
    assert check(trial, "all_recovered") is False
    assert check(trial, "silent_after_rerouting") is False


def test_retiring_another_ev_is_no_detection_and_is_noticed(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 300_000, psn, scene.sound, rtx=True)
    events = (
        scene.retired(T - 1_000_000),
        scene.retired(T + 50_000, scene.paths[7]),
        scene.retired(T + 80_000),
        scene.retired(T + 200_000_000),
    )
    trial = scene.trial(*events)
    assert trial.times.detected.ns == 80_000
    assert check(trial, "only_broken_evs_retired") is False
    assert check(scene.trial(events[2]), "only_broken_evs_retired")


def test_a_retransmission_before_detection_is_a_contradiction(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 60_000, psn, scene.sound, rtx=True)
    assert check(scene.trial(scene.retired(T + 70_000)), "rtx_not_before_detected") is False
    assert check(scene.trial(scene.retired(T + 61_000)), "rtx_not_before_detected")


def test_a_cut_that_lets_packets_through_is_none(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 20_000, scene.next_psn(), scene.broken)
    scene.wire.send(T + 60_000, psn, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 50_000))
    assert check(trial, "fault_effective") is False
    assert trial.lost_packets == 1


@pytest.mark.parametrize(
    ("kind", "params", "effective"),
    [
        ("blackhole", {}, False),
        ("loss", {"ratio": 1.0}, False),
        ("loss", {"ratio": 0.5}, None),
        ("corruption", {"ratio": 1.0}, None),
        ("rate", {"ratio": 0.1}, None),
        ("delay", {"delay_ns": 2_000_000}, None),
        ("flap", {}, None),
        ("switch-reboot", {}, None),
        ("pause-storm", {}, None),
    ],
)
def test_of_a_fault_that_lets_packets_through_that_is_no_failure(
    lab: Fabric, kind: str, params: dict[str, Any], effective: bool | None
) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 20_000, scene.next_psn(), scene.broken)
    scene.wire.send(T + 60_000, psn, scene.sound, rtx=True)
    fault = replace(FAULT, kind=kind, params=params)
    trial = scene.trial(scene.retired(T + 50_000), fault=fault)
    assert check(trial, "fault_effective") is effective
    assert trial.lost_packets == 1


def test_a_retransmission_that_the_cut_took_is_no_answer_to_that_loss(lab: Fabric) -> None:
    """The packet was lost elsewhere before the cut, and its retransmission takes the cut path."""
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T - 50_000, psn, scene.sound, arrives_ns=None)
    scene.wire.send(T + 10_000, psn, scene.broken, rtx=True, arrives_ns=None)
    scene.wire.send(T + 60_000, psn, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 50_000))
    assert (trial.times.first_loss.ns, trial.lost_packets) == (10_000, 1)
    assert trial.first_rtx_us == 60
    assert check(trial, "rtx_not_before_detected")


def test_needless_retransmissions_and_duplicates(lab: Fabric) -> None:
    scene = Scene(lab)
    lost, fine = scene.next_psn(), scene.next_psn()
    scene.wire.send(T + 10_000, lost, scene.broken, arrives_ns=None)
    scene.wire.send(T + 20_000, fine, scene.sound)
    scene.wire.send(T + 60_000, lost, scene.sound, rtx=True)
    scene.wire.send(T + 61_000, fine, scene.paths[6], rtx=True)
    scene.wire.send(T + 90_000, lost, scene.paths[6], rtx=True)
    trial = scene.trial(scene.retired(T + 50_000))
    assert (trial.retransmitted_packets, trial.spurious_retransmissions) == (3, 2)
    assert trial.times.recovered.ns == 60_000 + ONE_WAY_NS  # the first copy counts
    assert trial.bytes_delivered == 602 * 1000  # copies of a packet count once


def test_a_retransmission_lost_on_another_broken_path_delays_whole(lab: Fabric) -> None:
    scene = Scene(lab)
    other = scene.paths[1]
    fault = replace(FAULT, where="h0:p0-t0-0")  # this fault breaks all paths of the plane
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 60_000, psn, other, rtx=True, arrives_ns=None)
    scene.wire.send(T + 900_000, psn, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 55_000), scene.retired(T + 890_000, other), fault=fault)
    assert (trial.lost_packets, trial.times.rerouted.ns, trial.times.recovered.ns) == (
        2,
        60_000,
        900_000 + ONE_WAY_NS,
    )
    assert trial.broken_paths == 4


def test_losses_elsewhere_are_kept_apart(lab: Fabric) -> None:
    scene = Scene(lab)
    lost, stray = scene.next_psn(), scene.next_psn()
    scene.wire.send(T + 10_000, lost, scene.broken, arrives_ns=None)
    scene.wire.send(T + 11_000, stray, scene.sound, arrives_ns=None)
    scene.wire.send(T + 60_000, lost, scene.sound, rtx=True)
    scene.wire.send(T + 800_000, stray, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 50_000))
    assert (trial.lost_packets, trial.lost_elsewhere) == (1, 1)
    assert trial.times.recovered.ns == 60_000 + ONE_WAY_NS
    assert check(trial, "no_loss_elsewhere") is False


def test_in_a_run_of_milliseconds_losses_elsewhere_are_kept_apart_too(lab: Fabric) -> None:
    """The usual limit of 20 ms for a packet's time in flight is longer than this fault."""
    paths = lab.paths("h0", "h6")
    broken, sound, wire = paths[0], paths[5], Wire(lab)
    fault = replace(FAULT, restore_before_ns=T + 2_000_000, restore_after_ns=T + 2_000_000)

    def send(t_ns: int, psn: int, path: NetworkPath, arrives: bool = True) -> None:
        wire.send(t_ns, psn, path, arrives_ns=t_ns + 3_000 if arrives else None, rtx=psn in sent)
        sent.add(psn)

    sent: set[int] = set()
    for i in range(600):
        send(T - 3_000_000 + i * 10_000 + 1, i, sound if i % 2 or i >= 300 else broken)
    for psn, t_ns, path in ((1000, -2_000_000, broken), (1001, 10_000, broken), (1002, 11_000, sound)):
        send(T + t_ns, psn, path, arrives=False)
        send(T + t_ns + 50_000, psn, sound)
    trace = trace_of(wire, paths)
    retired = EventLog.of_events([Event(T + 55_000, "EvRetired", {"ev": broken.ev, "plane": broken.plane})])
    (trial,) = analyse(trace, [fault], retired, in_flight_ns=60_000)
    assert (trial.times.first_loss.ns, trial.lost_packets, trial.lost_in_flight) == (10_000, 1, 0)
    assert trial.times.recovered_since_loss.ns == 53_000
    assert (trial.lost_elsewhere, trial.in_flight_us) == (2, 60)
    assert check(trial, "no_loss_elsewhere") is False
    (trial,) = analyse(trace, [fault], retired)  # with the usual 20 ms, the check cannot decide
    assert (trial.lost_elsewhere, check(trial, "no_loss_elsewhere")) == (0, None)


def test_a_trimmed_packet_is_neither_lost_nor_delivered(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.sound, trim=True)
    scene.wire.send(T + 100_000, psn, scene.sound, rtx=True)
    trial = scene.trial()
    assert (trial.lost_packets, trial.lost_elsewhere, trial.spurious_retransmissions) == (0, 0, 0)
    assert trial.bytes_delivered == 601 * 1000
    trace = trace_of(scene.wire, scene.paths)
    (index,) = np.flatnonzero(trace.sent.trimmed)
    assert trace.sent.psn[index] == psn
    assert trace.sent.arrived_ns[index] == NEVER
    assert trace.sent.first_ns[index] == T + 100_000 + ONE_WAY_NS


def test_an_ev_that_takes_another_path_than_its_own_is_noticed(lab: Fabric) -> None:
    scene = Scene(lab)
    assert check(scene.trial(), "ev_matches_path")
    scene.wire.send(T + 1, scene.next_psn(), scene.sound, ev=scene.broken.ev)
    assert check(scene.trial(), "ev_matches_path") is False


def test_the_application_s_gap(lab: Fabric) -> None:
    scene = Scene(lab)
    times = [*range(T - 5_000_000, T + 1, 100_000), T + 1_700_000, T + 1_800_000, T + 150_000_000]
    done = [Event(t, "ReceiveCompleted", {}) for t in times]
    gaps = scene.trial(receiver_events=EventLog.of_events(done)).app_gap_us
    assert gaps["source"] == "ReceiveCompleted"
    assert gaps["before_p50"] == gaps["before_max"] == 100
    assert gaps["longest"] == 150_000 - 1_800
    sent = [Event(t, "SendCompleted", {}) for t in times[:-1]]
    gaps = scene.trial(*sent).app_gap_us
    assert (gaps["source"], gaps["longest"]) == ("SendCompleted", 1_700)
    assert scene.trial().app_gap_us["source"] == "none"


def test_two_queue_pairs_with_the_same_numbers_are_kept_apart(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = 1000
    scene.wire.send(T - 19_000_000, psn, scene.broken, qp=0x99)
    scene.wire.send(T + 10_000, psn + 1, scene.broken, qp=0x99, arrives_ns=None)
    scene.wire.send(T + 60_000, psn + 1, scene.sound, qp=0x99, rtx=True)
    trial = scene.trial(scene.retired(T + 50_000))
    assert (trial.lost_packets, trial.spurious_retransmissions) == (1, 0)
    assert trial.times.recovered.ns == 60_000 + ONE_WAY_NS


def test_silence_too_short_to_tell_is_not_taken_for_a_switch(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 99_900_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 101_000_000, psn, scene.sound, rtx=True)
    assert scene.trial().times.rerouted.ns is None
    assert scene.trial(scene.retired(T + 99_950_000)).times.rerouted.ns == 99_900_000


def test_a_fault_never_healed_lasts_to_the_end(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 60_000, psn, scene.sound, rtx=True)
    fault = replace(FAULT, restore_before_ns=None, restore_after_ns=None)
    trial = scene.trial(scene.retired(T + 50_000), fault=fault)
    assert (trial.times.detected.ns, trial.times.rerouted.ns, trial.times.recovered.ns) == (
        50_000,
        10_000,
        60_000 + ONE_WAY_NS,
    )


@given(
    start=st.integers(0, (1 << 24) - 1),
    steps=st.lists(st.integers(-4096, 100_000), max_size=50),
)
def test_psns_unwrap_to_what_they_were(start: int, steps: list[int]) -> None:
    true = start + np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)
    assert (unwrap(true % (1 << 24)) == true).all()


@given(
    first=st.sampled_from([0, 5, (1 << 24) - 1, (1 << 24) - 40, 1 << 23]),
    fates=st.lists(
        st.tuples(
            st.integers(0, 15), st.integers(-30_000, 400_000), st.sampled_from(["ok", "lost", "twice"])
        ),
        min_size=1,
        max_size=60,
    ),
)
def test_every_transmission_is_matched_whatever_the_order(
    first: int, fates: list[tuple[int, int, str]]
) -> None:
    """Packets are sent 1 us apart. Some are reordered by up to 430 us, lost or duplicated. The PSN wraps."""
    fabric = _lab()
    paths = fabric.paths("h0", "h6")
    wire = Wire(fabric)
    expected = {}
    for i, (which, late, fate) in enumerate(fates):
        t = T + i * 1_000
        arrival = None if fate == "lost" else t + ONE_WAY_NS + late
        wire.send(t, first + i, paths[which], arrives_ns=arrival, sack=False)
        if fate == "twice":  # the network delivers a second copy
            wire.receiver.append(replace(wire.receiver[-1], t_ns=arrival + 777))
        expected[i] = NEVER if arrival is None else arrival
    trace = trace_of(wire, paths)
    assert trace.sent.arrived_ns.tolist() == [expected[i] for i in range(len(fates))]
    assert (trace.sent.psn - trace.sent.psn[0]).tolist() == list(range(len(fates)))
    assert trace.sent.path.tolist() == [which for which, _, _ in fates]
    assert int(trace.received.first.sum()) == sum(fate != "lost" for _, _, fate in fates)
    assert (trace.received.tx >= 0).all()


def _lab() -> Fabric:
    return load_fabric("lab")


def test_empty_captures_give_trials_without_times(lab: Fabric) -> None:
    trace = trace_of(Wire(lab), lab.paths("h0", "h6"))
    (trial,) = analyse(trace, [FAULT], EventLog(()))
    assert trial.times.recovered.ns is None
    assert trial.rtt_us is None
    assert analyse(trace, [], EventLog(())) == []


def test_wide_is_analysed_too() -> None:
    wide = load_fabric("wide")
    story = tell(wide, ["p3-t0-0:p3-t1-17"], interval_ns=50_000, hold_ns=200_000_000)
    trace = trace_of(story.wire, wide.paths("h0", "h2"))
    (trial,) = analyse(trace, story.faults, story.events, story.receiver_events)
    assert trial.paths_used == 256
    assert (trial.times.detected.ns, trial.times.recovered.ns) == (
        story.answers[0].detect,
        story.answers[0].whole,
    )
