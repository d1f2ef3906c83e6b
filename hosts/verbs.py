"""The verbs API: a NIC as context, memory regions, queue pairs and completion queues.

Names are those of libibverbs. Two things differ, because MRC differs [SPEC §6, §10]: the only operations are
RDMA WRITE and WRITE with immediate; queue pairs are connected by attributes that the two programs exchange
themselves, as JSON. Receives are posted on queue pairs that are created with them (``receives``); others have
a place for every immediate.

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
"""The first number of awaited work requests: beyond the 64-bit numbers that programs use."""
Buffer = bytes | bytearray | memoryview


class Opcode(Enum):
    """The operation that a work completion reports."""

    RDMA_WRITE = "RDMA_WRITE"
    """One of our writes is acknowledged, or has failed."""
    RECV_RDMA_WITH_IMM = "RECV_RDMA_WITH_IMM"
    """A peer's write with immediate is in our memory, and so is everything it wrote before."""


@dataclass(frozen=True, slots=True)
class WorkCompletion:
    """A completion, as ``poll`` and ``wait`` return it: the fields of ibv_wc that MRC has."""

    opcode: Opcode
    status: Status
    qp_num: int
    byte_len: int
    t_ns: int
    """When the operation completed, CLOCK_MONOTONIC."""
    wr_id: int | None = None
    """The number given to ``post_write`` or ``post_recv``; None for an awaited ``write``, and for a message
    that consumed no receive."""
    imm_data: int | None = None
    """The peer's immediate, 32 bits; None on the sending side."""

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
    """Failed: posted work completes as flushed."""


class Context:
    """An open NIC. As a context manager it closes the ports on exit; data in flight is lost.

    Not safe for use from more than one thread.
    """

    def __init__(self, fabric: Fabric, host: str, device: NicDevice) -> None:
        self.fabric = fabric
        self.host = host
        self.device = device
        self.async_events: deque[Event] = deque(maxlen=ASYNC_EVENTS_KEPT)
        """All other events, in order: EVs retired and restored, packets lost, queue pairs failed."""
        self.responses: deque[EndpointAnswered] = deque(maxlen=ASYNC_EVENTS_KEPT)
        """Answers to endpoint requests, and requests that had none, in the order of arrival."""
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

        ``config`` selects the transport, MRC by default; `mrclab.hosts.transports` makes others. Arriving
        frames are delayed by ``propagation_ns``, as by a longer wire.

        Raise KeyError for a host that is not in the fabric, OSError if its interfaces are not in the
        namespace.
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
        """Close the NIC. A second call is harmless."""
        self._leave_loop()
        self.device.close()

    def reg_mr(self, buffer: bytearray | memoryview, access: Access = Access.REMOTE_WRITE) -> MemoryRegion:
        """Let peers write into a buffer. They need the region's ``address`` and ``rkey``."""
        return self.device.endpoint.register_memory(buffer, access)

    def dereg_mr(self, region: MemoryRegion) -> None:
        """Close a region to peers: a write that still arrives for it is an access error."""
        self.device.endpoint.deregister_memory(region)

    def create_cq(self) -> CompletionQueue:
        """Create a completion queue, for any number of queue pairs."""
        return CompletionQueue(self)

    def create_qp(
        self, send_cq: CompletionQueue, recv_cq: CompletionQueue | None = None, *, receives: bool = False
    ) -> QueuePair:
        """Create a queue pair whose completions go to these queues. ``recv_cq`` defaults to ``send_cq``.

        With ``receives`` each WRITE with immediate of the peer needs a receive that ``post_recv`` posted;
        without one, both ends of the queue pair fail. Raise ValueError for a transport other than MRC.
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
        """Remove a queue pair. Its completions in queues stay there; no others follow."""
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
        """Ask NICs to which there need be no queue pair; return a request id for each of a batch.

        A target is a host, an EV and the port for it, counted from 1. The answers are in ``responses`` after
        ``progress``, in the order of arrival, each with its port and RTT; that of a request without answer
        has none. ``dscp`` chooses the class of the requests (by default that of control packets),
        ``port_status`` the mask of a PORT_STATUS_UPDATE (by default that of this NIC's ports). Raise
        ValueError on a transport other than MRC, a target that does not exist, or values out of range.
        """
        device = self.device
        asked = ask_endpoints(
            device.endpoint, self.fabric, self.host, op, targets, device.now(), dscp, port_status
        )
        self.device.flush()
        return asked

    def progress(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """Let the NIC work until something arrived or was due, or until a time (CLOCK_MONOTONIC, ns).

        ``others`` are descriptors that end the wait too. Return the readable ones.
        """
        readable = self.device.turn(until_ns, others)
        self.hand_out(self.device.events())
        return readable

    def hand_out(self, events: Iterable[Event]) -> None:
        """Pass events of the NIC on: completions to their queues, others to ``async_events``."""
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

    # In an event loop, the NIC's sockets and a timer of the loop wake the NIC.

    def enter_loop(self) -> None:
        """Let the running event loop drive the NIC. Raise RuntimeError if another one already does."""
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
        """Do what can be done now, and arrange that the event loop calls again when there is more to do."""
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
    """A queue of completions, in the order in which they happened."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ready: deque[WorkCompletion] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._ready)

    def poll(self, limit: int = 64, timeout_s: float = 0.0) -> list[WorkCompletion]:
        """Take up to ``limit`` completions. If there are none, wait for up to ``timeout_s``."""
        now = self._context.device.now
        deadline_ns = now() + round(timeout_s * 1e9)
        while True:
            self._context.progress(0 if self._ready else deadline_ns)
            if self._ready or now() >= deadline_ns:
                return self.take(limit)

    async def wait(self, limit: int = 64) -> list[WorkCompletion]:
        """Take up to ``limit`` completions; wait for the first. The event loop drives the NIC from now on.

        Several tasks may wait; each completion goes to one of them.
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
        """Add a completion; called by the context."""
        self._ready.append(completion)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def take(self, limit: int = 64) -> list[WorkCompletion]:
        """Take up to ``limit`` completions without letting the NIC work."""
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]


class QueuePair:
    """One end of a connection; made by ``Context.create_qp``."""

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
        """Return the attributes that the peer needs to connect to this queue pair, in JSON's types."""
        local = self._context.device.endpoint.local_attributes(self.qp_num)
        return {"host": self._context.host, **attributes_to_dict(local)}

    def connect(self, remote: Mapping[str, Any]) -> None:
        """Connect to the queue pair with these ``attributes``. Both ends must do so before data flows.

        The connection uses all paths of the fabric between the two hosts. Raise KeyError, TypeError or
        ValueError if these are no attributes, ValueError if the two ends are not compatible.
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

        It may be posted before the queue pair is connected. Raise ValueError if the queue pair was created
        without ``receives``.
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
        """Write, and return the completion, which does not go to the queue. Check its ``status``.

        Several writes may be in flight. ``data`` must not change until the completion, even if the task is
        cancelled: the write continues. The event loop drives the NIC from now on.
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
        # Send at once, as a doorbell does; the rest follows as acknowledgements arrive.
        if self._context.driven:
            self._context.pump()
        else:
            device.flush()

    def complete(self, event: SendCompleted | ReceiveCompleted) -> None:
        """Convert the core's completion into a work completion; called by the context."""
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
