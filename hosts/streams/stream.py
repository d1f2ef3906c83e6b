"""The stream: a paced sequence of messages of known content from one host to another.

The sender writes message k into slot k modulo the number of slots. The receiver checks it there as soon as
its completion arrives. A slot is reused only after its message was checked.

In a plain stream every message is a WRITE with immediate of one length. In a mixed stream, lengths range from
0 to that length, and some messages are plain WRITEs, which complete at the sender only. The receiver checks
those when the next immediate shows that everything before it is in memory; at least every second message has
one.
"""

from __future__ import annotations

from dataclasses import dataclass

from mrclab.hosts.endpoint import Host
from mrclab.hosts.mrc.endpoint import Endpoint as MrcEndpoint
from mrclab.hosts.rdma.events import Event, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.memory import Access, MemoryRegion
from mrclab.hosts.streams.messages import MessageFactory

MAX_SLOTS, MIN_SLOTS = 64, 4
REGION_BYTES = 64 << 20
MAX_MESSAGE_BYTES = REGION_BYTES // MIN_SLOTS
IMM_MODULUS = 1 << 32


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A stream's traffic: message length (at most MAX_MESSAGE_BYTES), payload rate, seed of the content."""

    message_bytes: int
    rate_bps: int
    seed: int
    mixed: bool = False
    """Use lengths up to ``message_bytes``, and plain WRITEs among those with immediate."""
    region_bytes: int = REGION_BYTES
    """Memory for messages that the receiver registers, at most; at least that of MIN_SLOTS messages."""

    @property
    def slots(self) -> int:
        """The number of messages for which the receiver has room."""
        return min(MAX_SLOTS, self.region_bytes // self.message_bytes)

    def length_of(self, number: int) -> int:
        """Return the length of message ``number``: in a mixed stream 0 and all orders of magnitude occur."""
        if not self.mixed:
            return self.message_bytes
        draw = _draw(self.seed, number)
        limit = self.message_bytes
        if draw & 1:  # half of them are short: draw the number of bits first
            limit = min(limit, (1 << (draw >> 1) % (limit.bit_length() + 1)) - 1)
        return (draw >> 16) % (limit + 1)

    def has_immediate(self, number: int) -> bool:
        """Return True if message ``number`` completes at the receiver too, as all odd ones do."""
        return not self.mixed or number % 2 == 1 or _draw(self.seed, number) >> 40 & 3 == 0

    def interval_ns(self, length_bytes: int) -> int:
        """Return the time from a message of this length to the next."""
        return max(1, round(length_bytes * 8 * 1e9 / self.rate_bps))


def _draw(seed: int, number: int) -> int:
    """Return 64 pseudo-random bits for a seed and a number (the finalizer of SplitMix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + number * 0xD1342543DE82EF95 + 1) & (1 << 64) - 1
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    z = (z ^ z >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
    return z ^ z >> 31


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """The memory that the sender writes to; the receiver passes it out of band."""

    address: int
    rkey: int
    length_bytes: int


class StreamSender:
    """The sending end: it posts messages on schedule, with at most as many in flight as there are slots."""

    def __init__(self, device: Host, qpn: int, remote: RemoteRegion, plan: StreamPlan) -> None:
        self._device = device
        self._qpn = qpn
        self._remote = remote
        self._plan = plan
        self._factory = MessageFactory(plan.message_bytes, plan.seed)
        self._slots = plan.slots
        self._buffer = memoryview(bytearray(self._slots * plan.message_bytes))
        self._next_ns: int | None = None
        self._stopping = False
        self._checked = 0
        """Messages that the receiver has checked, so that their slots may be reused."""
        self.posted = 0
        self.posted_bytes = 0
        self.completed = 0
        self.failed: str | None = None

    def start(self) -> None:
        """Start to post, now."""
        self._next_ns = self._device.now()
        self._stopping = False

    def stop(self) -> None:
        """Stop posting, after one more message if the last one would stay unchecked."""
        self._stopping = True
        self._end_if_checkable()

    def _end_if_checkable(self) -> None:
        if self._stopping and (self.posted == 0 or self._plan.has_immediate(self.posted - 1)):
            self._next_ns = None

    @property
    def drained(self) -> bool:
        """True if nothing more will be posted and everything is acknowledged or has failed."""
        return (self.posted == self.completed and not self._pending_end) or self.failed is not None

    @property
    def _pending_end(self) -> bool:
        return self._stopping and self._next_ns is not None

    def next_due(self) -> int | None:
        """Return when to call ``tick``, or None while there is nothing to post or no free slot."""
        if self._next_ns is None or self.posted - self._checked >= self._slots or self.failed:
            return None
        return self._next_ns

    def tick(self) -> None:
        """Post the messages that are due.

        A sender delayed by a full window does not catch up: its schedule shifts.
        """
        now = self._device.now()
        while (due := self.next_due()) is not None and due <= now:
            interval = self._plan.interval_ns(self._post())
            self._next_ns = max(due + interval, now - interval)
            self._end_if_checkable()

    def _post(self) -> int:
        number = self.posted
        size = self._plan.length_of(number)
        offset = number % self._slots * self._plan.message_bytes
        local = self._buffer[offset : offset + size]
        self._factory.fill(number, local)
        self._device.endpoint.post_write(
            self._qpn,
            wr_id=number,
            data=local,
            remote_va=self._remote.address + offset,
            rkey=self._remote.rkey,
            imm=number % IMM_MODULUS if self._plan.has_immediate(number) else None,
        )
        self.posted += 1
        self.posted_bytes += size
        return size

    def on_event(self, event: Event) -> None:
        """Process completions, which must come in order, each once."""
        if isinstance(event, SendCompleted):
            if self.failed is None:
                if event.status is not Status.SUCCESS:
                    self.failed = f"message {event.wr_id}: {event.status.value}"
                elif event.wr_id != self.completed:
                    self.failed = f"completion {self.completed} is for message {event.wr_id}"
            self.completed += 1
            if self._plan.has_immediate(event.wr_id):
                # Completions are in order, and at an immediate the receiver checks everything before it.
                self._checked = event.wr_id + 1


class StreamReceiver:
    """The receiving end: it checks each message on completion, and finds missing and duplicated ones."""

    def __init__(self, device: Host, plan: StreamPlan, qpn: int) -> None:
        """Prepare memory, and receives on the queue pair if its options demand them."""
        self._factory = MessageFactory(plan.message_bytes, plan.seed)
        self._plan = plan
        self._slots = plan.slots
        self._qpn = qpn
        endpoint = device.endpoint
        posts = isinstance(endpoint, MrcEndpoint) and endpoint.config.posted_receives
        self._endpoint = endpoint if posts else None
        # The sender may be a whole turn of the slots ahead of the events that are read here.
        for number in range(2 * self._slots if posts else 0):
            self._post_receive(number)
        self._buffer = memoryview(bytearray(self._slots * plan.message_bytes))
        self._expected = memoryview(bytearray(len(self._buffer)))
        """The contents that the memory must have, message by message."""
        self.region: MemoryRegion = device.endpoint.register_memory(self._buffer, Access.REMOTE_WRITE)
        self.received = 0
        self.bytes_delivered = 0
        """The payload of all checked messages."""
        self.problem: str | None = None

    def _post_receive(self, number: int) -> None:
        if isinstance(self._endpoint, MrcEndpoint):
            self._endpoint.post_recv(self._qpn, number)

    @property
    def remote(self) -> RemoteRegion:
        """The attributes that the sender needs to write here."""
        return RemoteRegion(self.region.address, self.region.rkey, self.region.length)

    def on_event(self, event: Event) -> None:
        """Check the messages that an event reports."""
        if not isinstance(event, ReceiveCompleted) or event.status is not Status.SUCCESS:
            return
        if event.wr_id is not None:
            self._post_receive(event.wr_id)
        while not self._plan.has_immediate(self.received):
            self._check(None)
        self._check(event)

    def _check(self, event: ReceiveCompleted | None) -> None:
        number = self.received
        size = self._plan.length_of(number)
        if self.problem is None:
            if event is not None and (event.imm != number % IMM_MODULUS or event.length_bytes != size):
                self.problem = (
                    f"expected message {number} of {size} bytes, got {event.imm} of {event.length_bytes}"
                )
            else:
                offset = number % self._slots * self._plan.message_bytes
                self._factory.fill(number, self._expected[offset : offset + size])
                found = self._buffer[offset : offset + size]
                if bytes(found) != bytes(self._expected[offset : offset + size]):
                    self.problem = self._factory.problem(number, found)
        self.received += 1
        self.bytes_delivered += size

    def memory_problem(self) -> str | None:
        """Return the first difference between the memory and what all messages wrote, or None."""
        if bytes(self._buffer) == bytes(self._expected):
            return None
        wrong = next(n for n, (a, b) in enumerate(zip(self._buffer, self._expected, strict=True)) if a != b)
        slot, offset = divmod(wrong, self._plan.message_bytes)
        return f"byte {offset} of slot {slot} is not what the last message wrote"
