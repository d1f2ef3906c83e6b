"""The verbs API: a NIC as context, memory regions, queue pairs and completion queues.

The names are those of libibverbs. MRC requires two differences [SPEC §6, §10]. The only operations are RDMA
WRITE and WRITE with immediate. And to connect queue pairs, the two programs exchange attributes themselves,
as JSON. A queue pair that is created with ``receives`` needs a posted receive for each immediate. Other queue
pairs accept every immediate without a receive.

The API starts no thread. The NIC works while a program waits: inside ``CompletionQueue.poll``, or in the
event loop of a program that calls ``await cq.wait()``. See docs/api.md.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

from mrclab.hosts.endpoint import NicDevice
from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.events import EndpointAnswered
from mrclab.hosts.mrc.wire import EndpointOp
from mrclab.hosts.nic.device import Device
from mrclab.hosts.nic.routes import ask_endpoints, paths_for
from mrclab.hosts.rdma.events import Event, QpError, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.memory import Access, MemoryRegion
from mrclab.hosts.transports import Config
from mrclab.hosts.transports.kinds import attributes_from_dict, attributes_to_dict
from mrclab.topologies import Fabric

__all__ = [
    "Access",
    "CompletionQueue",
    "Context",
    "EndpointAnswered",
    "EndpointOp",
    "MemoryRegion",
    "Opcode",
    "QpState",
    "QueuePair",
    "Status",
    "WorkCompletion",
]

ASYNC_EVENTS_KEPT = 4096
FIRST_AWAITED_ID = 1 << 64
"""The first number of a write that a task awaits. Programs use 64-bit numbers, so this number is free."""
Buffer = bytes | bytearray | memoryview


class Opcode(Enum):
    """The operation that a work completion reports."""

    RDMA_WRITE = "RDMA_WRITE"
    """A write of this host is acknowledged, or has failed."""
    RECV_RDMA_WITH_IMM = "RECV_RDMA_WITH_IMM"
    """A peer's WRITE with immediate is in the memory of this host, and so are that peer's earlier writes."""


@dataclass(frozen=True, slots=True)
class WorkCompletion:
    """A completion from ``poll`` or ``wait``. It has those fields of ibv_wc that MRC supports."""

    opcode: Opcode
    status: Status
    qp_num: int
    byte_len: int
    t_ns: int
    """The time at which the operation completed, CLOCK_MONOTONIC."""
    wr_id: int | None = None
    """The number given to ``post_write`` or ``post_recv``. An awaited ``write`` has None.

    A message that consumed no receive has None, too.
    """
    imm_data: int | None = None
    """The peer's immediate, 32 bits. None on the sending side."""

    @property
    def ok(self) -> bool:
        """True if the status is success."""
        return self.status is Status.SUCCESS


class QpState(Enum):
    """The states of a queue pair, by their names in verbs."""

    RESET = "RESET"
    """Not connected yet."""
    RTS = "RTS"
    ERR = "ERR"
    """Failed: all posted work completes with the status "flushed"."""


class Context:
    """An open NIC. As a context manager it closes the ports on exit; data in flight is lost.

    Not safe for use from more than one thread.
    """

    def __init__(self, fabric: Fabric, host: str, device: NicDevice) -> None:
        self.fabric = fabric
        self.host = host
        self.device = device
        self.async_events: deque[Event] = deque(maxlen=ASYNC_EVENTS_KEPT)
        """The NIC's events in order, without completions and answers: for instance, retired EVs."""
        self.responses: deque[EndpointAnswered] = deque(maxlen=ASYNC_EVENTS_KEPT)
        """Answers to endpoint requests, and notices of unanswered requests, in the order of arrival."""
        self._qps: dict[int, QueuePair] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._blocked: set[int] = set()

    @classmethod
    def open(
        cls,
        fabric: Fabric,
        host: str,
        config: Config | None = None,
        rng: random.Random | None = None,
        propagation_ns: int = 0,
    ) -> Context:
        """Open a host's NIC. The calling thread must be in the host's network namespace.

        ``config`` selects the transport; the default is MRC, and `mrclab.hosts.transports` has the other
        transports. Arriving frames are delayed by ``propagation_ns``, as if the wire were longer.

        Raise KeyError for a host that is not in the fabric. Raise OSError if the host's interfaces are not in
        the namespace.
        """
        device = Device.open(fabric, host, config or MrcConfig(), rng or random.Random(), propagation_ns)
        return cls(fabric, host, device)

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the NIC. A second call has no effect."""
        self._leave_loop()
        self.device.close()

    def reg_mr(self, buffer: bytearray | memoryview, access: Access = Access.REMOTE_WRITE) -> MemoryRegion:
        """Register a buffer for writes of peers. Peers need the region's ``address`` and ``rkey``."""
        return self.device.endpoint.register_memory(buffer, access)

    def dereg_mr(self, region: MemoryRegion) -> None:
        """Deregister a region. If a peer still writes to it, the write fails with an access error."""
        self.device.endpoint.deregister_memory(region)

    def create_cq(self) -> CompletionQueue:
        """Create a completion queue, for any number of queue pairs."""
        return CompletionQueue(self)

    def create_qp(
        self, send_cq: CompletionQueue, recv_cq: CompletionQueue | None = None, *, receives: bool = False
    ) -> QueuePair:
        """Create a queue pair and choose the queues for its completions. ``recv_cq`` defaults to ``send_cq``.

        With ``receives``, each WRITE with immediate of the peer needs a receive that ``post_recv`` has
        posted. Without such a receive, both ends of the queue pair fail. Raise ValueError if the transport is
        not MRC.
        """
        endpoint = self.device.endpoint
        if not receives:
            number = endpoint.create_qp()
        elif isinstance(endpoint, MrcEndpoint):
            number = endpoint.create_qp(receives=True)
        else:
            raise ValueError("only MRC has queue pairs with receives")
        qp = QueuePair(self, number, send_cq, send_cq if recv_cq is None else recv_cq)
        self._qps[qp.qp_num] = qp
        return qp

    def destroy_qp(self, qp: QueuePair) -> None:
        """Remove a queue pair. Completions that are already in queues stay there."""
        del self._qps[qp.qp_num]
        self.device.endpoint.destroy_qp(qp.qp_num)

    def ask_endpoints(
        self,
        op: EndpointOp,
        targets: Iterable[tuple[str, int, int]],
        *,
        dscp: int | None = None,
        port_status: int | None = None,
    ) -> list[int]:
        """Send endpoint requests to NICs, also without a queue pair. Return the request ids.

        A target is a host, an EV, and the port for that EV, counted from 1. Call ``progress``; the answers
        are then in ``responses``, each with its port and RTT. For an unanswered request, ``responses`` has
        the port of the request and no RTT. ``dscp`` is the class of the requests (default: control packets).
        ``port_status`` is the mask of a PORT_STATUS_UPDATE (default: the state of this NIC's ports). Raise
        ValueError for a transport other than MRC, a target that does not exist, or values out of range.
        """
        device = self.device
        asked = ask_endpoints(
            device.endpoint, self.fabric, self.host, op, targets, device.now(), dscp, port_status
        )
        self.device.flush()
        return asked

    def progress(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """Let the NIC work until a packet arrives or a timer expires, or until a time (CLOCK_MONOTONIC, ns).

        ``others`` are descriptors that also end the wait. Return the readable descriptors of ``others``.
        """
        readable = self.device.turn(until_ns, others)
        self.hand_out(self.device.events())
        return readable

    def hand_out(self, events: Iterable[Event]) -> None:
        """Distribute events of the NIC: completions to their queues, other events to ``async_events``."""
        for event in events:
            qp = self._qps.get(event.qpn)
            if isinstance(event, SendCompleted | ReceiveCompleted):
                if qp is not None:
                    qp.complete(event)
                continue
            if isinstance(event, EndpointAnswered):
                self.responses.append(event)
                continue
            if isinstance(event, QpError) and qp is not None:
                qp.state = QpState.ERR
            self.async_events.append(event)

    @property
    def driven(self) -> bool:
        """True if an event loop drives the NIC."""
        return self._loop is not None

    # In an event loop, the NIC's sockets and a timer of the loop call `pump`.

    def enter_loop(self) -> None:
        """Let the running event loop drive the NIC. Raise RuntimeError if another event loop drives it."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("another event loop drives this NIC")
        self._loop = loop
        for fd in self.device.descriptors():
            loop.add_reader(fd, self.pump)
        self.pump()

    def pump(self) -> None:
        """Do the work that is possible now. Register with the event loop for the next work."""
        self.progress(0)
        self.device.flush()
        self.hand_out(self.device.events())
        if self._loop is None:
            return
        blocked = set(self.device.blocked())
        for fd in self._blocked - blocked:
            self._loop.remove_writer(fd)
        for fd in blocked - self._blocked:
            self._loop.add_writer(fd, self.pump)
        self._blocked = blocked
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.device.due_ns()
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, (due - self.device.now()) / 1e9), self.pump)

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        for fd in self.device.descriptors():
            loop.remove_reader(fd)
        for fd in self._blocked:
            loop.remove_writer(fd)
        self._blocked.clear()
        if self._timer is not None:
            self._timer.cancel()


class CompletionQueue:
    """A queue of completions, in the order in which the operations completed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ready: deque[WorkCompletion] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._ready)

    def poll(self, limit: int = 64, timeout_s: float = 0.0) -> list[WorkCompletion]:
        """Remove and return up to ``limit`` completions. If there are none, wait for up to ``timeout_s``."""
        now = self._context.device.now
        deadline_ns = now() + round(timeout_s * 1e9)
        while True:
            self._context.progress(0 if self._ready else deadline_ns)
            if self._ready or now() >= deadline_ns:
                return self.take(limit)

    async def wait(self, limit: int = 64) -> list[WorkCompletion]:
        """Wait for completions and return up to ``limit``. From now on the event loop drives the NIC.

        Several tasks may wait. Each completion is returned to only one of them.
        """
        self._context.enter_loop()
        while not self._ready:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                if future in self._waiting:
                    self._waiting.remove(future)
        found = self.take(limit)
        if self._ready:
            self._wake_one()
        return found

    def push(self, completion: WorkCompletion) -> None:
        """Add a completion. The context calls this function."""
        self._ready.append(completion)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def take(self, limit: int = 64) -> list[WorkCompletion]:
        """Remove and return up to ``limit`` completions. The NIC does no work in this call."""
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]


class QueuePair:
    """One end of a connection. ``Context.create_qp`` creates it."""

    def __init__(
        self, context: Context, qp_num: int, send_cq: CompletionQueue, recv_cq: CompletionQueue
    ) -> None:
        self._context = context
        self.qp_num = qp_num
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self.state = QpState.RESET
        self._awaited: dict[int, asyncio.Future[WorkCompletion]] = {}
        self._awaited_id = FIRST_AWAITED_ID

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that the peer needs to connect to this queue pair, with JSON's types."""
        local = self._context.device.endpoint.local_attributes(self.qp_num)
        return {"host": self._context.host, **attributes_to_dict(local)}

    def connect(self, remote: Mapping[str, Any]) -> None:
        """Connect to the queue pair with these ``attributes``. Both ends must call this before any write.

        The connection uses all paths of the fabric between the two hosts. Raise KeyError, TypeError or
        ValueError if ``remote`` has no valid attributes, ValueError if the two ends are not compatible.
        """
        host = remote["host"]
        attributes = attributes_from_dict({key: value for key, value in remote.items() if key != "host"})
        paths = paths_for(self._context.device.endpoint, self._context.fabric, self._context.host, host)
        self._context.device.endpoint.connect(self.qp_num, attributes, paths)
        self.state = QpState.RTS

    def post_write(self, wr_id: int, data: Buffer, remote_addr: int, rkey: int) -> None:
        """Start an RDMA WRITE. ``data`` must not change until the completion with this ``wr_id``."""
        self._post(wr_id, data, remote_addr, rkey, None)

    def post_write_imm(self, wr_id: int, data: Buffer, remote_addr: int, rkey: int, imm_data: int) -> None:
        """Start an RDMA WRITE that also completes at the peer, with 32 bits of immediate data."""
        self._post(wr_id, data, remote_addr, rkey, imm_data)

    def post_recv(self, wr_id: int) -> None:
        """Post a receive: the peer's next WRITE with immediate completes with this ``wr_id``.

        A receive may be posted before the queue pair is connected. Raise ValueError if the queue pair was
        created without ``receives``.
        """
        endpoint = self._context.device.endpoint
        if not isinstance(endpoint, MrcEndpoint):
            raise ValueError("only MRC has queue pairs with receives")
        endpoint.post_recv(self.qp_num, wr_id, self._context.device.now())
        if self.state is QpState.ERR:
            self._context.hand_out(self._context.device.events())

    async def write(
        self, data: Buffer, remote_addr: int, rkey: int, imm_data: int | None = None
    ) -> WorkCompletion:
        """Write, and return the completion, which is not put into a queue. Check its ``status``.

        Several writes may be in flight. ``data`` must not change until the completion. If the task is
        cancelled, the write continues. From now on the event loop drives the NIC.
        """
        self._context.enter_loop()
        wr_id = self._awaited_id
        self._awaited_id += 1
        future: asyncio.Future[WorkCompletion] = asyncio.get_running_loop().create_future()
        self._awaited[wr_id] = future
        try:
            self._post(wr_id, data, remote_addr, rkey, imm_data)
        except BaseException:
            del self._awaited[wr_id]
            raise
        return await future

    def _post(self, wr_id: int, data: Buffer, remote_addr: int, rkey: int, imm: int | None) -> None:
        device = self._context.device
        device.endpoint.post_write(self.qp_num, wr_id, data, remote_addr, rkey, imm, device.now())
        # Send the first frames now, as a hardware NIC does on a doorbell. Acknowledgements trigger the
        # later frames.
        if self._context.driven:
            self._context.pump()
        else:
            device.flush()

    def complete(self, event: SendCompleted | ReceiveCompleted) -> None:
        """Convert the endpoint's completion into a work completion. The context calls this function."""
        if isinstance(event, SendCompleted):
            future = self._awaited.pop(event.wr_id, None)
            completion = WorkCompletion(
                Opcode.RDMA_WRITE,
                event.status,
                self.qp_num,
                event.length_bytes,
                event.t_ns,
                wr_id=event.wr_id if future is None else None,
            )
            if future is None:
                self.send_cq.push(completion)
            elif not future.done():
                future.set_result(completion)
        else:
            self.recv_cq.push(
                WorkCompletion(
                    Opcode.RECV_RDMA_WITH_IMM,
                    event.status,
                    self.qp_num,
                    event.length_bytes,
                    event.t_ns,
                    wr_id=event.wr_id,
                    imm_data=event.imm if event.status is Status.SUCCESS else None,
                )
            )
