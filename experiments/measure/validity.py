"""Validity of a run: did the endpoints get enough CPU time? Rules for the load, and standstills.

The rules apply to the processes on which a figure depends: their share of a CPU, how long they waited or were
stopped, and their CPU time per packet. CPU use by other programs matters only if these can take a CPU from
the endpoints (`mrclab.experiments.measure.load.Beats.first`); otherwise the result only has a note about it.

A standstill is a time in which no data frame was sent or received. A standstill lasts at least five normal
gaps, and at least a millisecond. The normal gap is a weighted median: gaps of this length or longer make up
half of the total time. A stopped machine stops sender, receiver and switches. In captures, a sender that
waits for an acknowledgement could look like a stopped machine, so recoveries are judged separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mrclab.experiments.measure.load import GAP_SHARE, LEAST_GAP_NS, Load
from mrclab.experiments.measure.trace import IntArray, Trace

TIMES_USUAL = 5
LEAST_NS = 1_000_000
MOST_SHARE = 0.1
"""If a larger share of the trials has a standstill in the recovery, chance is not the cause."""
KEPT = 200
"""The most standstills that a result has for a repetition. The longest standstills are kept."""


@dataclass(frozen=True)
class Standstills:
    """Start and length of each standstill, ns: shape (n,). ``limit_ns`` is the shortest possible length."""

    t_ns: IntArray
    length_ns: IntArray
    limit_ns: int

    def longest_between_ns(self, begin_ns: int, end_ns: int) -> int:
        """Return the length of the longest standstill that overlaps ``begin_ns`` to ``end_ns``, or 0."""
        touching = (self.t_ns < end_ns) & (self.t_ns + self.length_ns > begin_ns)
        return int(self.length_ns[touching].max(initial=0))

    def to_dict(self, measure_ns: int) -> dict[str, Any]:
        """Return the standstills as in result.json: begin and length in us since the measurement's start."""
        kept = np.sort(np.argsort(-self.length_ns, kind="stable")[:KEPT])
        rows = zip(self.t_ns[kept].tolist(), self.length_ns[kept].tolist(), strict=True)
        return {
            "limit_us": self.limit_ns / 1e3,
            "count": len(self.t_ns),
            "found": [[round((t_ns - measure_ns) / 1e3, 3), length / 1e3] for t_ns, length in rows],
        }

    def words(self) -> str:
        """Return one line for a note; empty if there are no standstills."""
        if not len(self.t_ns):
            return ""
        count = len(self.t_ns)
        many = f"{count} standstill{'s' if count > 1 else ''} of {self.limit_ns / 1e6:.3g} ms or more"
        longest = f"the longest {int(self.length_ns.max()) / 1e6:.3g} ms"
        return f"{many}, in which no data frame left or came in; {longest} (grey in the pictures)"


def chosen_aside(found: Mapping[int, int], trials: int) -> list[int]:
    """Return the trials to set aside, because data stood still between the fault and the recovery.

    Return no trials if this happened in several trials and in more than a tenth of all trials. The transport
    may then be the cause.
    """
    return sorted(found) if len(found) <= max(1.0, MOST_SHARE * trials) else []


def standstills_of(traces: Sequence[Trace]) -> Standstills:
    """Return the times in which, according to the captures, no pair of hosts sent or received data."""
    stamps = [stamps for trace in traces for stamps in (trace.sent.t_ns, trace.received.t_ns)]
    frames = np.sort(np.concatenate(stamps)) if stamps else np.zeros(0, np.int64)
    gaps = np.diff(frames)
    if not len(gaps):
        return Standstills(gaps, gaps, LEAST_NS)
    limit_ns = max(LEAST_NS, TIMES_USUAL * _usual_ns(gaps))
    long = gaps >= limit_ns
    return Standstills(frames[:-1][long], gaps[long], limit_ns)


def _usual_ns(gaps: IntArray) -> int:
    """Return the normal gap: gaps of this length or longer make up half of the total time."""
    ordered = np.sort(gaps)
    held = np.cumsum(ordered)
    return int(ordered[int(np.searchsorted(held, held[-1] / 2))])


# If a trial exceeds one of these limits, waiting for a CPU is part of the trial's times, so these times are
# not valid.
# MAX_SHARE: the time in which an endpoint runs or waits for a CPU, divided by the trial's length. If this
# share is near 1, the kernel's limit for real-time threads stops the endpoint for 50 ms in each second.
MAX_SHARE = 0.92
# MAX_WAIT: the time in which a thread of an agent waits for a CPU, divided by the time in which the thread
# runs or waits.
MAX_WAIT = 0.25
MAX_COST = 1.25  # CPU time per packet, relative to the rehearsal and earlier trials
MAX_BUSY = 0.95  # share of all CPUs in use; ignored if endpoints have priority over other programs
MAX_STEAL = 0.05  # the share of all CPUs that the hypervisor took
# The share of the time in which a switch's busiest thread runs or waits for a CPU. Near 1, more and more
# frames wait for this thread. Below the limit, the waiting only adds to the delay of the hop, and so to the
# reported RTT.
MAX_DEMAND = 0.85
MAX_STOPPED = 0.0  # ns; times are wrong if a process was stopped
MAX_THROTTLED = 0.0  # us; a cgroup's quota stops processes for tens of milliseconds


@dataclass(frozen=True)
class Validity:
    """The verdict on a run, which is valid without ``reasons``. ``loads`` has a load for each trial."""

    reasons: tuple[str, ...]
    loads: tuple[Load, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """True if the times of the run are valid."""
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as in result.json, with the rules that were applied."""
        rules = {
            "max_share": MAX_SHARE,
            "max_wait": MAX_WAIT,
            "max_cost": MAX_COST,
            "max_busy": MAX_BUSY,
            "max_steal": MAX_STEAL,
            "max_demand": MAX_DEMAND,
            "max_throttled_us": MAX_THROTTLED,
            "max_stopped_ns": MAX_STOPPED,
            "longest_unnoticed_gap_ns": LEAST_GAP_NS,
            "longest_unnoticed_gap_share": GAP_SHARE,
        }
        loads = [load.to_dict() for load in self.loads]
        return {"reasons": list(self.reasons), "notes": list(self.notes), "rules": rules, "loads": loads}


def judge(
    loads: Sequence[Load],
    *,
    capture_drops: Mapping[str, int] | None = None,
    clock_change_ns: int = 0,
    clock_limit_ns: int = 20_000,
    also: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Validity:
    """Apply the rules to the load of every trial and to the data about the captures.

    ``capture_drops`` has the number of packets that the kernel dropped from each capture. A single dropped
    packet makes a run invalid, because the missing packet could change the times. ``also`` has further
    reasons why the run is invalid.
    """
    reasons: list[str] = []
    for name, dropped in (capture_drops or {}).items():
        if dropped:
            reasons.append(f"the capture at the {name} lost {dropped} packets (dropped by kernel)")
    if clock_change_ns > clock_limit_ns:
        reasons.append(f"the clock was set during the run: realtime moved by {clock_change_ns / 1000:.0f} us")
    reasons += overloads(loads)
    return Validity((*reasons, *also), tuple(loads), (*notes, *_crowded(loads)))


def _crowded(loads: Sequence[Load]) -> list[str]:
    """Return a note if CPUs were busy and the endpoints had priority. Such a run can still be valid."""
    busy = [load.busy for load in loads if load.first and load.busy is not None and load.busy > MAX_BUSY]
    if not busy:
        return []
    text = f"in {len(busy)} of {len(loads)} trials the CPUs were up to {max(busy):.0%} busy"
    return [f"{text}, with other programs too: the endpoints run before those"]


# For each rule: the field of `Load`, its limit, and the text of the reason if the limit is exceeded.
_RULES = (
    ("share", MAX_SHARE, "{busiest} ran or waited for a CPU {value:.0%} of the time (limit {limit:.0%})"),
    ("cost", MAX_COST, "a packet cost {dearest} {value:.2f} times the CPU time of other trials"),
    ("busy", MAX_BUSY, "the CPUs were {value:.0%} busy (limit {limit:.0%})"),
    ("steal", MAX_STEAL, "the hypervisor took {value:.0%} of the CPUs (limit {limit:.0%})"),
    ("wait", MAX_WAIT, "{who} waited for a CPU {value:.0%} of its time (limit {limit:.0%})"),
    ("demand", MAX_DEMAND, "{switch} wanted a CPU {value:.0%} of the time (limit {limit:.0%})"),
    ("throttled_us", MAX_THROTTLED, "a cgroup quota stopped us for {value:.0f} us"),
    ("stopped_ns", MAX_STOPPED, "{stopped} stood still for {ms:.1f} ms, when it should have worked"),
)
_BY_CHANCE = ("steal", "throttled_us", "stopped_ns")
_BY_RATE = ("share", "busy", "wait", "demand")


def _broken(load: Load) -> list[str]:
    return [
        key
        for key, limit, _ in _RULES
        if (getattr(load, key) or 0) > limit and not (key == "busy" and load.first)
    ]


def too_fast(load: Load) -> bool:
    """Return True if endpoints or switches had too little CPU time for the rate of the trial."""
    return any(key in _BY_RATE for key in _broken(load))


def kept_up(load: Load) -> bool:
    """Return True if the machine was fast enough in a trial with this load: no limit is exceeded."""
    return not _broken(load)


def by_chance(load: Load) -> bool:
    """Return True if other programs took CPU time or a process was stopped, so a second attempt may help."""
    return any(key in _BY_CHANCE for key in _broken(load))


def overloads(loads: Sequence[Load]) -> list[str]:
    """Return a reason for each broken rule: how many trials broke the rule, and the worst value."""
    reasons = []
    for key, limit, text in _RULES:
        broken = [(getattr(load, key), load) for load in loads if key in _broken(load)]
        if broken:
            value, load = max(broken, key=lambda item: float(item[0]))
            worst = text.format(
                value=value,
                ms=value / 1e6,
                limit=limit,
                who=load.worst_thread,
                switch=load.busiest_switch,
                stopped=load.stopped,
                busiest=load.busiest,
                dearest=load.dearest,
            )
            reasons.append(f"in {len(broken)} of {len(loads)} trials {worst}")
    return reasons
