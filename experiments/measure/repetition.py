"""Compute the findings of a repetition from its evidence: metrics, series, trials, validity."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from mrclab.experiments.measure.events import (
    EventLog,
    detected,
    load_events,
    path_events,
    retirements_of_log,
    retirements_of_ranks,
    retires_paths,
    ways_between,
)
from mrclab.experiments.measure.evidence import Evidence, Sample
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.load import Load, in_trial, unnoticed_ns
from mrclab.experiments.measure.metrics import (
    BUS_FACTOR,
    Course,
    Metrics,
    Steps,
    account_of,
    captured_mbps,
    collective_metrics,
    completed_mbps,
    completion_metrics,
    course_under,
    delivered_series,
    flow_control_metrics,
    flow_metrics,
    flow_times,
    graph_metrics,
    late_messages,
    request_metrics,
    steps_of,
    training_metrics,
    transformer_metrics,
)
from mrclab.experiments.measure.pcap import flaws, read_pcap
from mrclab.experiments.measure.pictures import pictures_of
from mrclab.experiments.measure.program_output import missing_bytes, program_metrics
from mrclab.experiments.measure.recording import STEP_NS
from mrclab.experiments.measure.recovery import (
    BY_LATE_MESSAGES,
    FEW_MESSAGES,
    NO_RULE,
    NOT_CAPTURED,
    Measured,
    Span,
    Times,
    spans,
    times,
    times_of_messages,
    times_unknown,
)
from mrclab.experiments.measure.tcp import build_tcp_trace, read_segments
from mrclab.experiments.measure.trace import Trace, build_trace, ways_by_ev
from mrclab.experiments.measure.trial import Scene, trial_of, us
from mrclab.experiments.measure.validity import (
    Standstills,
    Validity,
    chosen_aside,
    judge,
    kept_up,
    overloads,
    standstills_of,
)
from mrclab.experiments.result.file import read_form, write_whole
from mrclab.experiments.spec.graph_workloads import FLOW_GRAPHS, GRAPHS
from mrclab.hosts.options import idle_rtt_ns, link_bps
from mrclab.hosts.transports.kinds import LOADED

OK = "ok"
REPETITION_FILE = "repetition.json"
SERIES_BEFORE_NS = 100_000_000
MOST_BINS = 100_000

STOOD_STILL = "everything stood still between the fault and the recovery"
# If one of these checks fails, the times are doubtful. The text is the reason in the report.
_SPOILING = {
    "fault_effective": "packets came through a link that was cut: the fault was none",
    "rtx_not_before_detected": "a retransmission was captured before its loss was detected: stamps disagree",
}


@dataclass(frozen=True)
class Repetition:
    """The measured values of one repetition. The object can be pickled.

    ``trials`` has an entry, as in result.json, for each fault that counts. ``trials_aside`` has the trials in
    which the machine was too slow. ``problem`` is an error in the data. ``failure`` is the reason why the
    repetition failed. ``interrupted`` is the reason why the run was ended during the repetition.
    ``set_aside`` has the ``metrics`` of an earlier attempt, and the ``reasons`` why these metrics do not
    count.
    """

    number: int
    measure_ns: int
    end_ns: int
    metrics: Metrics
    series: Mapping[str, Any]
    links: Mapping[str, Any]
    faults: tuple[FaultRecord, ...]
    trials: tuple[Mapping[str, Any], ...]
    trials_aside: tuple[Mapping[str, Any], ...]
    validity: Validity
    problem: str | None
    failure: str | None
    counters: Mapping[str, int]
    bytes_delivered: int
    data: str | None
    details: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, Any] = field(default_factory=dict)
    """Data for plots: packets of one recovery, paths in use, distributions."""
    path_events: Mapping[str, Any] = field(default_factory=dict)
    """Lost packets, and EVs retired, replaced, restored and skipped (`mrclab.experiments.measure.events`)."""
    flow_control: Mapping[str, Any] = field(default_factory=dict)
    """The data about lossless links; empty if links drop."""
    set_aside: tuple[Mapping[str, Any], ...] = ()
    interrupted: str | None = None


def measure(evidence: Evidence) -> Repetition:
    """Measure a repetition. Raise InputError if one of its files is missing or malformed."""
    e = evidence
    traces, broken_captures = _traces(e)
    logs = {host: load_events(path) for host, path in e.event_logs.items()}
    scenes = _scenes(e, traces, logs) if _timed(e) else []
    loads = e.loads or (e.recording.loads if e.recording is not None else ())
    if len(loads) == len(scenes):
        loads = tuple(
            in_trial(load, scene.fault, scene.times.recovered.ns)
            for load, scene in zip(loads, scenes, strict=True)
        )
    e = replace(e, problem=e.problem or missing_bytes(e, traces))
    aside = _aside(e, loads)
    still = _standstills(e, traces)
    stood = _stood_still(still, scenes, aside)
    aside = sorted({*aside, *chosen_aside(stood, len(scenes) - len(aside))})
    trials = [
        {**trial_of(scene, e.problem or OK), **_place(e, number, scene)}
        for number, scene in enumerate(scenes)
    ]
    if len(loads) == len(trials):
        for trial, load, scene in zip(trials, loads, scenes, strict=True):
            trial["packets_per_s"] = load.packets_per_s
            trial["unnoticed_us"] = us(unnoticed_ns(load, scene.times.recovered.ns))
    for number, longest_ns in stood.items():
        trials[number]["standstill_us"] = longest_ns / 1e3
        if number in aside:
            trials[number]["set_aside_because"] = f"{STOOD_STILL} for {longest_ns / 1e6:.3g} ms"
    training = _training(e)
    metrics = _metrics(e, training, logs, traces) | flow_control_metrics(e.flow_control)
    for trial, gap in zip(trials, metrics.get("gap_us", ()), strict=False):
        trial["gap_us"] = gap
    pictures: Mapping[str, Any] = {}
    if len(traces) == 1 and traces[0].paths_known and logs:
        counted = {n: scene for n, scene in enumerate(scenes) if n not in aside}
        log = logs.get(traces[0].paths[0].src, EventLog(()))
        pictures = pictures_of(traces[0], counted, log)
    return Repetition(
        number=e.number,
        measure_ns=e.measure_ns,
        end_ns=e.end_ns,
        metrics=metrics,
        series=_series(e, traces),
        links=e.links or {"start_us": 0.0, "bin_us": 0.0, "bytes": {}},
        faults=e.faults,
        trials=tuple(trial for n, trial in enumerate(trials) if n not in aside),
        trials_aside=tuple(trials[n] for n in aside if n >= e.rehearsals),
        validity=_validity(e, loads, aside, trials, broken_captures, still),
        problem=e.problem,
        failure=e.failure,
        counters=e.counters,
        bytes_delivered=e.bytes_delivered,
        data=e.data,
        details={
            **_details(e, training, trials[: e.rehearsals]),
            **({"standstills": still.to_dict(e.measure_ns)} if still is not None else {}),
        },
        pictures=pictures,
        path_events=path_events(e, logs),
        flow_control=e.flow_control,
        interrupted=e.interrupted,
    )


def _timed(e: Evidence) -> bool:
    """Return True if the run measures times. Other runs check only the integrity of their data."""
    return bool(e.captures or e.samples or e.wanted is not None)


def _pairs(e: Evidence) -> list[tuple[str, str]]:
    """Return the pairs of hosts that send to each other over the fabric, each pair once."""
    pairs = dict.fromkeys((e.hosts[a], e.hosts[b]) for a, b in e.pairs)
    return [(a, b) for a, b in pairs if a != b]


def _traces(e: Evidence) -> tuple[tuple[Trace, ...], list[str]]:
    """Return a trace for each pair of hosts, and a list of the captures' errors."""
    if e.transport.routing in LOADED:  # switches choose by load, so paths are unknown
        return (), []
    if not e.captures or e.recording is None or not e.transport.core.trace:
        return (), []
    clock, fabric = e.recording.clock, e.fabric
    used = {host for pair in _pairs(e) for host in pair}
    paths = {host: path for host, path in e.captures.items() if host in used}
    wrong = [f"the capture at {host} is not as it was written" for host in e.recording.changed(paths)]
    if e.transport.core.trace == "tcp":
        segments = {host: read_segments(path) for host, path in paths.items()}
        return tuple(
            build_tcp_trace(segments[a].rows, segments[b].rows, fabric.paths(a, b), clock, fabric)
            for a, b in _pairs(e)
            if a in segments and b in segments
        ), [*wrong, *flaws(segments)]
    packets = {host: read_pcap(path) for host, path in paths.items()}
    wrong += flaws(packets)
    by_ev = e.transport.core.sprays and e.transport.routing != "srv6"
    return tuple(
        build_trace(
            packets[a],
            packets[b],
            ways_by_ev(fabric, a, b, packets[a], e.transport.routing) if by_ev else fabric.paths(a, b),
            clock,
            fabric,
            by_ev=by_ev,
        )
        for a, b in _pairs(e)
        if a in packets and b in packets
    ), wrong


def _scenes(e: Evidence, traces: tuple[Trace, ...], logs: Mapping[str, EventLog]) -> list[Scene]:
    """Return a scene for each fault: the fault with all its evidence."""
    stamps = [trace.span_ns for trace in traces if trace.span_ns != (0, 0)]
    first = min((begin for begin, _ in stamps), default=e.measure_ns - e.warmup_ns)
    last = max((end for _, end in stamps), default=e.end_ns)
    retired = {host: retirements_of_log(log) for host, log in logs.items()}
    retired |= retirements_of_ranks(e.hosts, e.samples)
    found = []
    ways = dict(ways_between(e.fabric, _pairs(e), e.transport.routing))
    ways |= {(trace.paths[0].src, trace.paths[0].dst): trace.paths for trace in traces if trace.paths}
    for fault, span in zip(e.faults, spans(e.faults, first, last, e.in_flight_ns), strict=True):
        seen = detected(e.transport, ways, retired, e.route_changes, fault, span)
        if traces:
            known = retired if retires_paths(e.transport) else None
            result = times(traces, fault, span, seen, known)
        else:
            rule = BY_LATE_MESSAGES if e.captures else NOT_CAPTURED
            result = _by_messages(e, fault, span, seen, rule)
        found.append(Scene(traces, fault, span, result, logs))
    return found


def _by_messages(e: Evidence, fault: FaultRecord, span: Span, seen: Measured, rule: str) -> Times:
    """Return the times of a fault, computed from the application's late messages."""
    if not e.flow_bytes or not e.samples:
        return times_unknown(NO_RULE, seen)
    first: list[int] = []
    last: list[int] = []
    missing, unknown, stop_ns = 0, False, max(span.end, span.repair_after)
    for number in range(len(e.flow_bytes)):
        posted, arrived = flow_times(e.pairs[number], number, e.samples)
        if (found := late_messages(posted, arrived, fault.middle_ns, stop_ns)) is None:
            unknown = True
        elif len(found[0]):
            missing += found[1]
            first.append(int(posted[found[0]].min()))
            last.append(int(arrived[found[0]].max()))
    if unknown and not first:
        return times_unknown(rule, seen, FEW_MESSAGES)
    interval = (min(first), max(last)) if first else None
    return times_of_messages(rule, interval, missing, fault, seen)


def _aside(e: Evidence, loads: Sequence[Load]) -> list[int]:
    """Return the faults that do not count: rehearsals, and faults during which the machine was too slow.

    If fewer faults would be left than the scenario asks for, faults on a slow machine count, too. If the
    repetition was interrupted, the last fault does not count, because it had not ended.
    """
    if e.wanted is None or not e.faults:
        return []
    rehearsed, last = list(range(e.rehearsals)), len(e.faults) - 1
    if len(loads) != len(e.faults):
        return rehearsed if e.interrupted is None else sorted({*rehearsed, last})
    over = sorted({*rehearsed, *(i for i, load in enumerate(loads) if not kept_up(load))})
    if e.interrupted is not None:
        return over if last in over else [*over, last]
    return over if len(loads) - len(over) >= e.wanted else rehearsed


def _standstills(e: Evidence, traces: Sequence[Trace]) -> Standstills | None:
    """Return the standstills of a live stream; None for other workloads and in virtual time."""
    live = e.recording is not None and bool(e.recording.offsets)
    return standstills_of(traces) if live and traces and e.wanted is not None else None


def _stood_still(still: Standstills | None, scenes: Sequence[Scene], aside: Sequence[int]) -> dict[int, int]:
    """Return the longest standstill (ns) between the fault and the recovery, by the trial's number.

    A trial without such a standstill has no entry. Trials that are set aside have no entries either.
    """
    found = {}
    for number, scene in enumerate(scenes):
        recovered = scene.times.recovered.ns
        if still is None or number in aside or recovered is None:
            continue
        begin_ns = scene.fault.middle_ns
        if longest_ns := still.longest_between_ns(begin_ns, begin_ns + recovered):
            found[number] = longest_ns
    return found


def _place(e: Evidence, number: int, scene: Scene) -> dict[str, Any]:
    """Return the fields that identify a trial: transport, repetition, number and fault."""
    fault = scene.fault
    at_us = round((fault.middle_ns - e.measure_ns) / 1e3, 3)
    return {
        "transport": e.transport.name,
        "repetition": e.number,
        "trial": number,
        "fault": {**fault.to_dict(), "at_us": at_us},
    }


def _metrics(
    e: Evidence,
    training: tuple[Steps, Course] | None,
    logs: Mapping[str, EventLog],
    traces: Sequence[Trace],
) -> Metrics:
    """Return the metrics of a repetition's workload. The only metric of agents is the goodput."""
    kind = str(e.workload.get("kind", ""))
    if kind == "program":
        mbps = captured_mbps(traces, e.measure_ns, e.end_ns)
        return program_metrics(e.details, None if mbps is None else [mbps])
    if not e.samples:
        mbps = completed_mbps(logs, e.measure_ns, e.end_ns) or captured_mbps(traces, e.measure_ns, e.end_ns)
        return {} if mbps is None else {"goodput_mbps": [mbps]}
    if kind in BUS_FACTOR:
        return collective_metrics(kind, _finished(e.samples, "bytes", "start_ns", "end_ns"))
    if kind == "training":
        keys = ("start_ns", "computed_ns", "reduced_ns", "end_ns")
        return training_metrics(_finished(e.samples, *keys), int(e.workload["compute_ns"]))
    if kind in GRAPHS:
        steps = _finished(e.samples, "start_ns", "end_ns", "compute_ns", "job")
        found = graph_metrics(steps, tuple(e.workload.get("jobs", ())))
        if kind in FLOW_GRAPHS:
            host = e.hosts[0]
            rate_bps, rtt_ns = link_bps(e.fabric, host), idle_rtt_ns(e.fabric, host)
            found = completion_metrics(e.samples, rate_bps, rtt_ns) | {"end_us": found.get("step_us", [])}
        return found
    if training is not None:
        return transformer_metrics(*training)
    if kind == "request-response":
        return request_metrics(e.samples, e.measure_ns)
    end_ns = e.measure_ns + e.length_ns if e.length_ns is not None else e.end_ns
    middles = [fault.middle_ns for fault in e.faults]
    return flow_metrics(e.pairs, e.flow_bytes, e.samples, e.measure_ns, end_ns, middles)


def _training(e: Evidence) -> tuple[Steps, Course] | None:
    """Return a training's steps and its `course_under` the collective timeout; None for other workloads."""
    if e.workload.get("kind") != "transformer" or not e.samples:
        return None
    steps = steps_of(e.samples, e.measure_ns)
    timeout_us, restart_us = (e.workload[name] / 1e3 for name in ("collective_timeout_ns", "restart_ns"))
    return steps, course_under(
        steps,
        timeout_us,
        e.workload["checkpoint_steps"],
        restart_us,
        failed=e.failure is not None,
    )


def _details(
    e: Evidence, training: tuple[Steps, Course] | None, rehearsals: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return the driver's details with a training's steps or the rehearsals (trials that do not count)."""
    if training is None:
        return {**e.details, "rehearsals": list(rehearsals)} if rehearsals else e.details
    alone = e.details.get("digests_alone", ())
    rest = {name: value for name, value in e.details.items() if name != "digests_alone"}
    return {**rest, "training": account_of(*training, e.samples, alone, e.workload)}


def _finished(samples: Sequence[Sample], *names: str) -> list[Sample]:
    """Return the operations that all ranks have finished."""
    count = min(len(rank[names[0]]) for rank in samples)
    return [{name: rank[name][:count] for name in names} for rank in samples]


def _series(e: Evidence, traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the delivered bytes over time, from the ranks' series or from the captures."""
    begin_ns = e.measure_ns - min(e.warmup_ns, SERIES_BEFORE_NS)
    width = max(e.series_ns, -(-(e.end_ns - begin_ns) // MOST_BINS))
    if e.samples or not traces:
        return delivered_series(e.samples, e.measure_ns, begin_ns, e.end_ns, width)
    edges = np.arange(begin_ns, max(e.end_ns, begin_ns + width) + 1, width)
    delivered, lost = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1, np.int64)
    for trace in traces:
        first = trace.received.first
        weights = trace.received.payload[first].astype(np.float64)
        delivered += np.histogram(trace.received.t_ns[first], edges, weights=weights)[0]
        lost += np.histogram(trace.sent.t_ns[trace.sent.lost], edges)[0]
    return {
        "start_us": (begin_ns - e.measure_ns) / 1e3,
        "bin_us": width / 1e3,
        "bytes": delivered.astype(int).tolist(),
        "lost": lost.tolist(),
    }


def _validity(
    e: Evidence,
    loads: Sequence[Load],
    aside: Sequence[int],
    trials: Sequence[Mapping[str, Any]],
    broken_captures: Sequence[str],
    still: Standstills | None,
) -> Validity:
    also, notes = [*e.failures, *broken_captures], list(e.notes)
    if still is not None and still.words():
        notes.append(still.words())
    stood = [number for number, trial in enumerate(trials) if trial.get("standstill_us")]
    if stood:
        longest = max(trials[number]["standstill_us"] for number in stood) / 1e3
        line = f"in {len(stood)} of {len(trials)} trials {STOOD_STILL}, for {longest:.3g} ms at most"
        gone = set(stood) <= set(aside)
        (notes if gone else also).append(f"{line}; they are set aside" if gone else line)
    if e.wanted and not e.faults:
        also.append("no fault was made")
    for check, text in _SPOILING.items():
        failed = sum(c["ok"] is False for trial in trials for c in trial["checks"] if c["name"] == check)
        if failed:
            also.append(f"in {failed} of {len(trials)} trials {text}")
    if e.wanted and trials and all(trial["felt"] is False for trial in trials):
        also.append("no fault took a packet")
    if e.interrupted is not None:
        of_how_many = f" after {len(trials) - len(aside)} of {e.wanted} trials" if e.wanted else ""
        also.insert(0, f"the run was ended{of_how_many}: {e.interrupted}")
    overloaded = [i for i in aside if e.rehearsals <= i < len(loads) and not kept_up(loads[i])]
    if overloaded:
        why = "; ".join(overloads([loads[i] for i in overloaded]))
        made = len(trials) - e.rehearsals
        again = [rate for load in loads[-len(overloaded) :] if (rate := load.packets_per_s) is not None]
        at = f" at {median(again):,.0f} packets/s" if again else ""
        notes.append(f"{len(overloaded)} of {made} trials were set aside and made again{at}: {why}")
    if e.failure:
        notes.append(f"repetition {e.number} did not end: {e.failure}")
    unnoticed = [t["unnoticed_us"] for i, t in enumerate(trials) if i not in aside and t.get("unnoticed_us")]
    if unnoticed:
        notes.append(
            f"a time may be {median(unnoticed) / 1e3:.2g} ms too long by a stop that nobody noticed, "
            "more than its own error says"
        )
    kept = [load for i, load in enumerate(loads) if i not in aside]
    if not _timed(e):  # Times do not matter here: the run only checks that every byte arrived.
        notes += [f"{line}; times are not measured here" for line in overloads(kept)]
        return Validity(tuple(also), tuple(kept), tuple(notes))
    if e.recording is None:
        return judge(kept, also=also, notes=notes)
    return judge(
        kept,
        capture_drops=e.recording.drops,
        clock_change_ns=e.recording.clock.max_change_ns if e.recording.offsets else 0,
        clock_limit_ns=STEP_NS,
        also=also,
        notes=notes,
    )


_FORM = TypeAdapter(Repetition)


def save_repetition(directory: Path, repetition: Repetition) -> Path:
    """Write repetition.json, completely or not at all, and return its path."""
    text = json.dumps(asdict(repetition), default=float) + "\n"
    return write_whole(directory / REPETITION_FILE, text)


def load_repetition(directory: Path) -> Repetition:
    """Read repetition.json. Raise InputError if it is missing or malformed."""
    missing = f"no repetition in '{directory}'"
    return read_form(_FORM, directory / REPETITION_FILE, "repetition", missing)
