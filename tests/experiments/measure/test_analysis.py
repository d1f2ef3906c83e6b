from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.measure.analysis import CAPTURE_STAMP_NS, EVENT_STAMP_NS, Check, Trial, analyse
from experiments.measure.clock import ClockMap, OffsetSample
from experiments.measure.events import Event, EventLog
from experiments.measure.faults import FaultRecord
from experiments.measure.pcap import parse_pcap
from experiments.measure.trace import NEVER, Trace, build_trace, unwrap
from experiments.measure.validity import Load
from experiments.report.examine import examine
from linux.errors import InputError
from tests.support.synthetic_run import OFFSET_NS, ONE_WAY_NS, RTT_NS, Story, Wire, tell
from topologies import Fabric
from topologies import Path as NetworkPath

CLOCK = ClockMap((OffsetSample(0, OFFSET_NS, 25),))
T = 10_000_000_000  # the cut
FAULT = FaultRecord("blackhole", "p0-t0-0:p0-t1-0", T - 500, T + 500, T + 100_000_000, T + 100_001_000)


def trace_of(wire: Wire, paths: tuple[NetworkPath, ...]) -> Trace:
    sender, receiver = wire.captures()
    return build_trace(parse_pcap(sender), parse_pcap(receiver), paths, CLOCK)


class Scene:
    """A steady stream over two paths, the first of which is cut: tests add what happens then."""

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

    def trial(self, *events: Event, fault: FaultRecord = FAULT, **more: object) -> Trial:
        trace = trace_of(self.wire, self.paths)
        (trial,) = analyse(trace, [fault], EventLog.of_events(events), **more)  # type: ignore[arg-type]
        return trial

    def retired(self, t_ns: int, path: NetworkPath | None = None) -> Event:
        path = path or self.broken
        return Event(t_ns, "EvRetired", {"ev": path.ev, "plane": path.plane})


def check(trial: Trial, name: str) -> Check:
    return next(c for c in trial.checks if c.name == name)


def test_a_whole_run_gives_the_answers_that_it_was_made_from(story: Story, told: Path, lab: Fabric) -> None:
    evidence = examine(told, lab, "h0", "h6")
    assert len(evidence.trials) == len(story.answers) == 12
    for trial, answer in zip(evidence.trials, story.answers, strict=True):
        assert trial.detect.ns == answer.detect
        assert trial.switch.ns == max(answer.switch, 0)
        assert trial.whole.ns == answer.whole
        assert trial.lost_packets == trial.retransmitted_packets == answer.lost
        assert trial.spurious_retransmissions == trial.lost_elsewhere == 0
        assert trial.rtt_ns == RTT_NS
        assert trial.paths_used == trial.evs_used == 16
        assert trial.integrity == "ok"
        assert [c.name for c in trial.checks if c.ok is False] == []
    assert evidence.validity.valid
    sent = len(np.unique(evidence.trace.sent.psn))
    assert sum(trial.bytes_delivered for trial in evidence.trials) == sent * 1000


@pytest.mark.parametrize(("wanted", "left"), [(10, 10), (11, 12), (None, 12)])
def test_trials_of_an_overloaded_machine_are_set_aside_where_enough_are_left(
    told: Path, lab: Fabric, tmp_path: Path, wanted: int | None, left: int
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(told, directory)
    quiet = Load(10**8, 0.4, 0.0, 0.01, 10**6, "sender", 0, 0.1)
    loads = [replace(quiet, steal=0.2) if i in (3, 7) else quiet for i in range(12)]
    recording = json.loads((directory / "recording.json").read_text())
    recording["loads"] = [load.to_dict() for load in loads]
    (directory / "recording.json").write_text(json.dumps(recording))
    evidence = examine(directory, lab, "h0", "h6", wanted=wanted)
    assert len(evidence.trials) == len(evidence.validity.loads) == left
    told_of = [*evidence.validity.reasons, *evidence.validity.notes]
    assert ["hypervisor took 20%" in text for text in told_of] == [True]
    if left == 10:
        assert evidence.validity.valid
        assert [trial.index for trial in evidence.set_aside] == [3, 7]
        assert {3, 7}.isdisjoint(trial.index for trial in evidence.trials)
    else:
        assert not evidence.validity.valid
        assert evidence.set_aside == ()


def test_errors_add_up_from_their_parts(told: Path, lab: Fabric) -> None:
    trial = examine(told, lab, "h0", "h6").trials[0]
    half, clock = 2_000, 30
    assert trial.detect.error_ns == half + EVENT_STAMP_NS
    assert trial.switch.error_ns == trial.whole.error_ns == half + CAPTURE_STAMP_NS + clock


def test_the_three_times_are_counted_from_the_middle_of_the_fault(lab: Fabric) -> None:
    scene = Scene(lab)
    a, b = scene.next_psn(), scene.next_psn()
    scene.wire.send(T + 10_000, a, scene.broken, arrives_ns=None)
    scene.wire.send(T + 90_001, b, scene.broken, arrives_ns=None)
    scene.wire.send(T + 100_003, a, scene.sound, rtx=True)
    scene.wire.send(T + 120_007, b, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 95_002))
    assert (trial.detect.ns, trial.switch.ns) == (95_002, 90_001)
    assert trial.whole.ns == 120_007 + ONE_WAY_NS
    assert (trial.first_hit_ns, trial.lost_packets, trial.in_flight_lost) == (10_000, 2, 0)
    assert trial.first_rtx_ns == 100_003
    assert trial.whole_since_hit_ns == 110_007 + ONE_WAY_NS
    assert check(trial, "rtx_not_before_detect").ok


def test_packets_in_flight_at_the_cut_count(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T - 30_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 200_000, psn, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 199_000))
    assert (trial.lost_packets, trial.in_flight_lost, trial.first_hit_ns) == (1, 1, 0)
    assert trial.switch.ns == 0  # nothing was sent onto it any more
    assert trial.whole.ns == 200_000 + ONE_WAY_NS


def test_a_fault_that_hit_nothing_has_no_times_but_a_reason(lab: Fabric) -> None:
    trial = Scene(lab).trial()
    for measured in trial.times().values():
        assert measured.ns is None
        assert measured.reason is not None
        assert "hit no packet" in measured.reason
    assert trial.lost_packets == 0
    assert trial.first_hit_ns is trial.first_rtx_ns is trial.whole_since_hit_ns is None
    elsewhere = replace(FAULT, where="p0-t0-1:p0-t1-0")
    assert "lies on no path" in (Scene(lab).trial(fault=elsewhere).whole.reason or "")
    unused = replace(FAULT, where="p3-t0-0:p3-t1-3")
    assert "carried no data" in (Scene(lab).trial(fault=unused).whole.reason or "")


def test_what_is_never_delivered_or_detected_or_left_is_said(lab: Fabric) -> None:
    scene = Scene(lab)
    for i in range(1, 500):
        scene.wire.send(T + i * 199_000, scene.next_psn(), scene.broken, arrives_ns=None)
    trial = scene.trial()
    assert trial.detect.reason == "the sender retired none of the broken EVs while the fault lasted"
    assert trial.switch.reason == "the sender still used a broken path when the fault was healed"
    assert trial.whole.reason == "499 of 499 lost packets were never delivered"
    assert check(trial, "all_recovered").ok is False
    assert check(trial, "silent_after_switch").ok is False


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
    assert trial.detect.ns == 80_000
    assert check(trial, "only_broken_evs_retired").ok is False
    assert check(scene.trial(events[2]), "only_broken_evs_retired").ok


def test_a_retransmission_before_detection_is_a_contradiction(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 60_000, psn, scene.sound, rtx=True)
    assert check(scene.trial(scene.retired(T + 70_000)), "rtx_not_before_detect").ok is False
    assert check(scene.trial(scene.retired(T + 61_000)), "rtx_not_before_detect").ok


def test_a_cut_that_lets_packets_through_is_none(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 20_000, scene.next_psn(), scene.broken)
    scene.wire.send(T + 60_000, psn, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 50_000))
    assert check(trial, "fault_effective").ok is False
    assert trial.lost_packets == 1


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
    assert trial.whole.ns == 60_000 + ONE_WAY_NS  # the first copy counts
    assert trial.bytes_delivered == 602 * 1000  # and no copy twice


def test_a_retransmission_lost_on_another_broken_path_delays_whole(lab: Fabric) -> None:
    scene = Scene(lab)
    other = scene.paths[1]
    fault = replace(FAULT, where="h0:p0-t0-0")  # takes all paths of the plane
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 60_000, psn, other, rtx=True, arrives_ns=None)
    scene.wire.send(T + 900_000, psn, scene.sound, rtx=True)
    trial = scene.trial(scene.retired(T + 55_000), scene.retired(T + 890_000, other), fault=fault)
    assert (trial.lost_packets, trial.switch.ns, trial.whole.ns) == (2, 60_000, 900_000 + ONE_WAY_NS)
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
    assert trial.whole.ns == 60_000 + ONE_WAY_NS
    assert check(trial, "no_loss_elsewhere").ok is False


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
    assert check(scene.trial(), "ev_matches_path").ok
    scene.wire.send(T + 1, scene.next_psn(), scene.sound, ev=scene.broken.ev)
    assert check(scene.trial(), "ev_matches_path").ok is False


def test_the_application_s_gap(lab: Fabric) -> None:
    scene = Scene(lab)
    times = [*range(T - 5_000_000, T + 1, 100_000), T + 1_700_000, T + 1_800_000, T + 150_000_000]
    done = [Event(t, "ReceiveCompleted", {}) for t in times]
    gaps = scene.trial(receiver_events=EventLog.of_events(done)).gaps
    assert gaps.source == "ReceiveCompleted"
    assert gaps.before_p50_ns == gaps.before_max_ns == 100_000
    assert gaps.longest_ns == 150_000_000 - 1_800_000
    sent = [Event(t, "SendCompleted", {}) for t in times[:-1]]
    gaps = scene.trial(*sent).gaps
    assert (gaps.source, gaps.longest_ns) == ("SendCompleted", 1_700_000)
    assert scene.trial().gaps.source == "none"


def test_verdicts_on_integrity_go_to_their_trials(lab: Fabric, story: Story, told: Path) -> None:
    verdicts = ["ok"] * 12
    verdicts[4] = "message 7: hash differs"
    trials = examine(told, lab, "h0", "h6", integrity=verdicts).trials
    assert [trial.integrity for trial in trials] == verdicts
    with pytest.raises(ValueError, match="12 faults, but 2 verdicts"):
        examine(told, lab, "h0", "h6", integrity=["ok", "ok"])


def test_two_queue_pairs_with_the_same_numbers_are_kept_apart(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = 1000
    scene.wire.send(T - 19_000_000, psn, scene.broken, qp=0x99)
    scene.wire.send(T + 10_000, psn + 1, scene.broken, qp=0x99, arrives_ns=None)
    scene.wire.send(T + 60_000, psn + 1, scene.sound, qp=0x99, rtx=True)
    trial = scene.trial(scene.retired(T + 50_000))
    assert (trial.lost_packets, trial.spurious_retransmissions) == (1, 0)
    assert trial.whole.ns == 60_000 + ONE_WAY_NS


def test_silence_too_short_to_tell_is_not_taken_for_a_switch(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 99_900_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 101_000_000, psn, scene.sound, rtx=True)
    assert scene.trial().switch.ns is None
    assert scene.trial(scene.retired(T + 99_950_000)).switch.ns == 99_900_000


def test_a_fault_never_healed_lasts_to_the_end(lab: Fabric) -> None:
    scene = Scene(lab)
    psn = scene.next_psn()
    scene.wire.send(T + 10_000, psn, scene.broken, arrives_ns=None)
    scene.wire.send(T + 60_000, psn, scene.sound, rtx=True)
    fault = replace(FAULT, restore_before_ns=None, restore_after_ns=None)
    trial = scene.trial(scene.retired(T + 50_000), fault=fault)
    assert (trial.detect.ns, trial.switch.ns, trial.whole.ns) == (50_000, 10_000, 60_000 + ONE_WAY_NS)


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
    """Packets 1 us apart, reordered by up to 430 us, lost or duplicated, over the wrap of the PSN."""
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
    from topologies import load_fabric

    return load_fabric("lab")


def test_empty_captures_give_trials_without_times(lab: Fabric) -> None:
    trace = trace_of(Wire(lab), lab.paths("h0", "h6"))
    (trial,) = analyse(trace, [FAULT], EventLog(()))
    assert trial.whole.ns is None
    assert trial.rtt_ns is None
    assert analyse(trace, [], EventLog(())) == ()


def test_a_run_s_directory_must_be_complete(told: Path, lab: Fabric, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a recording"):
        examine(tmp_path, lab, "h0", "h6")


@pytest.mark.slow
def test_wide_is_analysed_too() -> None:
    from topologies import load_fabric

    wide = load_fabric("wide")
    story = tell(wide, ["p3-t0-0:p3-t1-17"], interval_ns=50_000, hold_ns=200_000_000)
    trace = trace_of(story.wire, wide.paths("h0", "h2"))
    (trial,) = analyse(trace, story.faults, story.events, story.receiver_events)
    assert trial.paths_used == 256
    assert (trial.detect.ns, trial.whole.ns) == (story.answers[0].detect, story.answers[0].whole)
