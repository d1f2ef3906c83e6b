"""The process of a host's ranks: opens their channels, runs a job over them, and keeps what came out.

Started in the host's namespace as ``python -m hosts.collectives.rank CONTROL_FD``; whoever runs the
experiment commands it over that socket, a JSON object per line each way, answered in order:

    open      fabric, host, ranks here and in all, transport, job -> what each one's peers must know
    connect   the peers' attributes, by rank and peer
    run       the times to begin and to measure -> answered when the job is over: `problem`, what was wrong
              with the data, and `failure`, why it did not come to its end; both None where all is well
    stop      ends the job; the answer has `stopped`, and where the job was not over what `run` would have had
    save      writes each rank's samples and series to a file -> counters

The NIC goes on working between and after all these, so that peers can finish.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hosts.collectives.channel import Channel
from hosts.collectives.communicator import Communicator, PutError, Steps, Wait
from hosts.collectives.host_channel import Turn
from hosts.collectives.job import Job, Times, as_int64
from hosts.collectives.jobs import make_job
from hosts.collectives.transports import open_channels
from hosts.commands import Answer, serve
from linux.scheduling import take_cpu
from topologies import build_fabric

LOGGER = logging.getLogger(__name__)
NICENESS = -15


@dataclass(slots=True)
class Running:
    """A job under way and what it waits for."""

    steps: Steps[None]
    wait: Wait


class Series:
    """How many bytes were delivered by when: noted at most once in every bin, and when something changed."""

    def __init__(self, bin_ns: int) -> None:
        self._bin_ns = bin_ns
        self._next_ns = 0
        self.times_ns = array("q")
        self.bytes_delivered = array("q")

    def note(self, now_ns: int, delivered: Callable[[], int]) -> None:
        """Takes a sample where one is due."""
        if now_ns >= self._next_ns:
            self.take(now_ns, delivered())

    def take(self, now_ns: int, delivered: int) -> None:
        """Takes a sample."""
        self.times_ns.append(now_ns)
        self.bytes_delivered.append(delivered)
        self._next_ns = now_ns + self._bin_ns


class Seat:
    """One rank: its channel, its part of the job, its series."""

    def __init__(self, channel: Channel, job: Job, rank: int, size: int, series_ns: int) -> None:
        self.rank = rank
        self.channel = channel
        self.job = job
        self.running: Running | None = None
        self.failure: str | None = None
        self._comm = Communicator(channel, rank, size)
        self._series = Series(series_ns)
        job.prepare(self._comm)

    def run(self, times: Times) -> None:
        """Begins its part."""
        self.running = Running(self.job.steps(self._comm, times), Wait(lambda: True))
        self.advance()

    def note(self) -> None:
        """Takes a sample of the series where one is due."""
        self._series.note(time.monotonic_ns(), self.channel.bytes_delivered)

    def advance(self) -> None:
        """Goes on with its part as far as it can."""
        try:
            for event in self.channel.events():
                self._comm.take(event)
            while self.running is not None and _is_over(self.running.wait):
                self.running.wait = next(self.running.steps)
        except StopIteration:
            self.end(None)
        except PutError as error:
            self.end(str(error))

    def end(self, failure: str | None) -> None:
        """It is over, where it was not."""
        if self.running is not None:
            self.running = None
            self.failure = failure
            self._series.take(time.monotonic_ns(), self.channel.bytes_delivered())

    def save(self, path: Path) -> None:
        """Writes its samples and series."""
        series = {
            "series_t_ns": as_int64(self._series.times_ns),
            "series_bytes": as_int64(self._series.bytes_delivered),
        }
        events = {
            f"event_{name}": np.array(values, dtype=np.int64)
            for name, values in self.channel.event_columns().items()
        }
        np.savez(path, allow_pickle=False, **self.job.samples(), **series, **events)


class RankProcess:
    """All ranks of a host: most often one."""

    def __init__(self) -> None:
        self._seats: list[Seat] = []
        self._turn: Turn | None = None
        self._asked = False
        """The answer to ``run`` is due when all are over."""
        self._operations: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            "open": self._open,
            "connect": self._connect,
            "run": self._run,
            "stop": self._stop,
            "save": self._save,
        }

    def answer(self, request: Mapping[str, Any]) -> Answer:
        """Carries out a command; None where its answer comes later, from ``turn``."""
        return self._operations[request["do"]](request)

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Works a little. Returns whether a command has come, and the answer of a job that is now over."""
        if self._turn is None:
            return True, None
        seats = self._seats
        # Before the wait as well: what comes after a long silence must not look as if it came all along.
        for seat in seats:
            seat.note()
        untils = [s.running.wait.until_ns for s in seats if s.running is not None]
        until = min((t for t in untils if t is not None), default=None)
        readable = self._turn(until, (control_fd,))
        for seat in seats:
            seat.note()
            seat.advance()
        return bool(readable), self._over()

    def close(self) -> None:
        """Closes the channels."""
        for seat in self._seats:
            seat.channel.close()

    def _over(self) -> Answer:
        """The answer to ``run`` where it is due: all are over, or one failed or found wrong data."""
        over = [seat for seat in self._seats if seat.running is None]
        if not self._asked or not over:
            return None
        failures = [seat.failure for seat in over if seat.failure is not None]
        problems = [seat.job.problem for seat in over if seat.job.problem is not None]
        if not failures and not problems and len(over) < len(self._seats):
            return None
        self._asked = False
        return {"problem": next(iter(problems), None), "failure": next(iter(failures), None)}

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        take_cpu(request["cpu"], realtime=request["alone"])
        if not request["alone"]:
            # Ranks that share a CPU must not keep one another waiting for a real-time slice of 100 ms.
            _go_before_others()
        fabric = build_fabric(request["topology_yaml"], request["topology"])
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
        told = {s.rank: {p: s.channel.attributes(p) for p in sorted(s.job.peers())} for s in self._seats}
        return {"attributes": told}

    def _connect(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for seat in self._seats:
            for peer, attributes in request["attributes"][str(seat.rank)].items():
                seat.channel.connect(int(peer), attributes)
        # What exists by now stays: a full garbage collection in the middle of a run would stall the NIC.
        gc.collect()
        gc.freeze()
        return {}

    def _run(self, request: Mapping[str, Any]) -> None:
        self._asked = True
        for seat in self._seats:
            seat.run(Times(request["start_ns"], request["measure_ns"]))

    def _stop(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        for seat in self._seats:
            seat.end("stopped before it was over")
        return {**(self._over() or {}), "stopped": True}

    def _save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        counters: dict[str, int] = {}
        for seat, path, log in zip(self._seats, request["paths"], request["logs"], strict=True):
            seat.save(Path(path))
            seat.channel.save_log(Path(log))
            for name, count in seat.channel.counters().items():
                counters[name] = counters.get(name, 0) + count
        return {"counters": counters}


def _is_over(wait: Wait) -> bool:
    return wait.ready() or (wait.until_ns is not None and time.monotonic_ns() >= wait.until_ns)


def _go_before_others() -> None:
    try:
        os.nice(NICENESS)
    except PermissionError:
        LOGGER.warning("not allowed to raise the priority: expect longer stalls")


def main() -> None:
    """Entry point of the process."""
    logging.basicConfig(level=logging.WARNING)
    serve(socket.socket(fileno=int(sys.argv[1])), RankProcess())


if __name__ == "__main__":
    main()
