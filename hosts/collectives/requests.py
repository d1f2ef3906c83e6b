"""Requests and responses: rank 0 sends requests, rank 1 answers, one at a time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from mrclab.hosts.collectives.communicator import Communicator, Steps, Wait
from mrclab.hosts.collectives.job import Samples, Times, as_int64
from mrclab.hosts.streams.messages import MessageFactory

DATA = 0
END = (1 << 26) - 1  # the tag that ends the job: no more requests


class RequestsJob:
    """The requesting or the answering half, by rank. Both check every message that they receive."""

    def __init__(self, params: Mapping[str, Any], rank: int) -> None:
        self.problem: str | None = None
        self._rank = rank
        self._duration_ns = params["duration_ns"]
        sizes = (params["message_bytes"], params["response_bytes"])
        factories = [MessageFactory(size, params["seed"] + i) for i, size in enumerate(sizes)]
        self._mine, self._theirs = factories[rank], factories[1 - rank]
        self._sent_ns = array("q")
        self._answered_ns = array("q")

    def peers(self) -> set[int]:
        """See Job."""
        return {1 - self._rank}

    def prepare(self, comm: Communicator) -> None:
        """See Job."""
        comm.expose(self._theirs.length_bytes)

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """See Job."""
        return self._ask(comm, times) if self._rank == 0 else self._answer(comm)

    def _ask(self, comm: Communicator, times: Times) -> Steps[None]:
        local = memoryview(bytearray(self._mine.length_bytes))
        number = 0
        yield from comm.until(times.start_ns)
        while comm.now() < times.measure_ns + self._duration_ns:
            self._mine.fill(number, local)
            self._sent_ns.append(comm.now())
            comm.put(1, DATA, 0, local, number % END)
            arrived = yield from comm.arrival(1, number % END)
            self._answered_ns.append(arrived.t_ns)
            self._check(comm, number)
            number += 1
            # The answer proves that the request arrived, but the put's own Done may come later.
            yield from comm.all_put()
        comm.put(1, DATA, 0, local[:0], END)
        yield from comm.all_put()

    def _answer(self, comm: Communicator) -> Steps[None]:
        local = memoryview(bytearray(self._mine.length_bytes))
        number = 0
        while True:
            tag = number % END
            yield Wait(lambda tag=tag: comm.has_arrived(0, tag, END))  # type: ignore[misc]
            if not comm.has_arrived(0, tag):
                break
            yield from comm.arrival(0, tag)
            self._check(comm, number)
            yield from comm.all_put()
            self._mine.fill(number, local)
            comm.put(0, DATA, 0, local, tag)
            number += 1
        yield from comm.all_put()

    def _check(self, comm: Communicator, number: int) -> None:
        region = comm.regions[DATA]
        self.problem = self.problem or self._theirs.problem(number, region[: self._theirs.length_bytes])

    def samples(self) -> Samples:
        """See Job: when each request was sent and when its answer arrived (rank 0)."""
        return {"sent_ns": as_int64(self._sent_ns), "answered_ns": as_int64(self._answered_ns)}
