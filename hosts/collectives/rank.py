"""The process of a rank: opens a channel on its host, runs a job over it, and keeps what came out.

Started in the host's namespace as ``python -m hosts.collectives.rank CONTROL_FD``; whoever runs the
experiment commands it over that socket, a JSON object per line each way, answered in order:

    open      fabric, host, rank, ranks, transport, job -> what each peer must know to connect
    connect   the peers' attributes, by rank
    run       the times to begin and to measure -> answered when the job is over: `problem`, what was wrong
              with the data, and `failure`, why it did not come to its end; both None where all is well
    stop      ends the job; the answer has `stopped`, and where the job was not over what `run` would have had
    save      writes samples and series to a file -> counters

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
from hosts.collectives.job import Job, Times, as_int64
from hosts.collectives.jobs import make_job
from hosts.collectives.transports import open_channel
from hosts.commands import Answer, serve
from hosts.schedule import take_cpu
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


class RankProcess:
    """One rank: its channel, its job, its series."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._comm: Communicator | None = None
        self._job: Job | None = None
        self._running: Running | None = None
        self._series = Series(1_000_000)
        self._answer: Answer = None
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
        channel, comm = self._channel, self._comm
        if channel is None or comm is None:
            return True, None
        running = self._running
        # Before the wait as well: what comes after a long silence must not look as if it came all along.
        self._series.note(time.monotonic_ns(), channel.bytes_delivered)
        readable = channel.turn(running.wait.until_ns if running is not None else None, (control_fd,))
        self._series.note(time.monotonic_ns(), channel.bytes_delivered)
        try:
            for event in channel.events():
                comm.take(event)
            self._advance()
        except PutError as error:
            self._over(str(error))
        answer, self._answer = self._answer, None
        return bool(readable), answer

    def _advance(self) -> None:
        running = self._running
        while running is not None and _is_over(running.wait):
            try:
                running.wait = next(running.steps)
            except StopIteration:
                self._over(None)
                return

    def close(self) -> None:
        """Closes the channel."""
        if self._channel is not None:
            self._channel.close()

    def _over(self, failure: str | None) -> None:
        if self._running is None or self._channel is None or self._job is None:
            return
        self._running = None
        self._series.take(time.monotonic_ns(), self._channel.bytes_delivered())
        self._answer = {"problem": self._job.problem, "failure": failure}

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        take_cpu(request["cpu"], realtime=request["alone"])
        if not request["alone"]:
            # Ranks that share a CPU must not keep one another waiting for a real-time slice of 100 ms.
            _go_before_others()
        fabric = build_fabric(request["topology_yaml"], request["topology"])
        rank, size, seed = request["rank"], request["ranks"], request["seed"]
        transport = request["transport"]
        self._channel = open_channel(
            transport["kind"], fabric, request["host"], rank, transport["options"], seed + rank
        )
        self._comm = Communicator(self._channel, rank, size)
        self._job = make_job(request["job"]["kind"], request["job"]["params"], rank, size, seed)
        self._series = Series(request["series_ns"])
        self._job.prepare(self._comm)
        return {"attributes": {peer: self._channel.attributes(peer) for peer in sorted(self._job.peers())}}

    def _connect(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._channel is None:
            raise RuntimeError("'open' comes first")
        for peer, attributes in request["attributes"].items():
            self._channel.connect(int(peer), attributes)
        # What exists by now stays: a full garbage collection in the middle of a run would stall the NIC.
        gc.collect()
        gc.freeze()
        return {}

    def _run(self, request: Mapping[str, Any]) -> None:
        if self._job is None or self._comm is None:
            raise RuntimeError("'open' comes first")
        steps = self._job.steps(self._comm, Times(request["start_ns"], request["measure_ns"]))
        self._running = Running(steps, Wait(lambda: True))
        self._advance()

    def _stop(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        self._over("stopped before it was over")
        answer, self._answer = self._answer, None
        return {**(answer or {}), "stopped": True}

    def _save(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._job is None or self._channel is None:
            raise RuntimeError("'open' comes first")
        path = Path(request["path"])
        series = {
            "series_t_ns": as_int64(self._series.times_ns),
            "series_bytes": as_int64(self._series.bytes_delivered),
        }
        events = {
            f"event_{name}_ns": np.array(times, dtype=np.int64)
            for name, times in self._channel.event_times().items()
        }
        np.savez(path, allow_pickle=False, **self._job.samples(), **series, **events)
        lines = self._channel.save_log(Path(request["log"]))
        return {"counters": self._channel.counters(), "log_lines": lines}


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
