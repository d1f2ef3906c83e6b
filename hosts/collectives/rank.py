"""The process of a host's ranks: it opens their channels, runs a job over them and saves the samples.

The process runs in the host's namespace (`mrclab.hosts.worker`). It takes these requests ("has": content of
the request, "->": content of the answer):

    open      open the channels; has the fabric, host, ranks on this host, number of all ranks, transport, job
                                                      -> the attributes that each rank's peers need
    connect   connect the channels; has, for each rank, the attributes of its peers
    run       run the job; has the start time, the time at which the measurement begins, and the links to
              avoid, each with a time from which to avoid it; the answer is sent when the job is over
                                                      -> `problem`: the error in the arrived data,
                                                         `failure`: why the job did not finish; or None
    news      report data for a viewer of the job; ``paths`` has, for each rank, the peer whose paths to
              report; with ``forget``, the rank deletes reported data, so `save` will not write it
                                                      -> the time, and the data of each rank
    stop      end the job            -> `stopped`, and the answer to `run` if the job was still running
    save      write each rank's samples and series to a file      -> counters

The NIC keeps working between these requests and after them, so that peers can finish. ``JOBS`` maps each
kind of job to a function that makes the job.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mrclab.hosts.collectives.channel import Channel, Turn
from mrclab.hosts.collectives.collective_operations import CollectiveJob, TrainingJob
from mrclab.hosts.collectives.communicator import (
    Clock,
    Communicator,
    Job,
    PutError,
    Steps,
    Times,
    Wait,
    as_int64,
)
from mrclab.hosts.collectives.message_jobs import FlowsJob, RequestsJob
from mrclab.hosts.collectives.verbs_channel import open_channels
from mrclab.hosts.schemes.registry import find_object
from mrclab.hosts.worker import Answer, Operation, freeze_heap, run
from mrclab.linux.requests import Request
from mrclab.linux.scheduling import take_cpu
from mrclab.topologies import fabric_from_text

JOBS: dict[str, Callable[[Mapping[str, Any], int, int, int], Job]] = {
    "flows": lambda params, rank, size, seed: FlowsJob(params, rank),
    "request-response": lambda params, rank, size, seed: RequestsJob(params, rank),
    "training": TrainingJob,
    "transformer": lambda *args: find_object("mrclab.hosts.training.job:TransformerJob", "")(*args),
    "graph": lambda *args: find_object("mrclab.hosts.workloads.player:GraphJob", "")(*args),
    "all-reduce": lambda *args: CollectiveJob("all-reduce", *args),
    "all-gather": lambda *args: CollectiveJob("all-gather", *args),
    "all-to-all": lambda *args: CollectiveJob("all-to-all", *args),
}


def make_job(kind: str, params: Mapping[str, Any], rank: int, size: int, seed: int) -> Job:
    """Return the job of a rank among ``size`` ranks. Parameters are in ns, bytes and bit/s.

    Raise KeyError for a kind that does not exist or a parameter that is missing.
    """
    return JOBS[kind](params, rank, size, seed)


LOGGER = logging.getLogger(__name__)
NICENESS = -15
STOPPED = "stopped before it was over"
"""The failure of a rank that a `stop` request ended, for example because another rank failed."""
LONG_TURNS = ("transformer",)
"""Jobs with long computations. They get no real-time priority on a shared CPU, so that other ranks run."""


@dataclass(slots=True)
class Running:
    """A running job and its wait condition."""

    steps: Steps[None]
    wait: Wait


class Series:
    """Samples of the delivered bytes over time: at most one sample per time bin, and one at the end."""

    def __init__(self, bin_ns: int) -> None:
        self._bin_ns = bin_ns
        self._next_ns = 0
        self.times_ns = array("q")
        self.bytes_delivered = array("q")

    def note(self, now_ns: int, delivered: Callable[[], int]) -> None:
        """Record a sample if a sample is due."""
        if now_ns >= self._next_ns:
            self.take(now_ns, delivered())

    def take(self, now_ns: int, delivered: int) -> None:
        """Record a sample: the time, and the number of bytes delivered until then."""
        self.times_ns.append(now_ns)
        self.bytes_delivered.append(delivered)
        self._next_ns = now_ns + self._bin_ns


class Seat:
    """One rank: its channel, its part of the job, and its series of delivered bytes."""

    def __init__(
        self,
        channel: Channel,
        job: Job,
        rank: int,
        size: int,
        series_ns: int,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        self.rank = rank
        self.channel = channel
        self.job = job
        self.running: Running | None = None
        self.failure: str | None = None
        self._clock = clock
        self._comm = Communicator(channel, rank, size, clock)
        self._series = Series(series_ns)
        self._steps_told = 0
        job.prepare(self._comm)

    def run(self, times: Times) -> None:
        """Begin the rank's part of the job."""
        self.running = Running(self.job.steps(self._comm, times), Wait(lambda: True))
        self.advance()

    def note(self) -> None:
        """Take a sample of the series if one is due."""
        self._series.note(self._clock(), self.channel.bytes_delivered)

    def advance(self) -> bool:
        """Continue the rank's part as far as possible. Return True if an event arrived or a wait ended."""
        went_on = False
        try:
            for event in self.channel.events():
                went_on = True
                self._comm.take(event)
            while self.running is not None and _is_over(self.running.wait, self._clock):
                went_on = True
                self.running.wait = next(self.running.steps)
        except StopIteration:
            self.end(None)
        except PutError as error:
            self.end(str(error))
        return went_on

    def end(self, failure: str | None) -> None:
        """End the job on this rank, if the job is still running."""
        if self.running is not None:
            self.running = None
            self.failure = failure
            self._series.take(self._clock(), self.channel.bytes_delivered())

    def news(self, paths_to: int | None, *, forget: bool = False) -> dict[str, Any]:
        """Return the channel's `news`, its counters, and the training steps since the last call.

        With ``forget``, the reported data is deleted, so `samples` will not return it.
        """
        steps = self.job.steps_since(self._steps_told) if isinstance(self.job, TrainingJob) else []
        self._steps_told += len(steps)
        if forget and isinstance(self.job, TrainingJob | FlowsJob):
            self.job.forget()
            self._steps_told = 0
        return {
            **self.channel.news(paths_to, forget=forget),
            "counters": self.channel.counters(),
            "steps": steps,
        }

    def samples(self) -> dict[str, Any]:
        """Return the rank's samples and series, as arrays by name."""
        series = {
            "series_t_ns": as_int64(self._series.times_ns),
            "series_bytes": as_int64(self._series.bytes_delivered),
        }
        events = {
            f"event_{name}": np.array(values, dtype=np.int64)
            for name, values in self.channel.event_columns().items()
        }
        return {**self.job.samples(), **series, **events}

    def save(self, path: Path) -> None:
        """Write the rank's samples and series to a file."""
        np.savez(path, allow_pickle=False, **self.samples())


class RankProcess:
    """All ranks of a host. Most hosts have one rank."""

    def __init__(self) -> None:
        self._seats: list[Seat] = []
        self._turn: Turn | None = None
        self._shares_cpu = False
        """True if this process and processes of other hosts run on the same CPU with real-time priority."""
        self._denied: list[tuple[int, list[str]]] = []
        """Times (CLOCK_MONOTONIC, ns), and the links to avoid from each time on. Sorted by time."""
        self._asked = False
        """True while a ``run`` request waits for its answer."""
        self.operations: Mapping[str, Operation] = {
            "open": self._open,
            "connect": self._connect,
            "run": self._run,
            "news": self._news,
            "stop": self._stop,
            "save": self._save,
        }

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Do the ranks' work. Return whether a request arrived, and the answer to request ``run`` or None."""
        if self._turn is None:
            return True, None
        seats = self._seats
        # Take a sample also before the wait. Otherwise bytes that arrive at the end of a long wait would look
        # as if they had arrived evenly during the wait.
        for seat in seats:
            seat.note()
        self._deny_what_is_due()
        waits = [seat.running.wait for seat in seats if seat.running is not None]
        untils = [wait.until_ns for wait in waits] + [at_ns for at_ns, _ in self._denied[:1]]
        until = min((t for t in untils if t is not None), default=None)
        others = [wait.descriptor for wait in waits if wait.descriptor is not None]
        readable = self._turn(until, (control_fd, *others))
        for seat in seats:
            seat.note()
            seat.advance()
        if self._shares_cpu:  # without sched_yield, other processes wait up to 100 ms (a time slice)
            os.sched_yield()
        return control_fd in readable, self._over()

    def close(self) -> None:
        """Close the channels."""
        for seat in self._seats:
            seat.channel.close()

    def _deny_what_is_due(self) -> None:
        while self._denied and self._denied[0][0] <= time.monotonic_ns():
            _, links = self._denied.pop(0)
            for seat in self._seats:
                seat.channel.deny(links)

    def _over(self) -> Answer:
        """Return the answer to ``run`` if all ranks are done, or if a rank failed or found wrong data."""
        over = [seat for seat in self._seats if seat.running is None]
        if not self._asked or not over:
            return None
        failures = [seat.failure for seat in over if seat.failure is not None]
        problems = [seat.job.problem for seat in over if seat.job.problem is not None]
        if not failures and not problems and len(over) < len(self._seats):
            return None
        self._asked = False
        return {"problem": next(iter(problems), None), "failure": next(iter(failures), None)}

    def _open(self, request: Request) -> dict[str, Any]:
        computes = request["job"]["kind"] in LONG_TURNS
        realtime = request.get("first", True) and (request["alone"] or not computes)
        take_cpu(request["cpu"], realtime=realtime)
        self._shares_cpu = realtime and not request["alone"]
        if computes and not request["alone"] and request.get("first", True):
            _go_before_others()
        fabric = fabric_from_text(request["topology_yaml"])
        here, size, seed = request["ranks_here"], request["ranks"], request["seed"]
        transport, job = request["transport"], request["job"]
        channels, self._turn = open_channels(
            transport["kind"],
            fabric,
            request["host"],
            here,
            transport["options"],
            seed,
            transport["propagation_ns"],
        )
        for rank, channel in zip(here, channels, strict=True):
            part = make_job(job["kind"], job["params"], rank, size, seed)
            self._seats.append(Seat(channel, part, rank, size, request["series_ns"]))
        own = {s.rank: {p: s.channel.attributes(p) for p in sorted(s.job.peers())} for s in self._seats}
        return {"attributes": own}

    def _connect(self, request: Request) -> dict[str, Any]:
        for seat in self._seats:
            for peer, attributes in request["attributes"][str(seat.rank)].items():
                seat.channel.connect(int(peer), attributes)
        freeze_heap()
        return {}

    def _run(self, request: Request) -> None:
        self._asked = True
        self._denied = [(at_ns, links) for at_ns, links in request["denied"]]
        for seat in self._seats:
            seat.run(Times(request["start_ns"], request["measure_ns"]))

    def _news(self, request: Request) -> dict[str, Any]:
        """Return the result of `Seat.news` for each rank.

        If the job has just ended, the answer to ``run`` may be sent before this answer.
        """
        paths, forget = request["paths"], request.get("forget", False)
        news = {str(seat.rank): seat.news(paths.get(str(seat.rank)), forget=forget) for seat in self._seats}
        return {"t_ns": time.monotonic_ns(), "ranks": news}

    def _stop(self, _request: Request) -> dict[str, Any]:
        for seat in self._seats:
            seat.end(STOPPED)
        return {**(self._over() or {}), "stopped": True}

    def _save(self, request: Request) -> dict[str, Any]:
        counters: dict[str, int] = {}
        for seat, path, log in zip(self._seats, request["paths"], request["logs"], strict=True):
            seat.save(Path(path))
            seat.channel.save_log(Path(log))
            for name, count in seat.channel.counters().items():
                counters[name] = counters.get(name, 0) + count
        return {"counters": counters}


def _is_over(wait: Wait, clock: Clock) -> bool:
    return wait.ready() or (wait.until_ns is not None and clock() >= wait.until_ns)


def _go_before_others() -> None:
    try:
        os.nice(NICENESS)
    except PermissionError:
        LOGGER.warning("not allowed to raise the priority: expect longer stalls")


def main() -> None:
    """Run the process of a host's ranks."""
    run(RankProcess())


if __name__ == "__main__":
    main()
