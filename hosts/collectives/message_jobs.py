"""Jobs of checked messages: flows from one rank to another, and requests with responses.

A flow has a fixed rate, or sends as fast as a window allows. The receiver checks the content of every message
(`mrclab.hosts.streams.messages`). All hosts share one clock, and sender and receiver record the time of each
message, so latency is measured in one direction. For requests, rank 0 sends one request at a time and rank 1
answers.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrclab.hosts.collectives.channel import TAG_BITS, Arrived, ChannelEvent, Done
from mrclab.hosts.collectives.communicator import Communicator, Samples, Steps, Times, Wait, as_int64
from mrclab.hosts.streams.messages import MessageFactory

FLOW_BITS = 8
NUMBER_BITS = TAG_BITS - FLOW_BITS
NUMBER_MASK = (1 << NUMBER_BITS) - 1
END = NUMBER_MASK  # marks a flow's last put, whose payload is the number of messages
MAX_FLOWS = 1 << FLOW_BITS
END_BYTES = 8
DATA = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow. If the payload rate ``rate_bps`` is 0, the only limit is ``depth`` messages in flight.

    The flow begins ``after_ns`` after the start of the measurement. If ``after_ns`` is None, the flow begins
    with the job.
    """

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
        """Return the time from one message to the next, ns; 0 if the flow has no fixed rate."""
        return round(self.message_bytes * 8 * 1e9 / self.rate_bps) if self.rate_bps else 0

    @property
    def region_bytes(self) -> int:
        """Return the receiver's memory, bytes: a slot per message in flight, and 8 bytes for the end mark."""
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
        self._low = 0  # all messages below this number are done
        self._next_ns = 0
        self._stop_ns = 0
        self._end_ticket: int | None = None
        self.over = False
        self.posted_ns = array("q")
        self.done_ns = array("q")
        self._posted = 0
        self._forgotten = 0

    def start(self, times: Times) -> None:
        """Set the times at which to send the first message and to stop."""
        after_ns = self.flow.after_ns
        self._next_ns = times.start_ns if after_ns is None else times.measure_ns + after_ns
        self._stop_ns = times.measure_ns + self.flow.duration_ns

    def due_ns(self, now_ns: int) -> int | None:
        """Return the time at which to call ``work``, or None if a put must complete first."""
        under_way = self._posted - self._low
        if self._end_ticket is not None or (now_ns >= self._stop_ns and under_way):
            return None
        if under_way >= self.flow.depth:
            return self._stop_ns
        return min(self._next_ns, self._stop_ns)

    def work(self) -> None:
        """Post the messages that are due. A late flow does not send faster to make up for the delay."""
        now = self._comm.now()
        flow = self.flow
        while self._next_ns <= now < self._stop_ns and self._posted - self._low < flow.depth:
            self._post(now)
            now = self._comm.now()
            self._next_ns = max(self._next_ns + flow.interval_ns, now - flow.interval_ns)
        if now >= self._stop_ns and self._end_ticket is None and self._low == self._posted:
            count = memoryview(self._posted.to_bytes(END_BYTES, "big"))
            at = self._offset + flow.message_bytes * flow.depth
            self._end_ticket = self._comm.put(flow.dst, DATA, at, count, self._tag | END)

    def _post(self, now: int) -> None:
        number, size = self._posted, self.flow.message_bytes
        at = number % self.flow.depth * size
        local = self._buffer[at : at + size]
        self._factory.fill(number, local)
        self._posted += 1
        self.posted_ns.append(now)
        self.done_ns.append(0)
        tag = self._tag | number % END
        self._tickets[self._comm.put(self.flow.dst, DATA, self._offset + at, local, tag)] = number

    def done(self, event: Done) -> bool:
        """Process a put that is done. Return True if the put belongs to this flow."""
        if event.ticket == self._end_ticket:
            self.over = True
            return True
        number = self._tickets.pop(event.ticket, None)
        if number is None:
            return False
        self.done_ns[number - self._forgotten] = event.t_ns
        self._finished.add(number)
        while self._low in self._finished:
            self._finished.remove(self._low)
            self._low += 1
        return True

    def forget(self) -> None:
        """Delete the times of messages that are done."""
        done = self._low - self._forgotten
        del self.posted_ns[:done], self.done_ns[:done]
        self._forgotten = self._low


class Receiver:
    """The receiving half of a flow: it checks each message on arrival."""

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
        self._arrived = 0
        self.problem: str | None = None

    @property
    def over(self) -> bool:
        """True if all messages of the sender have arrived."""
        return self._total is not None and self._arrived >= self._total

    def arrived(self, event: Arrived, low_number: int) -> None:
        """Check a message. The tag contains ``low_number``, the low bits of the message's number."""
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
            self._complain(f"message {number} is out of the window: the first missing one is {self._low}")
        self._complain(self._factory.problem(number, region[at : at + size]))
        self._arrived += 1
        self.numbers.append(number)
        self.arrived_ns.append(event.t_ns)
        self._early.add(number)
        while self._low in self._early:
            self._early.remove(self._low)
            self._low += 1

    def forget(self) -> None:
        """Delete the times of messages that have arrived."""
        del self.numbers[:], self.arrived_ns[:]

    def _complain(self, problem: str | None) -> None:
        if problem is not None and self.problem is None:
            self.problem = f"flow {self.flow.src} to {self.flow.dst}: {problem}"


class FlowsJob:
    """The flows that begin or end at a rank."""

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

    def forget(self) -> None:
        """Delete the samples of completed messages, so that the memory of a long job does not grow."""
        for sender in self._senders.values():
            sender.forget()
        for receiver in self._receivers.values():
            receiver.forget()

    def samples(self) -> Samples:
        """See Job. For each flow, the times at which each message was posted, done, and arrived."""
        found: Samples = {}
        for number, sender in self._senders.items():
            found[f"flow{number}_posted_ns"] = as_int64(sender.posted_ns)
            found[f"flow{number}_done_ns"] = as_int64(sender.done_ns)
        for number, receiver in self._receivers.items():
            found[f"flow{number}_numbers"] = as_int64(receiver.numbers)
            found[f"flow{number}_arrived_ns"] = as_int64(receiver.arrived_ns)
        return found


REQUESTS_DATA = 0
LAST_REQUEST = (1 << 26) - 1  # this tag ends the job


class RequestsJob:
    """Rank 0 sends requests and rank 1 answers. Both check every message that they receive."""

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
            comm.put(1, REQUESTS_DATA, 0, local, number % LAST_REQUEST)
            arrived = yield from comm.arrival(1, number % LAST_REQUEST)
            self._answered_ns.append(arrived.t_ns)
            self._check(comm, number)
            number += 1
            # The response may arrive before the request's put is reported as done. So wait for the put, too.
            yield from comm.all_put()
        comm.put(1, REQUESTS_DATA, 0, local[:0], LAST_REQUEST)
        yield from comm.all_put()

    def _answer(self, comm: Communicator) -> Steps[None]:
        local = memoryview(bytearray(self._mine.length_bytes))
        number = 0
        while True:
            tag = number % LAST_REQUEST
            yield Wait(lambda tag=tag: comm.has_arrived(0, tag, LAST_REQUEST))  # type: ignore[misc]
            if not comm.has_arrived(0, tag):
                break
            yield from comm.arrival(0, tag)
            self._check(comm, number)
            yield from comm.all_put()
            self._mine.fill(number, local)
            comm.put(0, REQUESTS_DATA, 0, local, tag)
            number += 1
        yield from comm.all_put()

    def _check(self, comm: Communicator, number: int) -> None:
        region = comm.regions[REQUESTS_DATA]
        self.problem = self.problem or self._theirs.problem(number, region[: self._theirs.length_bytes])

    def samples(self) -> Samples:
        """See Job. On rank 0: the times at which each request was sent and its response arrived."""
        return {"sent_ns": as_int64(self._sent_ns), "answered_ns": as_int64(self._answered_ns)}
