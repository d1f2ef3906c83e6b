"""Metrics of a repetition, from the ranks' samples, a training's steps, or the agents' streams.

All functions are pure functions of arrays. A metric has a name, with its unit as suffix, and the values of
one repetition: one value, or one for each operation, step, fault or message. Input times are CLOCK_MONOTONIC
ns.

Training: PyTorch over NCCL, for instance, ends a job if a collective takes longer than a limit. The job is
then restarted from its last checkpoint, and all steps after the checkpoint are lost. This module computes the
effect of such a collective timeout from the measured steps. Training is deterministic, so repeated steps have
the same losses.

The goodput of a stream is measured at completions or at arrivals of packets. The bytes of the first
completion were sent before this completion. So these bytes do not count: the goodput is the bytes of all
later completions, divided by the time from the first to the last completion. The same holds for arrivals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.events import EventLog
from mrclab.experiments.measure.trace import IntArray, Trace

Ints = npt.NDArray[np.int64]
RankSamples = Sequence[Mapping[str, Ints]]
Metrics = dict[str, list[float]]

BUS_FACTOR = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
}
"""Bus bandwidth divided by algorithm bandwidth, as defined by nccl-tests (doc/PERFORMANCE.md)."""

BASELINE_NS = 500_000_000
"""The time before a fault in which a flow's normal latency is measured."""
CALM_NS = 20_000_000
"""A late message belongs to a fault if it was posted within this time after the fault, or after the arrival
of another late message."""
MIN_BASELINE = 20


def size_text(size_bytes: int) -> str:
    """Return a size as text, as in the names of metrics: ``1MiB``, ``64KiB``, ``100B``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit}"
    return f"{size_bytes}B"


def collective_metrics(kind: str, ranks: RankSamples) -> Metrics:
    """Return ``time_us``, ``algbw_gbps`` and ``busbw_gbps`` for each size.

    An operation lasts from the time when its first rank leaves the barrier until its last rank is done.
    """
    n = len(ranks)
    found: Metrics = {}
    sizes, starts, ends = (np.array([r[key] for r in ranks]) for key in ("bytes", "start_ns", "end_ns"))
    for size in dict.fromkeys(sizes[0].tolist()) if sizes.size else ():
        chosen = sizes[0] == size
        took = (ends[:, chosen].max(axis=0) - starts[:, chosen].min(axis=0)).astype(np.float64)
        algbw = size * 8 / took
        label = size_text(size)
        found[f"time_us@{label}"] = (took / 1e3).tolist()
        found[f"algbw_gbps@{label}"] = algbw.tolist()
        found[f"busbw_gbps@{label}"] = (algbw * BUS_FACTOR[kind](n)).tolist()
    return found


def training_metrics(ranks: RankSamples, compute_ns: int) -> Metrics:
    """Return ``step_us``, ``comm_us``, ``stalled_us``, ``stalled_share`` and ``busy_share`` of a training.

    A step lasts from its first rank's start until its last rank's end. ``comm_us`` is the part of the step
    after computing. ``stalled_us`` is the time by which ``comm_us`` exceeds its median.
    """
    starts, computed, ends = (np.array([r[k] for r in ranks]) for k in ("start_ns", "computed_ns", "end_ns"))
    if not starts.size:
        return {}
    step = (ends.max(axis=0) - starts.min(axis=0)) / 1e3
    comm = (ends.max(axis=0) - computed.max(axis=0)) / 1e3
    stalled = np.maximum(0, comm - np.median(comm))
    return {
        "step_us": step.tolist(),
        "comm_us": comm.tolist(),
        "stalled_us": stalled.tolist(),
        "stalled_share": [float(stalled.sum() / step.sum())],
        "busy_share": [float(compute_ns / 1e3 / np.mean(step))],
    }


def graph_metrics(ranks: RankSamples, jobs: Sequence[str] = ()) -> Metrics:
    """Return ``step_us`` and ``exposed_us`` of a played graph. With ``jobs`` add each job's ``step_us@NAME``.

    A step lasts from its first rank's start until its last rank's end. ``exposed_us`` is the part of the step
    in which a rank does not compute: the mean over the ranks.
    """
    if jobs:
        found = graph_metrics(ranks)
        for number, name in enumerate(jobs):
            own = [rank for rank in ranks if len(rank["job"]) and rank["job"][0] == number]
            if own:
                found[f"step_us@{name}"] = graph_metrics(own).get("step_us", [])
        return found
    starts, ends, computed = (np.array([r[k] for r in ranks]) for k in ("start_ns", "end_ns", "compute_ns"))
    if not starts.size:
        return {}
    step = ends.max(axis=0) - starts.min(axis=0)
    exposed = step - computed.mean(axis=0)
    return {"step_us": (step / 1e3).tolist(), "exposed_us": (exposed / 1e3).tolist()}


SIZE_CLASSES = ((10_000, "10kB"), (100_000, "100kB"), (1_000_000, "1MB"), (10_000_000, "10MB"))


def completion_metrics(ranks: RankSamples, rate_bps: int, rtt_ns: int) -> Metrics:
    """Return ``fct_us`` and ``slowdown`` of every flow.

    ``fct_us`` is the time from a flow's start until its sender learns that all data has arrived. ``slowdown``
    is this time divided by the time of the flow on an idle network: an RTT, and the time of the flow's bytes
    at the NIC's rate (as in HPCC's evaluation). ``slowdown@10kB`` is for flows up to 10 kB,
    ``slowdown@100kB`` for larger flows up to 100 kB, and so on; ``slowdown@more`` is for the largest flows.
    """
    sizes = np.concatenate([r["op_bytes"] for r in ranks])
    took = np.concatenate([r["op_end_ns"] - r["op_start_ns"] for r in ranks])
    sends = np.concatenate([r["op"] % 3 == 1 for r in ranks])
    sizes, took = sizes[sends], took[sends]
    slowdown = took / (rtt_ns + sizes * 8e9 / rate_bps)
    found: Metrics = {"fct_us": (took / 1e3).tolist(), "slowdown": slowdown.tolist()}
    low = 0
    for high, name in (*SIZE_CLASSES, (1 << 62, "more")):
        chosen = (sizes > low) & (sizes <= high)
        if chosen.any():
            found[f"slowdown@{name}"] = slowdown[chosen].tolist()
        low = high
    return found


def request_metrics(ranks: RankSamples, measure_ns: int) -> Metrics:
    """Return ``latency_us`` of every request sent after the warm-up."""
    sent, answered = ranks[0]["sent_ns"], ranks[0]["answered_ns"]
    sent = sent[: len(answered)]
    took = (answered - sent)[sent >= measure_ns]
    return {"latency_us": (took / 1e3).tolist()}


def flow_times(pair: tuple[int, int], number: int, ranks: RankSamples) -> tuple[Ints, Ints]:
    """Return when each message of a flow was posted, and when it arrived (-1 if it did not arrive).

    ``pair`` has the flow's sending and receiving rank.
    """
    src, dst = pair
    posted = ranks[src][f"flow{number}_posted_ns"]
    numbers, arrived = ranks[dst][f"flow{number}_numbers"], ranks[dst][f"flow{number}_arrived_ns"]
    times = np.full(max(len(posted), int(numbers.max(initial=-1)) + 1), -1, np.int64)
    times[numbers] = arrived
    return posted, times[: len(posted)]


def flow_metrics(
    pairs: Sequence[tuple[int, int]],
    message_bytes: Sequence[int],
    ranks: RankSamples,
    measure_ns: int,
    end_ns: int,
    faults_ns: Sequence[int],
) -> Metrics:
    """Return ``goodput_mbps`` of all flows together, ``flow_mbps`` of each, ``latency_us``, and ``gap_us``.

    For each fault, ``gap_us`` has the longest time in which a flow had no arrival, up to the next fault.
    Flow i goes from the first rank of ``pairs[i]`` to the second in messages of ``message_bytes[i]``.
    """
    seconds = (end_ns - measure_ns) / 1e9
    rates, latencies = [], []
    gaps: list[list[float]] = [[] for _ in faults_ns]
    for number, size in enumerate(message_bytes):
        posted, arrived = flow_times(pairs[number], number, ranks)
        counted = (arrived >= 0) & (arrived >= measure_ns) & (arrived < end_ns)
        rates.append(float(counted.sum() * size * 8 / seconds / 1e6))
        latencies.append((arrived - posted)[counted] / 1e3)
        for i, fault_ns in enumerate(faults_ns):
            stop_ns = faults_ns[i + 1] if i + 1 < len(faults_ns) else int(arrived.max(initial=end_ns))
            gaps[i].append(longest_gap_ns(arrived, fault_ns, stop_ns) / 1e3)
    found: Metrics = {
        "goodput_mbps": [sum(rates)],
        "flow_mbps": rates,
        "latency_us": np.concatenate(latencies).tolist() if latencies else [],
    }
    if faults_ns and rates:
        found["gap_us"] = [max(values) for values in gaps]
    return found


def flow_control_metrics(found: Mapping[str, Any]) -> Metrics:
    """Return the metrics of lossless links (`Evidence.flow_control`); empty if the links drop frames.

    ``stopped_us`` has a value for each link that stopped. ``stop_depth``, ``blocked_packets`` and
    ``deepest_queue_bytes`` are of all links together.
    """
    if not found:
        return {}
    ports = found["ports"]
    return {
        "stopped_us": [port["stopped_us"] for port in ports if port["stopped_us"]],
        "stop_depth": [max((port["depth"] for port in ports), default=0)],
        "blocked_packets": [sum(port["blocked_packets"] for port in ports)],
        "deepest_queue_bytes": [max((port["queue_bytes"] for port in ports), default=0)],
    }


def longest_gap_ns(arrived: Ints, fault_ns: int, stop_ns: int) -> float:
    """Return the longest time without an arrival after a fault, in ns."""
    later = np.sort(arrived[(arrived >= fault_ns) & (arrived < stop_ns)])
    edges = np.concatenate(([fault_ns], later, [stop_ns]))
    return float(np.diff(edges).max(initial=0))


def late_messages(posted: Ints, arrived: Ints, fault_ns: int, stop_ns: int) -> tuple[Ints, int] | None:
    """Return the indices of a flow's messages that a fault made late, and how many of them never arrived.

    A message is late if it took longer than every message that arrived in the half second before the fault. A
    late message belongs to the fault if it was posted or in flight within 20 ms after the fault. It also
    belongs to the fault if it was posted or in flight within 20 ms after the arrival of another late message
    of the fault. Return None with fewer than 20 messages before the fault: nobody knows which ones are late.
    """
    came = np.where(arrived >= 0, arrived, stop_ns)
    took = came - posted
    before = (arrived >= 0) & (arrived < fault_ns) & (arrived >= fault_ns - BASELINE_NS)
    if before.sum() < MIN_BASELINE:
        return None
    late = np.flatnonzero((came >= fault_ns) & (posted < stop_ns) & (took > took[before].max()))
    late = late[np.argsort(came[late], kind="stable")]
    reach, count = fault_ns, 0
    for begin, end in zip(posted[late].tolist(), came[late].tolist(), strict=True):
        if begin > reach + CALM_NS:
            break
        reach = max(reach, end)
        count += 1
    ours = late[:count]
    return ours, int(np.count_nonzero(arrived[ours] < 0))


def delivered_series(
    ranks: RankSamples, measure_ns: int, begin_ns: int, end_ns: int, bin_ns: int
) -> dict[str, Any]:
    """Return the bytes delivered to all ranks, and the lost packets, in each bin from ``begin_ns`` on.

    ``start_us`` is relative to the measurement's start. Between two samples the rate is assumed constant.
    Trimmed packets are not lost (`mrclab.experiments.measure.events.path_events`).
    """
    edges = np.arange(begin_ns, max(end_ns, begin_ns + bin_ns) + 1, bin_ns)
    total = np.zeros(len(edges))
    lost = np.zeros(len(edges) - 1, dtype=np.int64)
    for rank in ranks:
        times, delivered = rank["series_t_ns"], rank["series_bytes"]
        if len(times):
            total += np.interp(edges, times, delivered)
        if "event_lost_ns" in rank:
            lost += np.histogram(rank["event_lost_ns"][rank["event_lost_trimmed"] == 0], edges)[0]
    return {
        "start_us": (begin_ns - measure_ns) / 1e3,
        "bin_us": bin_ns / 1e3,
        "bytes": np.diff(total).round().astype(int).tolist(),
        "lost": lost.tolist(),
    }


LOSS_SCALE = 1e9
"""Ranks record the training's losses in units of 1e-9 nats."""
DIGEST_WORDS = 4
KEYS = ("start_ns", "computed_ns", "reduced_ns", "end_ns")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a training on all ranks. Times are in us since the measurement's start."""

    start_us: Floats
    """When the last rank began the step. The wait of earlier ranks belongs to the previous step."""
    computed_us: Floats
    """When the last rank had computed its gradient."""
    end_us: Floats
    losses: Floats
    """The mean loss over the ranks, in nats per character."""

    @property
    def collective_us(self) -> Floats:
        """The time that each step's communication took."""
        return self.end_us - self.computed_us


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash of a job: its step, its time, and the number of lost steps, including this step."""

    step: int
    at_us: float
    lost_steps: int


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a job with a collective timeout: all steps that ended, including repeated steps."""

    end_us: list[float]
    losses: list[float]
    crashes: list[Crash]


def steps_of(ranks: RankSamples, measure_ns: int) -> Steps:
    """Return the steps that all ranks have finished."""
    count = min((len(rank["end_ns"]) for rank in ranks), default=0)
    times = {key: np.array([rank[key][:count] for rank in ranks], np.int64) - measure_ns for key in KEYS}
    if not count:
        nothing = np.zeros(0)
        return Steps(nothing, nothing, nothing, nothing)
    losses = np.mean([rank["loss_e9"][:count] for rank in ranks], axis=0) / LOSS_SCALE
    return Steps(
        times["start_ns"].max(axis=0) / 1e3,
        times["computed_ns"].max(axis=0) / 1e3,
        times["end_ns"].max(axis=0) / 1e3,
        losses,
    )


def course_under(
    steps: Steps, timeout_us: float, checkpoint_steps: int, restart_us: float, *, failed: bool = False
) -> Course:
    """Return the course of the job with a collective timeout of ``timeout_us``.

    If a collective takes longer than ``timeout_us``, the job crashes. The job restarts ``restart_us`` after
    the crash and repeats the steps since the checkpoint. Each repeated step takes the median time. ``failed``
    is True if the job's transport failed after the last step. This failure is a crash, too.
    """
    usual_us = float(np.median(steps.end_us - steps.start_us)) if len(steps.end_us) else 0.0
    course = Course([], [], [])
    later_us = 0.0
    for step, took_us in enumerate(steps.collective_us.tolist()):
        end_us = float(steps.end_us[step])
        if took_us > timeout_us:
            again = step % checkpoint_steps
            at_us = later_us + float(steps.computed_us[step]) + timeout_us
            course.crashes.append(Crash(step, at_us, again + 1))
            for number in range(again):
                course.end_us.append(at_us + restart_us + (number + 1) * usual_us)
                course.losses.append(float(steps.losses[step - again + number]))
            later_us = at_us + restart_us + (again + 1) * usual_us - end_us
        course.end_us.append(later_us + end_us)
        course.losses.append(float(steps.losses[step]))
    if failed:
        step, at_us = len(steps.end_us), course.end_us[-1] if course.end_us else 0.0
        course.crashes.append(Crash(step, at_us, step % checkpoint_steps + 1))
    return course


def transformer_metrics(steps: Steps, course: Course) -> Metrics:
    """Return the times of each step, and ``stalled_share``, ``crashes`` and ``lost_steps`` of the repetition.

    ``comm_us`` is a step's communication; ``stalled_us`` is the time by which ``comm_us`` exceeds its median.
    """
    if not len(steps.end_us):
        return {}
    took, comm = steps.end_us - steps.start_us, steps.collective_us
    stalled = np.maximum(0, comm - np.median(comm))
    return {
        "step_us": took.tolist(),
        "comm_us": comm.tolist(),
        "stalled_us": stalled.tolist(),
        "stalled_share": [float(stalled.sum() / took.sum())],
        "crashes": [float(len(course.crashes))],
        "lost_steps": [float(sum(crash.lost_steps for crash in course.crashes))],
    }


def account_of(
    steps: Steps, course: Course, ranks: RankSamples, alone: Sequence[str], workload: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the result's entry for the training of a repetition, in JSON types.

    ``alone`` has the hashes of a single process's parameters, before the first step and after each step.
    ``parameters_differ_at`` is the first step after which a rank's parameters differ from those of the single
    process, or null. If ``alone`` is empty, the parameters are compared with the parameters of rank 0.
    """
    count = len(steps.end_us)
    digests = [_digests(rank["digests"]) for rank in ranks]
    wanted = list(alone) or (digests[0] if digests else [])
    known = min([len(wanted), *(len(found) for found in digests)], default=0)
    differ = [at for at in range(known) if any(found[at] != wanted[at] for found in digests)]
    return {
        "steps": count,
        "wanted_steps": workload["steps"],
        "losses": [round(loss, 6) for loss in steps.losses.tolist()],
        "start_us": np.round(steps.start_us, 1).tolist(),
        "computed_us": np.round(steps.computed_us, 1).tolist(),
        "end_us": np.round(steps.end_us, 1).tolist(),
        "parameters_sha256": digests[0][count] if digests and len(digests[0]) > count else None,
        "alone_sha256": alone[count] if len(alone) > count else None,
        "parameters_differ_at": differ[0] if differ else None,
        "under_watchdog": {
            "end_us": [round(at, 1) for at in course.end_us],
            "losses": [round(loss, 6) for loss in course.losses],
            "crashes": [asdict(crash) for crash in course.crashes],
        },
    }


def _digests(words: Ints) -> list[str]:
    """Return the hashes (hexadecimal) that a rank recorded. The rank recorded each hash as four numbers."""
    table = words.reshape(-1, DIGEST_WORDS)
    return [row.tobytes().hex() for row in table]


FEWEST_MARKS = 3


def completed_mbps(logs: Mapping[str, EventLog], begin_ns: int, end_ns: int) -> float | None:
    """Return the goodput, Mbit/s, computed from the receivers' completions with begin <= t < end.

    Return None if there are fewer than FEWEST_MARKS completions, or if all have the same time.
    """
    events = [event for log in logs.values() for event in log.between("ReceiveCompleted", begin_ns, end_ns)]
    marks = [(event.t_ns, event.int_field("length_bytes") or 0) for event in events]
    return _rate_mbps(marks)


def captured_mbps(traces: Sequence[Trace], begin_ns: int, end_ns: int) -> float | None:
    """Return the goodput in the receivers' captures, with each packet counted once; see `completed_mbps`."""
    marks: list[tuple[int, int]] = []
    for trace in traces:
        received = trace.received
        counted = received.first & (received.t_ns >= begin_ns) & (received.t_ns < end_ns)
        t_ns: IntArray = received.t_ns[counted]
        marks += zip(t_ns.tolist(), received.payload[counted].tolist(), strict=True)
    return _rate_mbps(marks)


def _rate_mbps(marks: Iterable[tuple[int, int]]) -> float | None:
    found = np.array(sorted(marks), np.int64).reshape(-1, 2)
    if len(found) < FEWEST_MARKS or found[-1, 0] == found[0, 0]:
        return None
    return float(found[1:, 1].sum() * 8e3 / (found[-1, 0] - found[0, 0]))
