"""A host's NIC: the endpoint of a transport over packet ports.

In one ``select``, the device waits for frames, for the endpoint's timers and for descriptors of its owner. It
does not poll, except for ``linger_ns`` (see `Device`).
"""

from __future__ import annotations

import random
import select
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from mrclab.hosts.nic.ports import (
    SEND_BUFFER_BYTES,
    DelayLine,
    Receiver,
    TransmitPort,
    send_buffer_bytes,
    sharpen_timers,
)
from mrclab.hosts.nic.routes import answer_all, nic_addresses
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.rdma.paths import PortAddress
from mrclab.hosts.transports import Config, make_endpoint
from mrclab.linux.link_monitor import CarrierWatch
from mrclab.topologies import Fabric

Clock = Callable[[], int]

# Largest number of frames to receive before answers are sent, and largest number of frames to send before
# timers are checked.
RECEIVE_BATCH = 64
SEND_BATCH = 16
# Number of frames to send before arrived frames are read again. Sending a frame takes 15 us, because the
# kernel also forwards the frame in the system call. Reading after each sent frame would lower the rate by a
# fifth.
READ_AFTER = 4
LINGER_NS = 100_000
"""A value of ``linger_ns`` for a process with its own CPU: 2 x (RTT + probe timeout), ns."""


class Device:
    """One NIC: a port per plane, and the endpoint of a transport.

    Use it from one thread only. Applications call the verbs of ``endpoint``. ``propagation_ns`` delays all
    arriving frames, as a longer wire would do. ``send_buffers`` are the bytes that may wait in the kernel at
    each port.

    For ``linger_ns`` after a frame was sent or received, the device polls for the next frame. It does not
    sleep, because waking up takes longer than a packet. With ``linger_ns``, the device also reads after each
    sent frame. So delays are short, but the rate is lower.
    """

    def __init__(
        self,
        addresses: Sequence[PortAddress],
        ifnames: Sequence[str],
        config: Config,
        rng: random.Random,
        clock: Clock = time.monotonic_ns,
        propagation_ns: int = 0,
        send_buffers: Sequence[int] = (),
        linger_ns: int = 0,
    ) -> None:
        self.endpoint = make_endpoint(addresses, config, rng)
        buffers = send_buffers or [SEND_BUFFER_BYTES] * len(ifnames)
        self.ports = {
            address.port: TransmitPort(address.port, ifname, buffer)
            for address, ifname, buffer in zip(addresses, ifnames, buffers, strict=True)
        }
        self._receiver = Receiver({address.mac: address.port for address in addresses})
        self._carrier = CarrierWatch({plane: port.ifname for plane, port in self.ports.items()})
        self._carrier_fd = self._carrier.fileno()
        self._clock = clock
        self._wire = DelayLine(propagation_ns) if propagation_ns else None
        self._receiver_fd = self._receiver.fileno()
        self._by_fd = {port.fileno(): port for port in self.ports.values()}
        self._waiting: dict[int, deque[bytes]] = {}
        """Frames that wait for their link, by plane. Planes without such frames have no entry."""
        self._linger_ns = linger_ns
        self._read_after = 1 if linger_ns else READ_AFTER
        self._active_ns = 0
        """Time at which a frame was last sent or received."""
        self._flushed = False
        """If True, `flush` may have caused events that the application has not received."""
        sharpen_timers()
        self._note_carrier()

    @classmethod
    def open(
        cls,
        fabric: Fabric,
        host: str,
        config: Config,
        rng: random.Random,
        propagation_ns: int = 0,
        linger_ns: int = 0,
    ) -> Device:
        """Open the NIC of a fabric's host. The calling thread must be in the host's network namespace.

        Raise KeyError if the host is not in the fabric, OSError if its interfaces are not in the namespace.
        """
        ports = fabric.host(host).ports
        device = cls(
            nic_addresses(fabric, host),
            [port.ifname for port in ports],
            config,
            rng,
            propagation_ns=propagation_ns,
            send_buffers=[send_buffer_bytes(fabric.link(host, p.t0).profile.rate_bps) for p in ports],
            linger_ns=linger_ns,
        )
        answer_all(device.endpoint, fabric, host)
        return device

    def close(self) -> None:
        """Close the ports. Frames in flight are lost."""
        self._receiver.close()
        self._carrier.close()
        for port in self.ports.values():
            port.close()

    def descriptors(self) -> tuple[int, ...]:
        """Return descriptors that become readable when a frame arrives or the link of a port changes."""
        return self._receiver_fd, self._carrier_fd

    def blocked(self) -> list[int]:
        """Return descriptors of ports with frames to send. Call ``turn`` when a descriptor is writable."""
        return [self.ports[plane].fileno() for plane in self._waiting]

    def now(self) -> int:
        """Return the time on the device's clock, in nanoseconds."""
        return self._clock()

    def due_ns(self) -> int | None:
        """Return the time of the next timer or delayed frame; None if nothing is scheduled."""
        arrival = None if self._wire is None else self._wire.next_ns()
        return min((t for t in (self.endpoint.next_timer(), arrival) if t is not None), default=None)

    def events(self) -> list[Event]:
        """Return the endpoint's events since the last call, in order."""
        return list(self.endpoint.events())

    def turn(self, until_ns: int | None = None, others: Collection[int] = ()) -> Collection[int]:
        """Wait for work, do it, and return which of ``others`` (descriptors) are readable.

        Return at ``until_ns`` at the latest; None: no limit. Call ``events`` after each turn. After a message
        has arrived, no more frames are read until ``events`` is called.
        """
        more = self._send_batch() or self._flushed
        self._flushed = False
        if self._linger_ns and not more:
            self._linger(until_ns)
        readable, writable = self._wait(self._clock() if more else until_ns, others)
        now = self._clock()
        due = self.endpoint.next_timer()
        came = self._receiver_fd in readable
        if came:
            readable.remove(self._receiver_fd)
            self._active_ns = now
        if came or self._wire is not None:
            self._take_in()
        if self._carrier_fd in readable:
            readable.remove(self._carrier_fd)
            self._note_carrier()
        if due is not None and due <= now:
            # Handle timers after reading. Otherwise a packet whose ACK is in the socket could count as lost.
            self.endpoint.handle_timer(self._clock())
        for fd in writable:
            self._resume(self._by_fd[fd])
        self._send_batch()
        return readable

    def flush(self) -> None:
        """Send all frames that the endpoint has ready, if the links can take them.

        The device also reads frames while it sends, so there may be new events. Therefore the next call of
        `turn` does not wait.
        """
        while self._send_batch():
            self._flushed = True

    def _send_batch(self) -> bool:
        """Send a batch. Return True if the caller should not wait: there may be more to send or to report.

        Frames are built one by one, so that each has its own send time. If all frames of a batch had the same
        time, an RTT would include the sending of other frames. And when a frame is acknowledged, the sender
        could not conclude that an earlier frame of the same batch is lost.
        """
        endpoint, receiver, waiting = self.endpoint, self._receiver, self._waiting
        received = False
        number = 0
        while number < SEND_BATCH or endpoint.repairs_wait:
            number += 1
            free = [plane for plane in self.ports if plane not in waiting] if waiting else None
            frames = endpoint.frames_to_send(self._clock(), free, 1)
            if not frames:
                return received
            self._active_ns = self._clock()
            for plane, frame in frames:
                if plane in waiting or not self.ports[plane].send(frame):
                    waiting.setdefault(plane, deque()).append(frame)
            if number % self._read_after == 0 and receiver.waiting():
                received = True
                self._take_in()
        return True

    def _take_in(self) -> None:
        """Pass the arrived frames to the endpoint, unless the application must first receive a message.

        After the ACK of a message, the peer may write the next message to the same place. So no more frames
        are read until the application has taken the message's completion.
        """
        if self.endpoint.message_waits:
            return
        receive = self.endpoint.receive
        if self._wire is None:
            self._receiver.hand_over(RECEIVE_BATCH, receive, self._clock, self._repairs_wait)
            return
        self._wire.put(self._receiver.received(RECEIVE_BATCH), self._clock())
        now = self._clock()
        for plane, frame in self._wire.arrived(now):
            receive(plane, frame, now)

    def _repairs_wait(self) -> bool:
        return bool(self.endpoint.repairs_wait)

    def _linger(self, until_ns: int | None) -> None:
        """Poll until a frame arrives, work is due, or `linger_ns` have passed since the last frame."""
        clock, waiting = self._clock, self._receiver.waiting
        end_ns = self._active_ns + self._linger_ns
        if clock() >= end_ns:
            return
        for due_ns in (until_ns, self.due_ns()):
            if due_ns is not None and due_ns < end_ns:
                end_ns = due_ns
        while not waiting() and clock() < end_ns:
            pass

    def _wait(self, until_ns: int | None, others: Collection[int]) -> tuple[list[int], list[int]]:
        ends = [t for t in (until_ns, self.due_ns()) if t is not None]
        timeout = max(0, min(ends) - self._clock()) / 1e9 if ends else None
        ours = (self._receiver_fd, self._carrier_fd)
        readable, writable, _ = select.select([*ours, *others], self.blocked(), [], timeout)
        return readable, writable

    def _note_carrier(self) -> None:
        """Report to the endpoint which ports went down or came up. The endpoint then informs the peers."""
        for plane, up in self._carrier.changes().items():
            if not up:
                self._waiting.pop(plane, None)
            self.endpoint.set_port_state(plane, up, self._clock())

    def drops(self) -> int:
        """Return how many frames the kernel dropped since the last call, because they were read too late."""
        return self._receiver.drops()

    def refused(self) -> int:
        """Return how many frames the kernel refused since the start: a link was full or down."""
        return sum(port.counters.tx_refused for port in self.ports.values())

    def _resume(self, port: TransmitPort) -> None:
        queue = self._waiting.get(port.plane)  # None: the port lost its link during this turn
        while queue and port.send(queue[0]):
            queue.popleft()
        if not queue:
            self._waiting.pop(port.plane, None)
