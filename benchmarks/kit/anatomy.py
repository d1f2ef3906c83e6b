"""The steps of one recovery, and their times: from the first lost packet to the arrival of its copy.

The moments come from the captures at both NICs and from the sender's event log. All are CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.events import EventLog
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.pcap import Opcode, Packets
from mrclab.experiments.measure.recording import ClockMap
from mrclab.experiments.measure.recovery import EVENT_STAMP_NS, Span, taken
from mrclab.experiments.measure.trace import NEVER, PSN_BITS, IntArray, Trace

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of one recovery in their order, ns since the lost packet left the sender's NIC.

    `MEANINGS` describes each moment.
    """

    next_sent: int
    deciding_sent: int
    deciding_arrived: int
    answer_sent: int
    answer_arrived: int
    declared: int
    copy_sent: int
    copy_arrived: int

    def steps(self) -> tuple[int, ...]:
        """Return the duration of each step, from one moment to the next. The first begins at the loss."""
        moments = astuple(self)
        return tuple(b - a for a, b in zip((0, *moments), moments, strict=False))


NAMES = tuple(f.name for f in fields(Moments))
MEANINGS = {
    "next_sent": "the next packet, on another EV, leaves the sender",
    "deciding_sent": "the packet (or probe) whose answer decides leaves: reordering window, pace",
    "deciding_arrived": "it arrives at the receiver's NIC",
    "answer_sent": "the receiver's SACK for it leaves",
    "answer_arrived": "the SACK arrives at the sender's NIC",
    "declared": "the sender reads it and declares the packet lost",
    "copy_sent": "the retransmission leaves",
    "copy_arrived": "the retransmission arrives",
}


class Recovery(NamedTuple):
    """One recovery: its moments, and what showed the loss: a probe's answer (True) or a SACK (False)."""

    moments: Moments
    by_probe: bool


def dissect(
    trace: Trace, sender: Packets, receiver: Packets, log: EventLog, fault: FaultRecord, span: Span
) -> Recovery | None:
    """Return the recovery of the first packet that a fault dropped, or None if a moment is not recorded.

    ``trace`` was made from the captures ``sender`` and ``receiver``. ``log`` is the sender's event log.
    """
    lost = taken(trace, fault, span)
    if not len(lost):
        return None
    first, sent, clock = int(lost[0]), trace.sent, trace.clock
    lost_ns = int(sent.t_ns[first])
    declared_ns = _declared_ns(log, int(sent.psn[first]), int(sent.ev[first]), lost_ns, span.end)
    copy = _copy(trace, first)
    following = np.flatnonzero((sent.t_ns > lost_ns) & (sent.ev != sent.ev[first]))
    if declared_ns is None or copy is None or not len(following):
        return None
    came = _select(sender.rows, Opcode.SACK, clock, outgoing=False, after_ns=lost_ns)
    decided = np.flatnonzero(came.t_ns <= declared_ns + EVENT_STAMP_NS)
    if not len(decided):
        return None
    answer, answer_ns = came.rows[decided[-1]], int(came.t_ns[decided[-1]])
    left = _select(receiver.rows, Opcode.SACK, clock, outgoing=True, after_ns=lost_ns)
    same = left.rows["echo_ev"] == answer["echo_ev"]
    same &= left.rows["echo_psn"] == answer["echo_psn"]
    same &= left.rows["probe_reply"] == answer["probe_reply"]
    answer_left_ns = _latest(left.t_ns[same], answer_ns)
    by_probe = bool(answer["probe_reply"])
    asked = _question(trace, sender, receiver, answer, by_probe=by_probe, before_ns=answer_left_ns)
    if asked is None:
        return None
    stamps = (
        int(sent.t_ns[following[0]]),
        *asked,
        answer_left_ns,
        answer_ns,
        declared_ns,
        int(sent.t_ns[copy]),
        int(sent.arrived_ns[copy]),
    )
    return Recovery(Moments(*(stamp - lost_ns for stamp in stamps)), by_probe)


class _Frames(NamedTuple):
    rows: Rows
    t_ns: IntArray


def _select(rows: Rows, opcode: Opcode, clock: ClockMap, *, outgoing: bool, after_ns: int) -> _Frames:
    """Return the packets of an opcode and a direction after a time, in order of time."""
    found = rows[(rows["opcode"] == opcode) & (rows["outgoing"] == outgoing)]
    t_ns = clock.to_monotonic(found["t_ns"])
    order = np.argsort(t_ns, kind="stable")
    order = order[t_ns[order] > after_ns]
    return _Frames(found[order], t_ns[order])


def _latest(t_ns: IntArray, before_ns: int) -> int:
    """Return the latest of these times up to ``before_ns``, or ``before_ns`` if all are later."""
    earlier = t_ns[t_ns <= before_ns]
    return int(earlier[-1]) if len(earlier) else before_ns


def _declared_ns(log: EventLog, psn: int, ev: int, after_ns: int, end_ns: int) -> int | None:
    """Return when the sender declared a packet lost."""
    for event in log.between("PacketLost", after_ns, end_ns):
        if event.int_field("psn") == psn % (1 << PSN_BITS) and event.int_field("ev") == ev:
            return event.t_ns
    return None


def _copy(trace: Trace, lost: int) -> int | None:
    """Return the index of a packet's first retransmission, or None if the retransmission did not arrive."""
    sent = trace.sent
    same = (sent.psn == sent.psn[lost]) & (sent.flow == sent.flow[lost]) & (sent.t_ns > sent.t_ns[lost])
    found = np.flatnonzero(same)
    return int(found[0]) if len(found) and sent.arrived_ns[found[0]] != NEVER else None


def _question(
    trace: Trace, sender: Packets, receiver: Packets, answer: np.void, *, by_probe: bool, before_ns: int
) -> tuple[int, int] | None:
    """Return when the packet or probe that a SACK answers left the sender, and when it arrived."""
    sent = trace.sent
    if by_probe:
        stamps: Sequence[int] = [
            _latest(frames.t_ns[frames.rows["ev"] == answer["echo_ev"]], before_ns)
            for frames in (
                _select(sender.rows, Opcode.PROBE_REQUEST, trace.clock, outgoing=True, after_ns=0),
                _select(receiver.rows, Opcode.PROBE_REQUEST, trace.clock, outgoing=False, after_ns=0),
            )
        ]
        return stamps[0], stamps[1]
    named = (sent.psn % (1 << PSN_BITS) == answer["echo_psn"]) & (sent.ev == answer["echo_ev"])
    found = np.flatnonzero(named & (sent.arrived_ns <= before_ns))
    return (int(sent.t_ns[found[-1]]), int(sent.arrived_ns[found[-1]])) if len(found) else None
