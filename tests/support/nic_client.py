"""A client with which a test uses a NIC service as a program does, and two hosts' NICs in one process."""

from __future__ import annotations

import mmap
import os
import random
import socket
from dataclasses import dataclass
from typing import Any

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.nic.routes import nic_addresses
from mrclab.hosts.rdma.events import Event, QpError, ReceiveCompleted, SendCompleted
from mrclab.hosts.service import addresses
from mrclab.hosts.service.control.control import Control
from mrclab.hosts.service.recording import Recordings
from mrclab.hosts.service.session import Session
from mrclab.hosts.service.shared_memory import FLAGS, VERSION, WORDS, op, record
from mrclab.hosts.transports import make_config
from mrclab.testbed.programs.nic import usual_options
from mrclab.topologies import Fabric, load_fabric

STEP_NS = 100_000


@dataclass
class Shared:
    """Memory whose descriptor the service passed to the program."""

    map: mmap.mmap

    @classmethod
    def of(cls, fd: int) -> Shared:
        made = cls(mmap.mmap(fd, os.fstat(fd).st_size))
        os.close(fd)
        return made

    def word(self, number: int) -> int:
        return int.from_bytes(self.map[4 * number : 4 * number + 4], "little")

    def set_word(self, number: int, value: int) -> None:
        self.map[4 * number : 4 * number + 4] = value.to_bytes(4, "little")


class Client:
    """A program's connection to a NIC service, its memory, one queue pair and one completion queue."""

    def __init__(self, connection: socket.socket, hello: bool = True) -> None:
        self.socket = connection
        self.memory = bytearray(1 << 16)
        self.qpn = self.posted = self.received = self.polled = 0
        if hello:
            mem, maps = os.open("/proc/self/mem", os.O_RDWR), os.open("/proc/self/maps", os.O_RDONLY)
            _, fds = self.call("HELLO", fds=[mem, maps])
            self.page, self.events = Shared.of(fds[0]), fds[3]
            self.doorbell = fds[1]
            os.close(fds[2])

    def _served(self) -> None:
        """Do nothing: the service is another process. A subclass handles the request in this process."""

    def call(
        self, name: str, *args: int, gid: bytes = b"", fds: list[int] | None = None
    ) -> tuple[Any, list[int]]:
        """Send a request; return the values and the descriptors of the reply. Raise OSError on a refusal."""
        padded = (*args, *[0] * (8 - len(args)))
        socket.send_fds(self.socket, [record("request").pack(op(name), VERSION, *padded, gid)], fds or [])
        for fd in fds or []:
            os.close(fd)
        self._served()
        message, passed, _, _ = socket.recv_fds(self.socket, record("reply").size, 4)
        error, _, *values = record("reply").unpack(message)
        if error:
            raise OSError(error, os.strerror(error))
        return values, passed

    def register(self, address: int, length: int, access: int = 3, domain: int = 1) -> int:
        values, _ = self.call("REG_MR", address, length, address, access, domain)
        return int(values[0])

    def make_qp(self, slots: int = 16) -> None:
        (cq, *_), (fd,) = self.call("CREATE_CQ", 64, 0)
        self.cq = Shared.of(fd)
        values, (fd,) = self.call("CREATE_QP", cq, cq, slots, slots, 0, 1, 7)
        self.rings = Shared.of(fd)
        self.qpn, self.send_slots = values[0], values[1]
        self.call("MODIFY_QP", self.qpn, 1)

    def post(
        self, wr_id: int, address: int, length: int, lkey: int, to: int, rkey: int, imm: int | None = None
    ) -> None:
        sge = record("sge").pack(address, length, lkey)
        work = record("work").pack(
            wr_id, to, rkey, imm or 0, imm is not None, FLAGS["WORK_SIGNALED"], 1, length, sge
        )
        at = WORDS["QP_RING_OFFSET"] + self.posted % self.send_slots * len(work)
        self.rings.map[at : at + len(work)] = work
        self.posted += 1
        self.rings.set_word(WORDS["QP_SQ_PROD"], self.posted)
        self.ring()

    def post_receive(self, wr_id: int, *, doorbell: bool = True) -> None:
        at = WORDS["QP_RING_OFFSET"] + self.send_slots * record("work").size + self.received % 16 * 8
        self.rings.map[at : at + 8] = wr_id.to_bytes(8, "little")
        self.received += 1
        self.rings.set_word(WORDS["QP_RQ_PROD"], self.received)
        if doorbell:
            self.ring()

    def ring(self) -> None:
        posted = WORDS["SESSION_POSTED"]
        self.page.set_word(posted, self.page.word(posted) + 1 & 0xFFFFFFFF)

    def poll(self) -> list[tuple[int, int, int]]:
        """Return wr_id, status and immediate of all new completions."""
        found = []
        while self.polled != self.cq.word(WORDS["CQ_PROD"]):
            at = WORDS["CQ_RING_OFFSET"] + self.polled % 64 * record("completion").size
            wr_id, qpn, status, _, _, imm, _, _, cookie = record("completion").unpack_from(self.cq.map, at)
            assert (qpn, cookie) == (self.qpn, 7)
            found.append((wr_id, status, imm))
            self.polled += 1
        return found


class Program(Client):
    """A client, and its session in a NIC of this process."""

    def __init__(self, nic: Nic, hello: bool = True) -> None:
        self.nic = nic
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        self.session = Session(
            theirs, os.getpid(), nic.endpoint, nic.fabric, nic.host, nic.control, nic.recordings
        )
        nic.sessions.append(self.session)
        super().__init__(ours, hello)
        if hello:
            os.close(self.doorbell)

    def _served(self) -> None:
        self.session.serve()

    def connect(self, peer: Program) -> None:
        gid = addresses.gids(peer.nic.fabric, peer.nic.host)[3]
        self.call("MODIFY_QP", self.qpn, 2, peer.qpn, 100 + peer.qpn, 0, 5, gid=gid)
        self.call("MODIFY_QP", self.qpn, 3, 0, 0, 100 + self.qpn)


class Nic:
    """A host's endpoint and its sessions."""

    def __init__(self, fabric: Fabric, host: str, target: str = "ebpf") -> None:
        self.fabric, self.host = fabric, host
        config = make_config("mrc", fabric, host, usual_options(target))
        self.endpoint = Endpoint(nic_addresses(fabric, host), config, random.Random(host))  # type: ignore[arg-type]
        self.control = Control(self.endpoint, fabric, host)
        self.sessions: list[Session] = []
        self.seen: list[Event] = []
        """All events of the endpoint, for the tests."""
        self.now_ns = 0
        self.recordings = Recordings(lambda: self.now_ns)

    def work(self, now_ns: int) -> list[tuple[int, bytes]]:
        """Process posted requests, deliver events to the sessions, and return the frames to send."""
        self.now_ns = now_ns
        for session in self.sessions:
            session.take()
        self.endpoint.handle_timer(now_ns)
        frames = list(self.endpoint.frames_to_send(now_ns, None, 1000))
        for event in list(self.endpoint.events()):
            self.seen.append(event)
            for session in self.sessions:
                qp = session.qps.get(event.qpn)
                if qp is None:
                    continue
                if isinstance(event, SendCompleted):
                    qp.on_sent(event)
                elif isinstance(event, ReceiveCompleted):
                    qp.on_received(event)
                elif isinstance(event, QpError):
                    qp.on_error(event)
                else:
                    self.control.observe(event)
        return frames


class Wire:
    """Two hosts of a fabric, and a clock."""

    def __init__(self, target: str = "ebpf") -> None:
        fabric = load_fabric("tiny")
        self.a, self.b = Nic(fabric, "h0", target), Nic(fabric, "h2", target)
        self.now_ns = 1_000_000

    def run(self, steps: int = 30) -> None:
        for _ in range(steps):
            self.now_ns += STEP_NS
            for here, there in ((self.a, self.b), (self.b, self.a)):
                for port, frame in here.work(self.now_ns):
                    there.endpoint.receive(port, frame, self.now_ns)

    def close(self) -> None:
        for nic in (self.a, self.b):
            for session in nic.sessions:
                session.close()
