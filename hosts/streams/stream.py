"""The stream: a paced sequence of messages with known content from one host to another.

The sender writes message k into slot k modulo the number of slots. The receiver checks the message in
this slot when the completion of the message arrives. A slot is used again only after its message was checked.

In a plain stream all messages are WRITEs with immediate, of the same length. In a mixed stream, lengths range
from 0 to this length, and some messages are WRITEs without immediate. WRITEs without immediate complete only
at the sender. The receiver checks them when the next immediate arrives, because then all earlier messages are
in memory. At least every second message has an immediate.
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
    """If True, lengths are 0 to ``message_bytes``, and some messages are WRITEs without immediate."""
    region_bytes: int = REGION_BYTES
    """Limit of the memory that the receiver registers for messages; at least MIN_SLOTS messages must fit."""

    @property
    def slots(self) -> int:
        """The number of messages for which the receiver has room."""
        return min(MAX_SLOTS, self.region_bytes // self.message_bytes)

    def length_of(self, number: int) -> int:
        """Return the length of message ``number``. In a mixed stream, lengths are random, often short."""
        if not self.mixed:
            return self.message_bytes
        draw = _draw(self.seed, number)
        limit = self.message_bytes
        if draw & 1:  # For half of the messages, draw the number of bits first, so that many are short.
            limit = min(limit, (1 << (draw >> 1) % (limit.bit_length() + 1)) - 1)
        return (draw >> 16) % (limit + 1)

    def has_immediate(self, number: int) -> bool:
        """Return True if message ``number`` has an immediate. All odd numbers have an immediate."""
        return not self.mixed or number % 2 == 1 or _draw(self.seed, number) >> 40 & 3 == 0

    def interval_ns(self, length_bytes: int) -> int:
        """Return the time from a message of this length to the next one, ns."""
        return max(1, round(length_bytes * 8 * 1e9 / self.rate_bps))


def _draw(seed: int, number: int) -> int:
    """Return 64 pseudo-random bits for a seed and a number (the finalizer of SplitMix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + number * 0xD1342543DE82EF95 + 1) & (1 << 64) - 1
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    z = (z ^ z >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
    return z ^ z >> 31


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """Place, key and size of the memory to write to. The sender gets them before the stream starts."""

    address: int
    rkey: int
    length_bytes: int


class StreamSender:
    """The sending end: it posts messages on schedule. Each message in flight needs a slot."""

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
        """Number of messages that the receiver has checked. Their slots may be used again."""
        self.posted = 0
        self.posted_bytes = 0
        self.completed = 0
        self.failed: str | None = None

    def start(self) -> None:
        """Start to post messages now."""
        self._next_ns = self._device.now()
        self._stopping = False

    def stop(self) -> None:
        """Stop posting. If the last message has no immediate, first post a message that has one."""
        self._stopping = True
        self._end_if_checkable()

    def _end_if_checkable(self) -> None:
        if self._stopping and (self.posted == 0 or self._plan.has_immediate(self.posted - 1)):
            self._next_ns = None

    @property
    def drained(self) -> bool:
        """Return True if all messages are posted and complete, or if a message has failed."""
        return (self.posted == self.completed and not self._pending_end) or self.failed is not None

    @property
    def _pending_end(self) -> bool:
        return self._stopping and self._next_ns is not None

    def next_due(self) -> int | None:
        """Return when to call ``tick``; None if no message is left to post or no slot is free."""
        if self._next_ns is None or self.posted - self._checked >= self._slots or self.failed:
            return None
        return self._next_ns

    def tick(self) -> None:
        """Post the messages that are due.

        If a full window delays a message, all later messages are delayed, too. The sender does not catch up.
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
        """Handle an event. Completions must come in the order of posting, and each only once."""
        if isinstance(event, SendCompleted):
            if self.failed is None:
                if event.status is not Status.SUCCESS:
                    self.failed = f"message {event.wr_id}: {event.status.value}"
                elif event.wr_id != self.completed:
                    self.failed = f"completion {self.completed} is for message {event.wr_id}"
            self.completed += 1
            if self._plan.has_immediate(event.wr_id):
                # Completions are in order. When an immediate arrives, the receiver has all earlier messages.
                self._checked = event.wr_id + 1


class StreamReceiver:
    """The receiving end: it checks each message on completion, and finds missing and repeated messages."""

    def __init__(self, device: Host, plan: StreamPlan, qpn: int) -> None:
        """Register memory, and post receives if the options of the queue pair require them."""
        self._factory = MessageFactory(plan.message_bytes, plan.seed)
        self._plan = plan
        self._slots = plan.slots
        self._qpn = qpn
        endpoint = device.endpoint
        posts = isinstance(endpoint, MrcEndpoint) and endpoint.config.posted_receives
        self._endpoint = endpoint if posts else None
        # Two receives per slot: the sender may use all slots again before this object handles the events.
        for number in range(2 * self._slots if posts else 0):
            self._post_receive(number)
        self._buffer = memoryview(bytearray(self._slots * plan.message_bytes))
        self._expected = memoryview(bytearray(len(self._buffer)))
        """The expected content of the memory, updated message by message."""
        self.region: MemoryRegion = device.endpoint.register_memory(self._buffer, Access.REMOTE_WRITE)
        self.received = 0
        self.bytes_delivered = 0
        """Payload of all checked messages, bytes."""
        self.problem: str | None = None

    def _post_receive(self, number: int) -> None:
        if isinstance(self._endpoint, MrcEndpoint):
            self._endpoint.post_recv(self._qpn, number)

    @property
    def remote(self) -> RemoteRegion:
        """The address and the key that the sender needs to write here."""
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
        """Return the first difference between the memory and its expected content; None if there is none."""
        if bytes(self._buffer) == bytes(self._expected):
            return None
        wrong = next(n for n, (a, b) in enumerate(zip(self._buffer, self._expected, strict=True)) if a != b)
        slot, offset = divmod(wrong, self._plan.message_bytes)
        return f"byte {offset} of slot {slot} is not what the last message wrote"
