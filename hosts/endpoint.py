"""The interface of an endpoint, which `mrclab.hosts.mrc.Endpoint` and `mrclab.hosts.roce.Endpoint` share.

An endpoint receives frames, returns frames to send, has timers, and reports events. Every class with this
interface runs over real sockets (`mrclab.hosts.nic.device`), in the verbs API, in agents, in perf, and in
tests.
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
        """A name that `mrclab.hosts.transports.find_kind` finds."""


class Endpoint(Protocol):
    """One NIC: its ports, memory and queue pairs. Times are CLOCK_MONOTONIC, ns."""

    drops: Drops

    @property
    def ports(self) -> tuple[PortAddress, ...]:
        """The NIC's ports, one per plane."""

    def register_memory(self, buffer: bytearray | memoryview, access: Access = ...) -> MemoryRegion:
        """Let peers write into a buffer."""

    def deregister_memory(self, region: MemoryRegion) -> None:
        """Close a region to peers."""

    def create_qp(self) -> int:
        """Create a queue pair and return its number."""

    def local_attributes(self, qpn: int) -> Any:
        """Return the attributes that the peer needs to connect.

        `mrclab.hosts.transports.kinds` converts them to JSON and back.
        """

    def connect(self, qpn: int, remote: Any, paths: RemotePaths) -> None:
        """Connect to the peer's queue pair. Raise ValueError if the two are not compatible."""

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
        """Queue an RDMA WRITE; with ``imm`` a WRITE with immediate."""

    @property
    def repairs_wait(self) -> bool:
        """True if a loss was found since frames were asked for last, or a gap that is to be reported at once:
        ask for frames before the next frame is handed over.
        """

    @property
    def message_waits(self) -> bool:
        """True while the application has not taken the completion of a message that arrived."""

    def events(self) -> Iterator[Event]:
        """Take all events, including completions, oldest first."""

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Report that a port of the NIC went down or came up."""

    def receive(self, port: int, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Process a whole Ethernet frame."""

    def frames_to_send(
        self, now_ns: int, free_ports: Collection[int] | None = None, limit: int = ...
    ) -> Sequence[tuple[int, bytes]]:
        """Return about ``limit`` frames at most, each with its port; none if there is nothing to send now."""

    def next_timer(self) -> int | None:
        """Return when to call ``handle_timer``; None if no timer is set."""

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due."""

    def bytes_placed(self, qpn: int) -> int:
        """Return how many bytes of payload a queue pair has put into memory. Quick, unlike a snapshot."""

    def qp_counters(self, qpn: int) -> Any:
        """Return a snapshot of a queue pair's counters, a dataclass.

        It has at least ``sent`` and ``retransmitted`` (packets) and ``bytes_placed``.
        """

    def ev_counters(self, qpn: int) -> list[EvCounters]:
        """Return a snapshot of the paths of a queue pair."""


class Host(Protocol):
    """An endpoint and the clock that it runs by."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint."""

    def now(self) -> int:
        """Return the time, ns."""


class NicDevice(Host, Protocol):
    """A NIC as programs drive it: `mrclab.hosts.nic.device.Device`, or one in virtual time."""

    def events(self) -> list[Event]:
        """Return the endpoint's events since the last call, in order."""

    def turn(self, until_ns: int | None = None, others: Collection[int] = ()) -> Collection[int]:
        """Wait for something to do, do it, and return which of ``others`` (descriptors) are readable."""

    def flush(self) -> None:
        """Send the frames that the endpoint has ready."""

    def drops(self) -> int:
        """Return how many frames were lost since the last call because they were read too late."""

    def descriptors(self) -> Collection[int]:
        """Return the descriptors that wake the NIC."""

    def blocked(self) -> Collection[int]:
        """Return descriptors of ports that wait until they are writable."""

    def due_ns(self) -> int | None:
        """Return when there is something to do apart from the descriptors."""

    def close(self) -> None:
        """Close the ports."""
