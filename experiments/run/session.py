"""One transport of a comparison on a fabric that is up: its repetitions, and what came out of each."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from controller.fault_kinds import Fault
from experiments.measure.faults import FaultRecord
from experiments.measure.metrics import (
    Metrics,
    RankSamples,
    collective_metrics,
    delivered_series,
    flow_metrics,
    request_metrics,
    training_metrics,
)
from experiments.measure.noticed import Noticed, noticed
from experiments.measure.validity import Load, Validity, judge, load_between, take_snapshot, taken_away
from experiments.run.fabrics import RunningFabric
from experiments.run.injection import Injector
from experiments.run.link_meter import LinkMeter, metered
from experiments.run.recorder import Recorder, ear_at
from experiments.run.routing import Reaction
from experiments.run.traffic import busiest_link, bytes_sent
from experiments.spec.comparison import Comparison
from experiments.spec.fault_schedule import schedule
from experiments.spec.one_plane import specs_in_one_plane
from experiments.spec.placement import Placement, place
from experiments.spec.transports import Transport
from experiments.spec.workloads import COLLECTIVES
from hosts.remote import AgentError, RemoteAgent
from linux.scheduling import before_others
from topologies import Fabric, fabric_text, one_plane

LEAD_NS = 200_000_000  # from the command to begin to the beginning: all ranks must have got it
OPEN_TIMEOUT_S = 60.0
DRAIN_S = 5.0
BUSIEST_NS = 200_000_000  # before the measurement, of which half is looked at
SERIES_BEFORE_NS = 100_000_000
MOST_LATE_NS = 50_000_000  # of a fault: a run with one that came later is not the one that was asked for


@dataclass(frozen=True)
class Repetition:
    """What one repetition found.

    ``problem`` is what was wrong with the data, ``failure`` why it did not come to its end. ``set_aside`` has
    what an attempt before this one found (``metrics``) and why that does not count (``reasons``).
    """

    number: int
    metrics: Metrics
    series: Mapping[str, Any]
    links: Mapping[str, Any]
    faults: tuple[FaultRecord, ...]
    fault_params: tuple[Mapping[str, Any], ...]
    noticed: tuple[Noticed, ...]
    measure_ns: int
    end_ns: int
    problem: str | None
    failure: str | None
    counters: Mapping[str, int]
    bytes_delivered: int
    validity: Validity
    data: str
    set_aside: tuple[Mapping[str, Any], ...] = ()


def disturbed(repetition: Repetition) -> bool:
    """Whether nothing but others' use of the CPUs speaks against a repetition's figures, and that does."""
    ended = repetition.problem is None and repetition.failure is None
    return ended and any(taken_away(load) for load in repetition.validity.loads)


def in_place_of(first: Repetition, second: Repetition) -> Repetition:
    """The second attempt at a repetition, which tells what the first one found and why it does not count."""
    aside = {"reasons": first.validity.reasons, "metrics": first.metrics}
    note = f"repetition {first.number} was made again: {'; '.join(first.validity.reasons)}"
    validity = replace(second.validity, notes=(*second.validity.notes, note))
    return replace(second, validity=validity, set_aside=(aside,))


def fabric_for(comparison: Comparison, transport: Transport) -> Fabric:
    """The fabric that a transport runs on."""
    fabric = comparison.fabric()
    return one_plane(fabric) if transport.one_plane else fabric


class Session:
    """Runs repetitions of one transport over a lab that is up."""

    def __init__(self, lab: RunningFabric, comparison: Comparison, transport: Transport, out: Path) -> None:
        self._lab = lab
        self._comparison = comparison
        self._transport = transport
        self._out = out
        faults = comparison.faults
        self._faults = specs_in_one_plane(faults) if transport.one_plane else faults

    def run(self, number: int) -> Repetition:
        """Runs one repetition: ranks of its own, the faults of its own seed, all undone at the end."""
        comparison, lab = self._comparison, self._lab
        seed = comparison.seed + number
        placement = place(comparison.workload, comparison.workload_params, lab.fabric, seed)
        logs = self._out / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(open(logs / f"{self._transport.name}-ranks.log", "ab"))
            processes = [
                stack.enter_context(
                    RemoteAgent(
                        host, partial(lab.network.spawn, host), stderr=log, module="hosts.collectives.rank"
                    )
                )
                for host in placement.ranks_by_host()
            ]
            self._open(processes, placement, seed)
            recorder = self._recorder(placement, number)
            with self._lossy_links(), recorder or contextlib.nullcontext():
                found = self._measure(processes, placement, number, seed)
        if recorder is None:
            return found
        drops = judge([], capture_drops=recorder.recording.drops).reasons
        return replace(found, validity=replace(found.validity, reasons=(*found.validity.reasons, *drops)))

    def _recorder(self, placement: Placement, number: int) -> Recorder | None:
        """Captures at every host that takes part, where the scenario asks for them."""
        if not self._comparison.capture:
            return None
        ears = {host: ear_at(self._lab.network, host) for host in dict.fromkeys(placement.hosts)}
        return Recorder(self._out / "captures" / self._data_name(number), ears)

    @contextlib.contextmanager
    def _lossy_links(self) -> Iterator[None]:
        """Has every NIC lose a share of what it gets, where the transport is to be tried so."""
        faults, made = self._lab.faults, []
        links = [link.name for link in self._lab.fabric.links if link.kind == "host"]
        try:
            for name in links if self._transport.loss else ():
                faults.apply(Fault("loss", name, "down", self._transport.loss))
                made.append(name)
            yield
        finally:
            for name in made:
                faults.undo(name)

    def _open(self, processes: Sequence[RemoteAgent], placement: Placement, seed: int) -> None:
        text = fabric_text(self._lab.fabric)
        cpus = sorted(os.sched_getaffinity(0))
        here = placement.ranks_by_host()
        for number, process in enumerate(processes):
            process.send(
                "open",
                topology=self._lab.fabric.name,
                topology_yaml=text,
                host=process.host,
                ranks_here=here[process.host],
                ranks=len(placement.hosts),
                transport={
                    "kind": self._transport.kind,
                    "options": self._transport.channel_options,
                    "propagation_ns": self._comparison.propagation_ns,
                },
                job={"kind": placement.job, "params": dict(placement.params)},
                seed=seed,
                series_ns=self._comparison.series_ns,
                cpu=cpus[number % len(cpus)] if len(cpus) > 1 else None,
                alone=len(processes) <= len(cpus),
            )
        connect(processes, OPEN_TIMEOUT_S)

    def _measure(
        self, processes: Sequence[RemoteAgent], placement: Placement, number: int, seed: int
    ) -> Repetition:
        comparison = self._comparison
        start_ns = time.monotonic_ns() + LEAD_NS
        measure_ns = start_ns + comparison.warmup_ns
        length_ns = placement.length_ns or comparison.limit_ns
        here = list(placement.ranks_by_host().values())
        used = placement.links_used(self._lab.fabric)
        planned = schedule(self._faults, self._lab.fabric, seed, length_ns, tuple(used))
        reaction = Reaction(self._lab, self._transport, seed)
        injector = Injector(self._lab, planned, measure_ns, reaction.note)
        pids = {_ranks_text(ranks): p.pid for p, ranks in zip(processes, here, strict=True)}
        meter = LinkMeter(
            self._lab.fabric,
            metered(self._lab.fabric, comparison.links),
            partial(bytes_sent, self._lab.network),
            measure_ns,
        )
        injector.prepare()
        times = start_ns, measure_ns
        # Ranks may take whole CPUs, before everybody else: faults would have to wait until they are done.
        with before_others():
            ended, load, end_ns = self._carry_out(processes, injector, reaction, meter, times, used, pids)
        problem, failure = self._finish(processes, ended)
        samples, counters = self._collect(processes, here, number)
        records = tuple(injector.records())
        metrics = metrics_of(comparison, placement, samples, measure_ns, records)
        changes = reaction.changes()
        found = noticed(
            self._transport,
            self._lab.fabric,
            placement.hosts,
            placement.pairs,
            samples,
            changes,
            records,
            end_ns,
        )
        metrics |= noticed_metrics(found)
        begin_ns = measure_ns - min(comparison.warmup_ns, SERIES_BEFORE_NS)
        return Repetition(
            number=number,
            metrics=metrics,
            series=delivered_series(samples, measure_ns, begin_ns, end_ns, comparison.series_ns),
            links=meter.series(measure_ns),
            faults=records,
            fault_params=tuple(fault.params for fault in planned[: len(records)]),
            noticed=found,
            measure_ns=measure_ns,
            end_ns=end_ns,
            problem=problem,
            failure=failure,
            counters=counters,
            bytes_delivered=sum(int(r["series_bytes"][-1]) if len(r["series_bytes"]) else 0 for r in samples),
            validity=self._judge(load, injector.late_ns, counters, len(processes)),
            data=f"data/{self._data_name(number)}.npz",
        )

    def _carry_out(
        self,
        processes: Sequence[RemoteAgent],
        injector: Injector,
        reaction: Reaction,
        meter: LinkMeter,
        times: tuple[int, int],
        used: Collection[str],
        pids: Mapping[str, int],
    ) -> tuple[dict[int, Mapping[str, Any]], Load, int]:
        """Has the ranks begin, makes the faults and undoes them; returns who ended how, the load from the
        measurement's start to its end, and that end."""
        start_ns, measure_ns = times
        for process in processes:
            process.send("run", start_ns=start_ns, measure_ns=measure_ns)
        self._find_busiest(injector, used, measure_ns)
        _until(measure_ns)
        before = take_snapshot(pids)
        try:
            ended = self._watch(processes, injector, reaction, meter, measure_ns)
        finally:
            end_ns = time.monotonic_ns()
            load = load_between(before, take_snapshot(pids))
            injector.undo_all()
            reaction.undo_all()
        return ended, load, end_ns

    def _find_busiest(self, injector: Injector, used: Collection[str], measure_ns: int) -> None:
        """Looks which link carries most at the end of the warm-up, where a fault wants to know."""
        if not injector.asks_for_the_busiest:
            return
        _until(measure_ns - BUSIEST_NS)
        before = bytes_sent(self._lab.network)
        _until(measure_ns - BUSIEST_NS // 2)
        after = bytes_sent(self._lab.network)
        injector.resolve(busiest_link(self._lab.fabric, before, after, used))

    def _judge(self, load: Load, late_ns: int, counters: Mapping[str, int], processes: int) -> Validity:
        also, notes = [], []
        if counters.get("socket_drops"):
            also.append(f"ranks were too slow to read: {counters['socket_drops']} frames lost at sockets")
        if late_ns > MOST_LATE_NS:
            also.append(f"a fault was made or mended {late_ns / 1e6:.0f} ms after it was due")
        cpus = len(os.sched_getaffinity(0))
        if processes > cpus and load.wait is not None:
            # They are bound to wait for one another. What they get done is limited once no CPU is ever idle.
            notes.append(
                f"{processes} hosts share {cpus} CPUs: one waited {load.wait:.0%} of its time for one"
            )
            load = replace(load, wait=None)
        return judge([load], also=also, notes=notes)

    def _watch(
        self,
        processes: Sequence[RemoteAgent],
        injector: Injector,
        reaction: Reaction,
        meter: LinkMeter,
        measure_ns: int,
    ) -> dict[int, Mapping[str, Any]]:
        """Makes faults when they are due until all ranks are done, one has a problem, or time is up."""
        deadline = measure_ns + self._comparison.limit_ns
        ended: dict[int, Mapping[str, Any]] = {}
        left = dict(enumerate(processes))
        while left:
            now = time.monotonic_ns()
            dues = (injector.next_ns, reaction.next_ns, meter.next_ns, deadline)
            due = min(t for t in dues if t is not None)
            waiting: list[RemoteAgent | int] = [*left.values(), *reaction.descriptors()]
            ready, _, _ = select.select(waiting, [], [], max(0, due - now) / 1e9)
            injector.act(time.monotonic_ns)
            reaction.act(time.monotonic_ns())
            meter.act(time.monotonic_ns)
            for number, process in list(left.items()):
                if process in ready:
                    ended[number] = process.receive()
                    del left[number]
                    if ended[number]["problem"] is not None or ended[number]["failure"] is not None:
                        return ended
            if time.monotonic_ns() >= deadline:
                return ended
        return ended

    def _finish(
        self, processes: Sequence[RemoteAgent], ended: dict[int, Mapping[str, Any]]
    ) -> tuple[str | None, str | None]:
        """Stops what is not over; returns what was wrong with the data, and why it did not end."""
        answers = list(ended.values())
        for number, process in enumerate(processes):
            if number in ended:
                continue
            process.send("stop")
            answers.append(process.receive())
            if "stopped" not in answers[-1]:  # it came to its end just now, and answered that first
                process.receive()
        problems = [answer["problem"] for answer in answers if answer.get("problem") is not None]
        failures = [answer["failure"] for answer in answers if answer.get("failure") is not None]
        return problems[0] if problems else None, failures[0] if failures else None

    def _data_name(self, number: int) -> str:
        return f"{self._transport.name}-{number}"

    def _collect(
        self, processes: Sequence[RemoteAgent], here: Sequence[Sequence[int]], number: int
    ) -> tuple[list[Mapping[str, Any]], dict[str, int]]:
        """All ranks' samples, from one file for each repetition, and the sum of their counters."""
        data = self._out / "data"
        data.mkdir(exist_ok=True)
        parts = {r: data / f".{self._data_name(number)}-rank{r}.npz" for ranks in here for r in ranks}
        logs = (self._out / "logs").resolve()
        for process, ranks in zip(processes, here, strict=True):
            process.send(
                "save",
                paths=[str(parts[r].resolve()) for r in ranks],
                logs=[str(logs / f"{self._data_name(number)}-rank{r}.jsonl") for r in ranks],
            )
        counters: dict[str, int] = {}
        for process in processes:
            for name, count in process.receive(OPEN_TIMEOUT_S)["counters"].items():
                counters[name] = counters.get(name, 0) + count
        samples: list[Mapping[str, Any]] = []
        for part in (parts[r] for r in sorted(parts)):
            with np.load(part) as arrays:
                samples.append(dict(arrays))
            part.unlink()
        merged = {
            f"rank{i}_{name}": values for i, part in enumerate(samples) for name, values in part.items()
        }
        np.savez_compressed(data / f"{self._data_name(number)}.npz", **merged)
        return samples, counters


def connect(processes: Sequence[RemoteAgent], timeout_s: float) -> None:
    """Hears what each rank's peers must know, once all were told to open, and tells it to them.

    Raises AgentError where one does not answer.
    """
    heard = [process.receive(timeout_s)["attributes"] for process in processes]
    told: dict[str, Mapping[str, Any]] = {rank: peers for each in heard for rank, peers in each.items()}
    for process, ranks in zip(processes, heard, strict=True):
        theirs = {rank: {peer: told[peer][rank] for peer in told[rank]} for rank in ranks}
        process.send("connect", attributes=theirs)
    for process in processes:
        process.receive(timeout_s)


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def metrics_of(
    comparison: Comparison,
    placement: Placement,
    samples: RankSamples,
    measure_ns: int,
    faults: Sequence[FaultRecord],
) -> Metrics:
    """The metrics of a repetition, by its workload."""
    if comparison.workload in COLLECTIVES:
        return collective_metrics(comparison.workload, _cut(samples, "bytes", "start_ns", "end_ns"))
    if comparison.workload == "training":
        keys = ("start_ns", "computed_ns", "reduced_ns", "end_ns")
        return training_metrics(_cut(samples, *keys), comparison.workload_params["compute_ns"])
    if comparison.workload == "request-response":
        return request_metrics(samples, measure_ns)
    sizes = [flow["message_bytes"] for flow in placement.params["flows"]]
    end_ns = measure_ns + (placement.length_ns or 0)
    times = [fault.middle_ns for fault in faults]
    return flow_metrics(placement.pairs, sizes, samples, measure_ns, end_ns, times)


def noticed_metrics(found: Sequence[Noticed]) -> Metrics:
    """The times that there are, of those of a repetition's faults."""
    times = {
        "detect_us": [n.detect_ns / 1e3 for n in found if n.detect_ns is not None],
        "switch_us": [n.switch_ns / 1e3 for n in found if n.switch_ns is not None],
    }
    return {name: values for name, values in times.items() if values}


def _cut(samples: RankSamples, *names: str) -> RankSamples:
    """Only as many operations as every rank has finished."""
    count = min(len(rank[names[0]]) for rank in samples)
    return [{name: rank[name][:count] for name in names} for rank in samples]


def _until(time_ns: int) -> None:
    """The scenario's time; nothing is being waited for."""
    time.sleep(max(0, time_ns - time.monotonic_ns()) / 1e9)


def repetition_dict(repetition: Repetition) -> dict[str, Any]:
    """As it goes from a session's process to the runner, in JSON's types."""
    out = {
        key: value for key, value in vars(repetition).items() if key not in ("validity", "faults", "noticed")
    }
    out["fault_params"] = [dict(params) for params in repetition.fault_params]
    out["faults"] = [asdict(fault) for fault in repetition.faults]
    out["noticed"] = [found.to_dict() for found in repetition.noticed]
    out["validity"] = repetition.validity.to_dict()
    return out


__all__ = [
    "AgentError",
    "Repetition",
    "Session",
    "disturbed",
    "fabric_for",
    "in_place_of",
    "metrics_of",
    "repetition_dict",
]
