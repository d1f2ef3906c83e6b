"""From a run's directory to its result: the last step of a run, and of looking at an old one again.

The directory holds ``sender.pcap``, ``receiver.pcap``, ``recording.json`` (the recorder's),
``sender.jsonl`` and ``receiver.jsonl`` (the agents' events) and ``faults.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.measure.analysis import Trial, analyse
from experiments.measure.clock import STEP_NS
from experiments.measure.events import EventLog, load_events
from experiments.measure.faults import FaultRecord, load_faults
from experiments.measure.pcap import Packets, read_pcap
from experiments.measure.recording import Recording, load_recording
from experiments.measure.trace import Trace, build_trace
from experiments.measure.validity import Load, Validity, judge, kept_up, overloads
from topologies import Fabric

SENDER, RECEIVER = "sender", "receiver"
# A failed check that makes the times themselves doubtful, and what to say then.
_SPOILING = {
    "fault_effective": "packets came through a link that was cut: the fault was none",
    "rtx_not_before_detect": "a retransmission was captured before its loss was detected: stamps disagree",
}


@dataclass(frozen=True)
class Evidence:
    """A run, read and understood: for the result and for the plots.

    ``set_aside`` are the trials in which the machine did not keep up, where others were made in their place.
    """

    trace: Trace
    trials: tuple[Trial, ...]
    set_aside: tuple[Trial, ...]
    sender_events: EventLog
    validity: Validity


def examine(
    directory: Path,
    fabric: Fabric,
    src: str,
    dst: str,
    *,
    integrity: str | Sequence[str] = "ok",
    notes: Sequence[str] = (),
    failures: Sequence[str] = (),
    wanted: int | None = None,
) -> Evidence:
    """Reads a run's directory and analyses it. ``src`` and ``dst`` are the hosts that sent and received.

    ``integrity`` is the receiver's verdict for the run or one for each fault; ``failures`` went wrong
    though nobody asked for it, which spoils the run. Where the machine kept up in ``wanted`` trials, the
    others are set aside. Raises InputError on a file that is missing or not what it should be.
    """
    recording = load_recording(directory / "recording.json")
    faults = load_faults(directory / "faults.json")
    sender, receiver = read_pcap(directory / f"{SENDER}.pcap"), read_pcap(directory / f"{RECEIVER}.pcap")
    sender_events = load_events(directory / f"{SENDER}.jsonl")
    receiver_events = load_events(directory / f"{RECEIVER}.jsonl")
    trace = build_trace(sender, receiver, fabric.paths(src, dst), recording.clock)
    trials = analyse(trace, faults, sender_events, receiver_events, integrity)
    captures = {SENDER: sender, RECEIVER: receiver}
    aside = _overloaded(recording, trials, wanted)
    kept = tuple(trial for trial in trials if trial.index not in aside)
    if aside:
        why = "; ".join(overloads([recording.loads[i] for i in aside]))
        notes = [*notes, f"{len(aside)} of {len(trials)} trials were set aside and made again: {why}"]
    loads = [load for i, load in enumerate(recording.loads) if i not in aside]
    validity = _validity(recording, loads, captures, faults, trials, notes, failures)
    return Evidence(trace, kept, tuple(trials[i] for i in aside), sender_events, validity)


def _overloaded(recording: Recording, trials: Sequence[Trial], wanted: int | None) -> list[int]:
    """In which trials the machine did not keep up; none where fewer than ``wanted`` would be left."""
    if wanted is None or len(recording.loads) != len(trials):
        return []
    over = [i for i, load in enumerate(recording.loads) if not kept_up(load)]
    return over if len(trials) - len(over) >= wanted else []


def _validity(
    recording: Recording,
    loads: Sequence[Load],
    captures: Mapping[str, Packets],
    faults: Sequence[FaultRecord],
    trials: Sequence[Trial],
    notes: Sequence[str],
    failures: Sequence[str],
) -> Validity:
    also = [*failures]
    also += [
        f"the capture at the {name} is cut short" for name, packets in captures.items() if packets.truncated
    ]
    also += [
        f"the capture at the {name} holds no MRC"
        for name, packets in captures.items()
        if not len(packets.rows)
    ]
    if not faults:
        also.append("no fault was made")
    for check, text in _SPOILING.items():
        failed = sum(c.ok is False for trial in trials for c in trial.checks if c.name == check)
        if failed:
            also.append(f"in {failed} of {len(trials)} trials {text}")
    if trials and all(trial.lost_packets == 0 for trial in trials):
        also.append("no fault hit a packet")
    return judge(
        loads,
        capture_drops=recording.drops,
        clock_change_ns=recording.clock.max_change_ns,
        clock_limit_ns=STEP_NS,
        also=also,
        notes=notes,
    )
