"""What drives a transport asks of it: the verbs that `hosts.mrc.Endpoint` and `hosts.roce.Endpoint` share.

Take a frame in, hand frames out, say when to be woken, be woken, tell what came about: whatever fulfils this
runs under real sockets (`hosts.nic.device`), the verbs API, the agent, perf, and in the tests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from hosts.rdma.counters import Drops, EvCounters
from hosts.rdma.events import Event
from hosts.rdma.memory import Access, MemoryRegion
from hosts.rdma.paths import PortAddress, RemotePaths


class Endpoint(Protocol):
    """One NIC: its ports, memory and queue pairs. Times are CLOCK_MONOTONIC, ns."""

    drops: Drops

    @property
    def ports(self) -> tuple[PortAddress, ...]:
        """The NIC's ports, one per plane."""

    def register_memory(self, buffer: bytearray | memoryview, access: Access = ...) -> MemoryRegion:
        """Lets peers write into a buffer."""

    def deregister_memory(self, region: MemoryRegion) -> None:
        """Takes a region back."""

    def create_qp(self) -> int:
        """Creates a queue pair and returns its number."""

    def local_attributes(self, qpn: int) -> Any:
        """What the peer must know to connect; `hosts.attributes` turns it into JSON and back."""

    def connect(self, qpn: int, remote: Any, paths: RemotePaths) -> None:
        """Connects to the peer's queue pair. Raises ValueError where the two cannot work together."""

    def destroy_qp(self, qpn: int) -> None:
        """Forgets a queue pair."""

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
        """Queues an RDMA WRITE, with ``imm`` a WRITE with immediate."""

    def events(self) -> Iterator[Event]:
        """Takes all events, completions among them, oldest first."""

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Tells the NIC that one of its ports went down or came up."""

    def receive(self, port: int, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Takes in a whole Ethernet frame."""

    def frames_to_send(
        self, now_ns: int, free_ports: Collection[int] | None = None, limit: int = ...
    ) -> Sequence[tuple[int, bytes]]:
        """About ``limit`` frames at most, each with its port; none where there is nothing to send now."""

    def next_timer(self) -> int | None:
        """When ``handle_timer`` should be called; None when nothing waits."""

    def handle_timer(self, now_ns: int) -> None:
        """Does what is due."""

    def qp_counters(self, qpn: int) -> Any:
        """A snapshot of a queue pair, a dataclass. It has at least the numbers ``sent`` and
        ``retransmitted`` (packets) and ``bytes_placed``.
        """

    def ev_counters(self, qpn: int) -> list[EvCounters]:
        """A snapshot of the paths of a queue pair."""
