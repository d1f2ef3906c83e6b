"""Flows: self-checking messages from one rank to another, paced or as fast as a window allows.

Every message holds its number and a hash and is checked where it arrives (hosts.streams.messages). Sender and
receiver stamp each message on the clock that all hosts share, so latency needs no echo.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hosts.collectives.channel import TAG_BITS, Arrived, ChannelEvent, Done
from hosts.collectives.communicator import Communicator, Steps, Wait
from hosts.collectives.job import Samples, Times, as_int64
from hosts.streams.messages import MessageFactory

FLOW_BITS = 8
NUMBER_BITS = TAG_BITS - FLOW_BITS
NUMBER_MASK = (1 << NUMBER_BITS) - 1
END = NUMBER_MASK  # in place of a number: the flow is over, and how many messages it had
MAX_FLOWS = 1 << FLOW_BITS
END_BYTES = 8
DATA = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """``rate_bps`` counts payload; 0 is as fast as ``depth`` messages in flight allow. It begins ``after_ns``
    after the start of the measurement; None: before, with the job."""

    src: int
    dst: int
    message_bytes: int
    depth: int
    rate_bps: int
    duration_ns: int
    seed: int
    after_ns: int | None = None

    @property
    def interval_ns(self) -> int:
        """From one message to the next; 0 where none is to be kept."""
        return round(self.message_bytes * 8 * 1e9 / self.rate_bps) if self.rate_bps else 0

    @property
    def region_bytes(self) -> int:
        """What its receiver holds for it: a slot for each message in flight, and one for the end."""
        return self.message_bytes * self.depth + END_BYTES


class Sender:
    """The sending half of a flow."""

    def __init__(self, comm: Communicator, number: int, flow: Flow, offset: int) -> None:
        self.flow = flow
        self._comm = comm
        self._tag = number << NUMBER_BITS
        self._offset = offset
        self._factory = MessageFactory(flow.message_bytes, flow.seed)
        self._buffer = memoryview(bytearray(flow.message_bytes * flow.depth))
        self._tickets: dict[int, int] = {}
        self._finished: set[int] = set()
        self._low = 0  # every message below this number is done
        self._next_ns = 0
        self._stop_ns = 0
        self._end_ticket: int | None = None
        self.over = False
        self.posted_ns = array("q")
        self.done_ns = array("q")

    def start(self, times: Times) -> None:
        """From when to when it sends."""
        after_ns = self.flow.after_ns
        self._next_ns = times.start_ns if after_ns is None else times.measure_ns + after_ns
        self._stop_ns = times.measure_ns + self.flow.duration_ns

    def due_ns(self, now_ns: int) -> int | None:
        """When ``work`` has something to do; None where that waits for what is on its way."""
        under_way = len(self.posted_ns) - self._low
        if self._end_ticket is not None or (now_ns >= self._stop_ns and under_way):
            return None
        if under_way >= self.flow.depth:
            return self._stop_ns
        return min(self._next_ns, self._stop_ns)

    def work(self) -> None:
        """Posts what is due. One that was held up does not catch up: the flow shifts."""
        now = self._comm.now()
        flow = self.flow
        while self._next_ns <= now < self._stop_ns and len(self.posted_ns) - self._low < flow.depth:
            self._post(now)
            now = self._comm.now()
            self._next_ns = max(self._next_ns + flow.interval_ns, now - flow.interval_ns)
        if now >= self._stop_ns and self._end_ticket is None and self._low == len(self.posted_ns):
            count = memoryview(len(self.posted_ns).to_bytes(END_BYTES, "big"))
            at = self._offset + flow.message_bytes * flow.depth
            self._end_ticket = self._comm.put(flow.dst, DATA, at, count, self._tag | END)

    def _post(self, now: int) -> None:
        number, size = len(self.posted_ns), self.flow.message_bytes
        at = number % self.flow.depth * size
        local = self._buffer[at : at + size]
        self._factory.fill(number, local)
        self.posted_ns.append(now)
        self.done_ns.append(0)
        tag = self._tag | number % END
        self._tickets[self._comm.put(self.flow.dst, DATA, self._offset + at, local, tag)] = number

    def done(self, event: Done) -> bool:
        """Takes a put that is done; returns whether it was this flow's."""
        if event.ticket == self._end_ticket:
            self.over = True
            return True
        number = self._tickets.pop(event.ticket, None)
        if number is None:
            return False
        self.done_ns[number] = event.t_ns
        self._finished.add(number)
        while self._low in self._finished:
            self._finished.remove(self._low)
            self._low += 1
        return True


class Receiver:
    """The receiving half of a flow: checks each message the moment that it arrives."""

    def __init__(self, comm: Communicator, flow: Flow, offset: int) -> None:
        self.flow = flow
        self._comm = comm
        self._offset = offset
        self._factory = MessageFactory(flow.message_bytes, flow.seed)
        self._low = 0
        self._early: set[int] = set()
        self._total: int | None = None
        self.numbers = array("q")
        self.arrived_ns = array("q")
        self.problem: str | None = None

    @property
    def over(self) -> bool:
        """Whether the sender's last message is here."""
        return self._total is not None and len(self.numbers) >= self._total

    def arrived(self, event: Arrived, low_number: int) -> None:
        """Checks a message; ``low_number`` is its number as the tag has it."""
        size, depth = self.flow.message_bytes, self.flow.depth
        region = self._comm.regions[DATA]
        if low_number == END:
            at = self._offset + size * depth
            self._total = int.from_bytes(region[at : at + END_BYTES], "big")
            return
        number = self._low + (low_number - self._low % END) % END
        at = self._offset + number % depth * size
        if event.length_bytes != size:
            self._complain(f"message {number} has {event.length_bytes} bytes, not {size}")
        if number in self._early or number >= self._low + depth:
            self._complain(f"message {number} came out of turn, {self._low} being the first that is missing")
        self._complain(self._factory.problem(number, region[at : at + size]))
        self.numbers.append(number)
        self.arrived_ns.append(event.t_ns)
        self._early.add(number)
        while self._low in self._early:
            self._early.remove(self._low)
            self._low += 1

    def _complain(self, problem: str | None) -> None:
        if problem is not None and self.problem is None:
            self.problem = f"flow {self.flow.src} to {self.flow.dst}: {problem}"


class FlowsJob:
    """All flows that begin or end at a rank."""

    def __init__(self, params: Mapping[str, Any], rank: int) -> None:
        self.flows = [Flow(**flow) for flow in params["flows"]]
        if len(self.flows) > MAX_FLOWS:
            raise ValueError(f"{len(self.flows)} flows: {MAX_FLOWS} at most")
        self.rank = rank
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}

    @property
    def problem(self) -> str | None:
        """See Job."""
        return next((r.problem for r in self._receivers.values() if r.problem is not None), None)

    def peers(self) -> set[int]:
        """See Job."""
        ends = [(flow.src, flow.dst) for flow in self.flows]
        return {b for a, b in ends if a == self.rank} | {a for a, b in ends if b == self.rank}

    def prepare(self, comm: Communicator) -> None:
        """See Job."""
        offsets: dict[int, int] = {}
        places = []
        for flow in self.flows:
            places.append(offsets.get(flow.dst, 0))
            offsets[flow.dst] = places[-1] + flow.region_bytes
        comm.expose(max(END_BYTES, offsets.get(self.rank, 0)))
        for number, (flow, offset) in enumerate(zip(self.flows, places, strict=True)):
            if flow.src == self.rank:
                self._senders[number] = Sender(comm, number, flow, offset)
            if flow.dst == self.rank:
                self._receivers[number] = Receiver(comm, flow, offset)

    def _take(self, event: ChannelEvent) -> None:
        if isinstance(event, Arrived):
            self._receivers[event.tag >> NUMBER_BITS].arrived(event, event.tag & NUMBER_MASK)
        else:
            any(sender.done(event) for sender in self._senders.values())

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """See Job."""
        comm.listener = self._take
        senders, receivers = list(self._senders.values()), list(self._receivers.values())
        for sender in senders:
            sender.start(times)

        def over() -> bool:
            return all(s.over for s in senders) and all(r.over for r in receivers)

        def ready() -> bool:
            now = comm.now()
            return over() or any((due := s.due_ns(now)) is not None and due <= now for s in senders)

        while not over():
            for sender in senders:
                sender.work()
            now = comm.now()
            due = min((d for s in senders if (d := s.due_ns(now)) is not None), default=None)
            yield Wait(ready, due)

    def samples(self) -> Samples:
        """See Job: for each flow, when each message was posted and done, which came in, and when."""
        found: Samples = {}
        for number, sender in self._senders.items():
            found[f"flow{number}_posted_ns"] = as_int64(sender.posted_ns)
            found[f"flow{number}_done_ns"] = as_int64(sender.done_ns)
        for number, receiver in self._receivers.items():
            found[f"flow{number}_numbers"] = as_int64(receiver.numbers)
            found[f"flow{number}_arrived_ns"] = as_int64(receiver.arrived_ns)
        return found
