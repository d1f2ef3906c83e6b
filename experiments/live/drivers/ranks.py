"""The driver of rank processes, which run all workloads except sprays, meshes and programs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from mrclab.experiments.live.drivers.driver import Setting, Steady
from mrclab.experiments.measure.evidence import Collected, Sample
from mrclab.experiments.measure.load import Beats
from mrclab.experiments.run.training import STEPS, TRANSFORMER, training_alone
from mrclab.experiments.spec.fault_schedule import denylists, faults_met
from mrclab.experiments.spec.placement import Placement
from mrclab.hosts.training.accelerator import LONGEST_START_S
from mrclab.hosts.worker import RemoteAgent
from mrclab.linux.scheduling import before_others, comes_first
from mrclab.p4src.targets import capabilities_of
from mrclab.topologies import fabric_text

LEAD_NS = 200_000_000  # from the command until the ranks start: enough time for all to get the command
OPEN_TIMEOUT_S = 60.0
"""How long to wait for an answer, s, if no rank waits for an accelerator."""


class RankDriver(Steady):
    """The driver of rank processes: one process for all ranks of a host."""

    next_ns: int | None = None
    over = False

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._here = setting.placement.ranks_by_host()
        self._stack = contextlib.ExitStack()
        self._processes: list[RemoteAgent] = []
        self._ended: dict[int, Mapping[str, Any]] = {}
        self.processes = len(self._here)
        self.pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            log = self._stack.enter_context(self._setting.log.open("ab"))
            network = self._setting.running.network
            for host in self._here:
                module = "mrclab.hosts.collectives.rank"
                process = RemoteAgent(host, partial(network.spawn, host), stderr=log, module=module)
                self._processes.append(self._stack.enter_context(process))
            self._open()
        except BaseException:
            self._stack.close()
            raise
        ranks = self._here.values()
        self.pids = {_ranks_text(r): p.pid for p, r in zip(self._processes, ranks, strict=True)}
        self._first = self._come_first()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def beats(self) -> Beats | None:
        """Return which processes share a CPU, and whether other programs can take a CPU from the ranks."""
        cpus = sorted(os.sched_getaffinity(0))
        places = {name: cpus[number % len(cpus)] for number, name in enumerate(self.pids)}
        return Beats(0, first=self._first, cpus=places)

    def _come_first(self) -> bool:
        """Return True if other programs can take a CPU neither from the ranks nor from forwarding."""
        kernel = capabilities_of(self._setting.running.target_name).forwards_in_kernel
        return kernel and all(comes_first(pid) for pid in self.pids.values())

    def priority(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this process, which makes the faults, has a higher priority.

        Otherwise busy ranks would delay the faults.
        """
        return before_others()

    def _open(self) -> None:
        setting = self._setting
        text = fabric_text(setting.running.fabric)
        cpus = sorted(os.sched_getaffinity(0))
        for number, process in enumerate(self._processes):
            process.send(
                "open",
                topology_yaml=text,
                host=process.host,
                ranks_here=self._here[process.host],
                ranks=len(setting.placement.hosts),
                transport={
                    "kind": setting.transport.kind,
                    "options": setting.transport.channel_options,
                    "propagation_ns": setting.scenario.propagation_ns,
                },
                job={"kind": setting.placement.job, "params": self._params()},
                seed=setting.seed,
                series_ns=setting.scenario.measure.series_ns,
                cpu=cpus[number % len(cpus)] if len(cpus) > 1 else None,
                alone=len(self._processes) <= len(cpus),
            )
        connect(self._processes, start_timeout_s(setting.placement))

    def _params(self) -> dict[str, Any]:
        """Return the job's parameters. A training also gets the name of the file for its progress."""
        placement = self._setting.placement
        watched = placement.job == TRANSFORMER
        more = {"steps_file": str((self._setting.directory / STEPS).resolve())} if watched else {}
        return {**placement.params, **more}

    def start(self) -> int:
        """Start all ranks at the same time; return the time at which their measurement begins, ns."""
        start_ns = time.monotonic_ns() + LEAD_NS
        measure_ns = start_ns + self._setting.scenario.live_warmup_ns
        specs = faults_met(self._setting.scenario.faults, self._setting.transport)
        drains = denylists(specs, self._setting.running.fabric)
        denied = [(measure_ns + at_ns, list(links)) for at_ns, links in drains]
        for process in self._processes:
            process.send("run", start_ns=start_ns, measure_ns=measure_ns, denied=denied)
        return measure_ns

    def descriptors(self) -> Collection[RemoteAgent]:
        """Return the processes whose ranks are not done."""
        return [process for number, process in enumerate(self._processes) if number not in self._ended]

    def receive(self, ready: Sequence[object]) -> None:
        """Receive the answers of ``ready``. Raise AgentError if a process ended without an answer."""
        for number, process in enumerate(self._processes):
            if number in self._ended or process not in ready:
                continue
            answer = self._ended[number] = process.receive()
            stopped = answer["problem"] is not None or answer["failure"] is not None
            self.over = self.over or stopped or len(self._ended) == len(self._processes)

    def act(self, clock: Callable[[], int]) -> None:
        """Do nothing, because the driver plans no actions."""

    def ask_restored(self, timeout_s: float) -> None:
        """Do nothing, because ranks do not report the paths that they use."""

    @property
    def restored(self) -> bool | None:
        """Return True, because ranks do not report paths. So a trial does not wait for restored paths."""
        return True

    def stop(self) -> None:
        """Stop the ranks that are not done."""
        for number, process in enumerate(self._processes):
            if number in self._ended:
                continue
            process.send("stop")
            self._ended[number] = process.receive()
            if "stopped" not in self._ended[number]:  # the ranks were already done: this was their answer
                process.receive()

    def collect(self) -> Collected:
        """Return the ranks' results. Save the samples of all ranks in one file, ``data.npz``."""
        samples, counters = self._samples()
        answers = self._ended.values()
        problems = [answer["problem"] for answer in answers if answer.get("problem") is not None]
        failures = [answer["failure"] for answer in answers if answer.get("failure") is not None]
        drops = counters.get("socket_drops")
        return Collected(
            samples=samples,
            counters=counters,
            bytes_delivered=sum(int(r["series_bytes"][-1]) if len(r["series_bytes"]) else 0 for r in samples),
            problem=problems[0] if problems else None,
            failure=failures[0] if failures else None,
            failures=(f"ranks were too slow to read: {drops} frames lost at sockets",) if drops else (),
            details=self._reference(),
        )

    def _reference(self) -> Mapping[str, Any]:
        """Return the expected digests of a training; empty for other jobs, and if ranks were stopped."""
        if any("stopped" in answer for answer in self._ended.values()):
            return {}
        setting = self._setting
        return training_alone(setting.placement, setting.seed, setting.directory.parent)

    def _samples(self) -> tuple[tuple[Sample, ...], dict[str, int]]:
        directory = self._setting.directory
        events = directory / "events"
        events.mkdir(parents=True, exist_ok=True)
        parts = {r: directory / f".rank{r}.npz" for ranks in self._here.values() for r in ranks}
        for process, ranks in zip(self._processes, self._here.values(), strict=True):
            process.send(
                "save",
                paths=[str(parts[r].resolve()) for r in ranks],
                logs=[str((events / f"rank{r}.jsonl").resolve()) for r in ranks],
            )
        counters: dict[str, int] = {}
        for process in self._processes:
            for name, count in process.receive(OPEN_TIMEOUT_S)["counters"].items():
                counters[name] = counters.get(name, 0) + count
        samples: list[Sample] = []
        for part in (parts[r] for r in sorted(parts)):
            with np.load(part) as arrays:
                samples.append(dict(arrays))
            part.unlink()
        merged: dict[str, Any] = {
            f"rank{i}_{name}": values for i, part in enumerate(samples) for name, values in part.items()
        }
        np.savez_compressed(directory / "data.npz", **merged)
        return tuple(samples), counters


def start_timeout_s(placement: Placement) -> float:
    """Return how long the processes of ranks may take to open (s).

    The ranks of a host start their accelerators one after another. Each start has a separate time limit. The
    error of this limit describes the problem better than the error of the returned limit. So the returned
    limit is longer than the limits of all starts together.
    """
    most = max(len(ranks) for ranks in placement.ranks_by_host().values())
    return OPEN_TIMEOUT_S + (most * LONGEST_START_S if placement.job == TRANSFORMER else 0.0)


def connect(processes: Sequence[RemoteAgent], timeout_s: float) -> dict[str, Mapping[str, Any]]:
    """Receive the connection attributes of each rank, and send each attribute to the rank that needs it.

    Return the attributes, by rank and then by peer (both as text). Raise AgentError if a process does not
    answer.
    """
    opened = [process.receive(timeout_s)["attributes"] for process in processes]
    known: dict[str, Mapping[str, Any]] = {rank: peers for each in opened for rank, peers in each.items()}
    for process, ranks in zip(processes, opened, strict=True):
        theirs = {rank: {peer: known[peer][rank] for peer in known[rank]} for rank in ranks}
        process.send("connect", attributes=theirs)
    for process in processes:
        process.receive(timeout_s)
    return known


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
