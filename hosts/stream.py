"""The stream: a steady, paced sequence of self-proving messages from one host to another.

The sender writes message k into slot k modulo the number of slots; the receiver checks it there the moment
its completion arrives. A slot is written again only when the message that had it is acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosts.device import Device
from hosts.messages import MessageFactory
from hosts.mrc import Access, MemoryRegion
from hosts.mrc.events import Event, ReceiveCompleted, SendCompleted, Status

MAX_SLOTS, MIN_SLOTS = 64, 4
REGION_BYTES = 64 << 20
MAX_MESSAGE_BYTES = REGION_BYTES // MIN_SLOTS
IMM_MODULUS = 1 << 32


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What is sent: payload bits per second, message length (at most MAX_MESSAGE_BYTES), the bytes' seed."""

    message_bytes: int
    rate_bps: int
    seed: int

    @property
    def slots(self) -> int:
        """How many messages the receiver has room for."""
        return min(MAX_SLOTS, REGION_BYTES // self.message_bytes)

    @property
    def interval_ns(self) -> int:
        """From one message to the next."""
        return max(1, round(self.message_bytes * 8 * 1e9 / self.rate_bps))


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """Where the sender writes: told by the receiver out of band."""

    address: int
    rkey: int
    length_bytes: int


class StreamSender:
    """Posts messages at their times, as many at once as there are slots."""

    def __init__(self, device: Device, qpn: int, remote: RemoteRegion, plan: StreamPlan) -> None:
        self._device = device
        self._qpn = qpn
        self._remote = remote
        self._plan = plan
        self._factory = MessageFactory(plan.message_bytes, plan.seed)
        self._slots = plan.slots
        self._buffer = memoryview(bytearray(self._slots * plan.message_bytes))
        self._next_ns: int | None = None
        self.posted = 0
        self.completed = 0
        self.failed: str | None = None

    def start(self) -> None:
        """Begins to post, now."""
        self._next_ns = self._device.now()

    def stop(self) -> None:
        """Posts no more. What is posted will still be delivered."""
        self._next_ns = None

    @property
    def drained(self) -> bool:
        """Whether everything posted has been acknowledged, or never will be."""
        return self.posted == self.completed or self.failed is not None

    def next_due(self) -> int | None:
        """When ``tick`` wants to be called, or None while there is nothing to post or no slot for it."""
        if self._next_ns is None or self.posted - self.completed >= self._slots or self.failed:
            return None
        return self._next_ns

    def tick(self) -> None:
        """Posts what is due. A sender held up by a full window does not catch up: the stream shifts."""
        now = self._device.now()
        while (due := self.next_due()) is not None and due <= now:
            self._post()
            self._next_ns = max(due + self._plan.interval_ns, now - self._plan.interval_ns)

    def _post(self) -> None:
        size = self._plan.message_bytes
        offset = self.posted % self._slots * size
        local = self._buffer[offset : offset + size]
        self._factory.fill(self.posted, local)
        self._device.endpoint.post_write(
            self._qpn,
            wr_id=self.posted,
            data=local,
            remote_va=self._remote.address + offset,
            rkey=self._remote.rkey,
            imm=self.posted % IMM_MODULUS,
        )
        self.posted += 1

    def on_event(self, event: Event) -> None:
        """Takes note of completions."""
        if isinstance(event, SendCompleted):
            self.completed += 1
            if event.status is not Status.SUCCESS and self.failed is None:
                self.failed = f"message {event.wr_id}: {event.status.value}"


class StreamReceiver:
    """Checks each message when its completion arrives, and that none is missing or comes twice."""

    def __init__(self, device: Device, plan: StreamPlan) -> None:
        self._factory = MessageFactory(plan.message_bytes, plan.seed)
        self._plan = plan
        self._buffer = memoryview(bytearray(plan.slots * plan.message_bytes))
        self.region: MemoryRegion = device.endpoint.register_memory(self._buffer, Access.REMOTE_WRITE)
        self.received = 0
        self.problem: str | None = None

    @property
    def remote(self) -> RemoteRegion:
        """What the sender must know."""
        return RemoteRegion(self.region.address, self.region.rkey, self.region.length)

    @property
    def bytes_delivered(self) -> int:
        """Payload of all checked messages."""
        return self.received * self._plan.message_bytes

    def on_event(self, event: Event) -> None:
        """Checks the message that an event says has arrived."""
        if not isinstance(event, ReceiveCompleted):
            return
        number, size = self.received, self._plan.message_bytes
        offset = number % self._plan.slots * size
        if self.problem is None:
            if event.imm != number % IMM_MODULUS or event.length_bytes != size:
                self.problem = (
                    f"expected message {number} of {size} bytes, got {event.imm} of {event.length_bytes}"
                )
            else:
                self.problem = self._factory.problem(number, self._buffer[offset : offset + size])
        self.received += 1
