"""The interface of an endpoint, which `mrclab.hosts.mrc.Endpoint` and `mrclab.hosts.roce.Endpoint` share.

An endpoint receives frames, returns frames to send, has timers, and reports events. Every class with this
interface can be used with real sockets (`mrclab.hosts.nic.device`), in the verbs API, in agents, in perf and
in tests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from mrclab.hosts.rdma.events import Drops, EvCounters, Event
from mrclab.hosts.rdma.memory import Access, MemoryRegion
from mrclab.hosts.rdma.paths import PortAddress, RemotePaths


class Config(Protocol):
    """The options of an endpoint and of its queue pairs."""

    @property
    def kind(self) -> str:
        """The name of the transport's kind, for `mrclab.hosts.transports.find_kind`."""


class Endpoint(Protocol):
    """One NIC: its ports, memory and queue pairs. All times are of CLOCK_MONOTONIC, in ns."""

    drops: Drops

    @property
    def ports(self) -> tuple[PortAddress, ...]:
        """The NIC's ports, one per plane."""

    def register_memory(self, buffer: bytearray | memoryview, access: Access = ...) -> MemoryRegion:
        """Register a buffer, so that peers may write into it."""

    def deregister_memory(self, region: MemoryRegion) -> None:
        """Deregister a region, so that peers may no longer write into it."""

    def create_qp(self) -> int:
        """Create a queue pair and return its number."""

    def local_attributes(self, qpn: int) -> Any:
        """Return the attributes that the peer needs to connect.

        `mrclab.hosts.transports.kinds` converts them to JSON and back.
        """

    def connect(self, qpn: int, remote: Any, paths: RemotePaths) -> None:
        """Connect to the peer's queue pair. Raise ValueError if the two queue pairs are not compatible."""

    def destroy_qp(self, qpn: int) -> None:
        """Remove a queue pair."""

    def post_write(
        self,
        qpn: int,
        wr_id: int,
        data: bytes | bytearray | memoryview,
        remote_va: int,
        rkey: int,
        imm: int | None = None,
        now_ns: int | None = None,
    ) -> None:
        """Queue an RDMA WRITE. If ``imm`` is given, the operation is a WRITE with immediate."""

    @property
    def repairs_wait(self) -> bool:
        """True if a retransmission, or a report of a gap, must be sent before the next frame is received."""

    @property
    def message_waits(self) -> bool:
        """True if a message has arrived and the application has not taken its completion yet."""

    def events(self) -> Iterator[Event]:
        """Remove and return all events, including completions, oldest first."""

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Report that a port of the NIC went down or came up."""

    def receive(self, port: int, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Process an arrived frame, from the Ethernet header on."""

    def frames_to_send(
        self, now_ns: int, free_ports: Collection[int] | None = None, limit: int = ...
    ) -> Sequence[tuple[int, bytes]]:
        """Return frames to send, each with its port. A few more than ``limit`` are possible."""

    def next_timer(self) -> int | None:
        """Return the time at which to call ``handle_timer``, or None if no timer is set."""

    def handle_timer(self, now_ns: int) -> None:
        """Do the work of all timers that have expired."""

    def bytes_placed(self, qpn: int) -> int:
        """Return the payload bytes that a queue pair has written to memory."""

    def qp_counters(self, qpn: int) -> Any:
        """Return a snapshot of a queue pair's counters, a dataclass.

        It has at least ``sent`` and ``retransmitted`` (packets) and ``bytes_placed``.
        """

    def ev_counters(self, qpn: int) -> list[EvCounters]:
        """Return the state and counters of each path of a queue pair."""


class Host(Protocol):
    """An endpoint and its clock."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint."""

    def now(self) -> int:
        """Return the time, ns."""


class NicDevice(Host, Protocol):
    """A NIC for programs: `mrclab.hosts.nic.device.Device` on real sockets, or a NIC in virtual time."""

    def events(self) -> list[Event]:
        """Return the endpoint's events since the last call, in order."""

    def turn(self, until_ns: int | None = None, others: Collection[int] = ()) -> Collection[int]:
        """Wait until the NIC or one of ``others`` (descriptors) is ready, and do the NIC's work.

        Wait until ``until_ns`` at the latest. Return the readable descriptors of ``others``.
        """

    def flush(self) -> None:
        """Send the frames that the endpoint has ready."""

    def drops(self) -> int:
        """Return the number of frames lost since the last call because a receive buffer was full."""

    def descriptors(self) -> Collection[int]:
        """Return the descriptors that become readable when the NIC has work."""

    def blocked(self) -> Collection[int]:
        """Return the descriptors of ports with a full send buffer. The NIC waits until these are writable."""

    def due_ns(self) -> int | None:
        """Return the time at which the NIC has work even if no descriptor is ready, or None."""

    def close(self) -> None:
        """Close the ports."""
