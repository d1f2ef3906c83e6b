"""A session: one program and its objects in this NIC. The session ends when the program ends.

Invalid input from a program can end only its own session. Therefore all requests have the same size
and are checked. An object's number is looked up in a table of the session. Every table has a limit.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.rdma.memory import Access, MemoryRegion
from mrclab.hosts.service import addresses
from mrclab.hosts.service.control.control import Caller, Control
from mrclab.hosts.service.queue_pair import Copies, ServiceQp
from mrclab.hosts.service.recording import Recordings
from mrclab.hosts.service.shared_memory import (
    LIMITS,
    LOCAL_WRITE,
    OPS,
    REMOTE_WRITE,
    VERSION,
    WORDS,
    CompletionRing,
    MemoryFaultError,
    ProgramMemory,
    RegionPlace,
    SharedMemory,
    WorkRings,
    record,
)
from mrclab.topologies import Fabric

RING_BYTES = 256 << 20
"""Limit for the shared memory of a session."""
ACCESS_FLAGS = 0x10000F
"""A program may request LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC and RELAXED_ORDERING."""
MTU_BYTES = (0, 256, 512, 1024, 2048, 4096)
"""MTUs by the number in verbs' enum ibv_mtu. Number 0 means that the program made no choice."""
_REQUEST, _REPLY, _EVENT = record("request"), record("reply"), record("event")
_POSTED, _ASLEEP, _NAPS = WORDS["SESSION_POSTED"], WORDS["SESSION_ASLEEP"], WORDS["SESSION_NAPS"]

Answer = tuple[tuple[int, ...], bytes, tuple[int, ...]]
"""Values, data and descriptors of a reply."""


class Domain(dict[int, MemoryRegion]):
    """A protection domain: its regions by rkey. Peers of its queue pairs may write to these regions only."""


@dataclass(frozen=True, slots=True)
class Region:
    """Registered memory of a program."""

    core: MemoryRegion
    address: int
    domain: Domain


class SessionOverError(Exception):
    """The program has ended its session, or has broken a rule that ends the session."""


class Session:
    """One connection of a program."""

    def __init__(
        self,
        connection: socket.socket,
        pid: int,
        endpoint: Endpoint,
        fabric: Fabric,
        host: str,
        control: Control,
        recordings: Recordings,
    ) -> None:
        self.connection, self.pid = connection, pid
        self._control, self._recordings = control, recordings
        self._caller: Caller | None = None
        self.pidfd = -1
        self._endpoint, self._fabric, self._host = endpoint, fabric, host
        self._memory: ProgramMemory | None = None
        self._page: SharedMemory | None = None
        fds: list[int] = []
        try:
            fds += [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)]
            fds += [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)]
            fds += os.pipe2(os.O_CLOEXEC)
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        self.doorbell, self._wake, self._events, self._events_out = fds
        os.set_blocking(self._events_out, False)
        self._regions: dict[int, Region] = {}
        self._domains: WeakValueDictionary[int, Domain] = WeakValueDictionary()
        """The domains that a region or a queue pair uses, by the program's number."""
        self._channels: dict[int, int] = {}
        self._cqs: dict[int, CompletionRing] = {}
        self.qps: dict[int, ServiceQp] = {}
        self._ready: dict[ServiceQp, None] = {}
        self._copies = Copies()
        self._next_id = 1
        self._seen = self._ring_bytes = 0
        self._operations: Mapping[str, Callable[[tuple[int, ...], bytes, list[int]], Answer]] = {
            "HELLO": self._hello,
            "QUERY_PORT": self._query_port,
            "REG_MR": self._reg_mr,
            "DEREG_MR": self._dereg_mr,
            "CREATE_CHANNEL": self._create_channel,
            "DESTROY_CHANNEL": self._destroy_channel,
            "CREATE_CQ": self._create_cq,
            "DESTROY_CQ": self._destroy_cq,
            "CREATE_QP": self._create_qp,
            "MODIFY_QP": self._modify_qp,
            "DESTROY_QP": self._destroy_qp,
            "LIMIT_QP": self._limit_qp,
            "PROFILE_QP": self._profile_qp,
            "CONTROL": self._controls,
        }

    def close(self) -> None:
        """Remove all objects of the program."""
        if self._caller is not None:
            self._control.leave(self._caller)
        for qp in self.qps.values():
            qp.close()
        for region in self._regions.values():
            self._endpoint.deregister_memory(region.core)
        for cq in self._cqs.values():
            cq.memory.close()
        for fd in self._channels.values():
            os.close(fd)
        if self._memory is not None:
            self._memory.close()
        if self._page is not None:
            self._page.close()
        for fd in (self.doorbell, self._wake, self._events_out):
            os.close(fd)
        if self._events >= 0:
            os.close(self._events)
        self.connection.close()

    def serve(self) -> None:
        """Carry out one request. Raise SessionOverError if the connection is closed or the request is bad."""
        try:
            message, fds, flags, _ = socket.recv_fds(self.connection, _REQUEST.size + 1, 2)
        except BlockingIOError:
            return
        except OSError as error:
            raise SessionOverError(str(error)) from None
        try:
            if not message:
                raise SessionOverError("closed")
            if len(message) != _REQUEST.size or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise SessionOverError("a request of a wrong size")
            number, version, *rest = _REQUEST.unpack(message)
            if not 1 <= number <= len(OPS) or OPS[number - 1] not in self._operations:
                raise SessionOverError(f"no request {number}")
            name = OPS[number - 1]
            if (self._page is None) != (name == "HELLO"):
                raise SessionOverError("HELLO comes first, and once")
            self._reply(name, (version, *rest[:8]), rest[8], fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _reply(self, name: str, arguments: tuple[int, ...], gid: bytes, fds: list[int]) -> None:
        code = 0
        answer: Answer = (), b"", ()
        try:
            answer = self._operations[name](arguments, gid, fds)
        except (OSError, MemoryError) as error:
            code = getattr(error, "errno", None) or errno.ENOMEM
        except (KeyError, ValueError, IndexError, OverflowError):
            code = errno.EINVAL
        values, data, passed = answer
        padded = (*values, *[0] * (8 - len(values)))
        message = _REPLY.pack(code, len(passed), *padded, data)
        try:
            socket.send_fds(self.connection, [message], list(passed))
        except OSError as error:
            raise SessionOverError(str(error)) from None

    def _hello(self, arguments: tuple[int, ...], _gid: bytes, fds: list[int]) -> Answer:
        if arguments[0] != VERSION:
            raise OSError(errno.EPROTO, "another version of the library")
        if len(fds) != 2:
            raise OSError(errno.EBADF, "two descriptors belong to it")
        mem, maps = fds
        self._memory = ProgramMemory(mem, maps, self.pid)
        fds.clear()
        self._page = page = SharedMemory(WORDS["SESSION_BYTES"])
        gids = b"".join(addresses.gids(self._fabric, self._host))
        guid = addresses.guid(self._fabric, self._host)
        mtu = MTU_BYTES.index(max(m for m in MTU_BYTES if m <= self._endpoint.config.mtu_bytes))
        config = self._endpoint.config
        values = (
            int.from_bytes(guid, "little"),
            mtu,
            len(self._endpoint.ports),
            config.mpr,
            config.max_wimm,
            *config.ack_times(),
        )
        fds += [page.release_fd(), self._events]
        self._events = -1
        return values, gids + self._host.encode(), (fds[0], self.doorbell, self._wake, fds[1])

    def hello_done(self) -> bool:
        """Return whether the program has sent HELLO."""
        return self._page is not None

    def _query_port(self, _a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        return (int(self._endpoint.port_mask() != 0),), b"", ()

    def _reg_mr(self, a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        _, address, length, iova, access, pd = a[:6]
        assert self._memory is not None
        if len(self._regions) >= LIMITS["MAX_MR"]:
            raise OSError(errno.ENOMEM, "too many regions")
        if access & ~ACCESS_FLAGS:
            raise OSError(errno.EOPNOTSUPP, "this access is not supported")
        if not length or address + length > 1 << 63 or iova + length > 1 << 64:
            raise OSError(errno.EINVAL, "no such range")
        if access & REMOTE_WRITE and not access & LOCAL_WRITE:
            raise OSError(errno.EINVAL, "remote writes need local ones")
        if not self._memory.allows(address, length, writable=bool(access & LOCAL_WRITE)):
            raise OSError(errno.EFAULT, "the program has no such memory")
        rights = Access.REMOTE_WRITE if access & REMOTE_WRITE else Access.NONE
        place = RegionPlace(self._memory, address)
        core = self._endpoint.memory.register_at(place, iova, length, rights)
        domain = self._domain(pd)
        domain[core.rkey] = core
        self._regions[core.rkey] = Region(core, address, domain)
        return (core.rkey,), b"", ()

    def _dereg_mr(self, a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        region = self._regions.pop(a[1])
        del region.domain[a[1]]
        self._endpoint.deregister_memory(region.core)
        return (), b"", ()

    def _domain(self, number: int) -> Domain:
        found = self._domains.get(number)
        if found is None:
            found = self._domains[number] = Domain()
        return found

    def _read(self, domain: Domain, lkey: int, address: int, length: int) -> bytes:
        """Return a program's bytes. Raise MemoryFaultError if no region of the domain has the bytes."""
        region = self._regions.get(lkey)
        assert self._memory is not None
        if not length:
            return b""
        if region is None or region.domain is not domain:
            raise MemoryFaultError(errno.EACCES, "no such lkey")
        at = address - region.core.address
        if at < 0 or at + length > region.core.length:
            raise MemoryFaultError(errno.EACCES, "outside of the region")
        return self._memory.read(region.address + at, length)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _create_channel(self, _a: tuple[int, ...], _gid: bytes, fds: list[int]) -> Answer:
        if len(self._channels) >= LIMITS["MAX_CHANNEL"]:
            raise OSError(errno.ENOMEM, "too many channels")
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        number = self._new_id()
        self._channels[number] = ours
        fds.append(theirs)  # `serve` closes this descriptor after the reply
        return (number,), b"", (theirs,)

    def _destroy_channel(self, a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        if any(cq.channel == self._channels[a[1]] for cq in self._cqs.values()):
            raise OSError(errno.EBUSY, "completion queues use it")
        os.close(self._channels.pop(a[1]))
        return (), b"", ()

    def _room(self, memory: SharedMemory) -> None:
        if self._ring_bytes + memory.size_bytes > RING_BYTES:
            memory.close()
            raise OSError(errno.ENOMEM, "too much shared memory")
        self._ring_bytes += memory.size_bytes

    def _create_cq(self, a: tuple[int, ...], _gid: bytes, fds: list[int]) -> Answer:
        _, slots, channel = a[:3]
        if not 1 <= slots <= LIMITS["MAX_CQE"]:
            raise OSError(errno.EINVAL, "too many entries")
        if len(self._cqs) >= LIMITS["MAX_CQ"]:
            raise OSError(errno.ENOMEM, "too many completion queues")
        cq = CompletionRing(self._new_id(), slots, self._channels[channel] if channel else None)
        self._room(cq.memory)
        self._cqs[cq.number] = cq
        fds.append(cq.memory.release_fd())
        return (cq.number, cq.slots, cq.memory.size_bytes), b"", (fds[-1],)

    def _destroy_cq(self, a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        cq = self._cqs[a[1]]
        if cq.users:
            raise OSError(errno.EBUSY, "queue pairs use it")
        del self._cqs[a[1]]
        self._ring_bytes -= cq.memory.size_bytes
        cq.memory.close()
        return (), b"", ()

    def _create_qp(self, a: tuple[int, ...], _gid: bytes, fds: list[int]) -> Answer:
        _, send_cq, recv_cq, send_slots, receive_slots, sig_all, pd, cookie = a[:8]
        if send_slots > LIMITS["MAX_SEND_WR"] or receive_slots > LIMITS["MAX_RECV_WR"]:
            raise OSError(errno.EINVAL, "too many requests")
        if len(self.qps) >= LIMITS["MAX_QP"]:
            raise OSError(errno.ENOMEM, "too many queue pairs")
        cqs = self._cqs[send_cq], self._cqs[recv_cq]
        rings = WorkRings(max(1, send_slots), max(1, receive_slots))
        self._room(rings.memory)
        domain = self._domain(pd)
        qp = ServiceQp(
            self._endpoint,
            self._control.profiles,
            rings,
            cqs,
            partial(self._read, domain),
            self.raise_event,
            self._copies,
            sig_all=bool(sig_all),
            cookie=cookie & 0xFFFFFFFF,
            regions=domain,
            recordings=self._recordings,
        )
        for cq in cqs:
            cq.users += 1
        self.qps[qp.qpn] = qp
        fds.append(rings.memory.release_fd())
        return (qp.qpn, rings.send_slots, rings.receive_slots, rings.memory.size_bytes), b"", (fds[-1],)

    def _modify_qp(self, a: tuple[int, ...], gid: bytes, _fds: list[int]) -> Answer:
        _, qpn, state, dest_qpn, rq_psn, sq_psn, mtu, refuses_writes = a[:8]
        values = {"dest_qpn": dest_qpn, "rq_psn": rq_psn, "sq_psn": sq_psn, "mtu_bytes": MTU_BYTES[mtu]}
        peer = addresses.host_of_gid(self._fabric, gid)
        self.qps[qpn].modify(state, self._fabric, self._host, peer, values)
        self.qps[qpn].accept_writes(not refuses_writes)
        return (), b"", ()

    def _limit_qp(self, a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        _, qpn, mpr, max_wimm, exponent, linear, exponential, timer = a[:8]
        self.qps[qpn].limit(mpr, max_wimm, (exponent, linear, exponential) if timer else None)
        return (), b"", ()

    def _profile_qp(self, a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        self.qps[a[1]].choose_profiles(a[2], a[3])
        return (), b"", ()

    def _controls(self, a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        if self._caller is None:
            assert self._memory is not None
            self._caller = Caller(self.pid, self._memory, self._cqs)
            self._control.join(self._caller)
        return self._control.call(self._caller, a[1], a[2:]), b"", ()

    def _destroy_qp(self, a: tuple[int, ...], _gid: bytes, _fds: list[int]) -> Answer:
        qp = self.qps.pop(a[1])
        self._ready.pop(qp, None)
        for cq in (qp.send_cq, qp.recv_cq):
            cq.users -= 1
        self._ring_bytes -= qp.rings.memory.size_bytes
        qp.close()
        return (), b"", ()

    def take(self) -> int:
        """Pass posted requests to the endpoint. Return their number. Raise RingError if a ring is bad."""
        if self._page is None:
            return 0
        posted = self._page.words[_POSTED]
        if posted != self._seen:
            self._seen = posted
            self._ready = dict.fromkeys(self.qps.values())
        if not self._ready:
            return 0
        taken = 0
        for qp in list(self._ready):
            taken += qp.take()
            if not qp.rings.posted():
                del self._ready[qp]
        return taken

    def set_asleep(self, asleep: int) -> None:
        """Write for the program whether the service sleeps and needs the doorbell."""
        if self._page is not None:
            self._page.words[_ASLEEP] = asleep

    def has_posted(self) -> bool:
        """Return whether something was posted since the last ``take``."""
        return self._page is not None and self._page.words[_POSTED] != self._seen

    def notify(self) -> None:
        """Wake the program if it sleeps on a completion queue, and write the requested events."""
        pushed = [cq for cq in self._cqs.values() if cq.pushed]
        for cq in pushed:
            if cq.event_due() and cq.channel is not None:
                with suppress(OSError):  # if the channel is full, the program has other events to read
                    os.write(cq.channel, _EVENT.pack(0, cq.number))
        if pushed and self._page is not None and self._page.words[_NAPS]:
            self._page.words[_NAPS] = 0
            with suppress(BlockingIOError):
                os.eventfd_write(self._wake, 1)

    def raise_event(self, kind: int, number: int) -> None:
        """Report an asynchronous event of the queue pair, completion queue or port with this number."""
        with suppress(OSError):
            os.write(self._events_out, _EVENT.pack(kind, number))
