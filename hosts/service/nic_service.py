"""The NIC service: one NIC, the sessions of all programs on its host, and the loop that serves them.

The loop waits in one ``select`` (`mrclab.hosts.nic.device`). During this wait, a program with a
new request must ring a doorbell. After work the loop polls the rings for a short time before it waits, so
that a burst of requests needs one doorbell. If no program is attached for the linger time, the service ends.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from mrclab.hosts.eventlog import EventLog
from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.nic.device import Device
from mrclab.hosts.rdma.events import Event, QpError, ReceiveCompleted, SendCompleted
from mrclab.hosts.service.control.control import Control
from mrclab.hosts.service.recording import Recordings
from mrclab.hosts.service.session import Session, SessionOverError
from mrclab.hosts.service.shared_memory import RingError, fence, op, record
from mrclab.topologies import Fabric

LOGGER = logging.getLogger(__name__)
MOST_SESSIONS = 256
SPIN_NS = 50_000
"""The time for which the loop polls the rings after the last work."""
LINGER_NS = 30_000_000_000
"""The time for which the service waits for the next program before it ends."""
SO_PEERPIDFD = 77
PORT_ACTIVE, PORT_ERR = 9, 10
_CREDENTIALS = struct.Struct("=iII")
_REQUEST = record("request")


class NicService:
    """The service of one host. ``run`` returns after a linger time without an attached program."""

    def __init__(
        self,
        device: Device,
        endpoint: Endpoint,
        fabric: Fabric,
        host: str,
        listener: socket.socket,
        log: EventLog | None = None,
        linger_ns: int = LINGER_NS,
    ) -> None:
        self._device, self._endpoint = device, endpoint
        self._fabric, self._host = fabric, host
        self._listener, self._log = listener, log
        self._linger_ns = linger_ns
        self._control = Control(endpoint, fabric, host)
        self._recordings = Recordings(device.now)
        self._sessions: dict[int, Session] = {}
        """Sessions, by the descriptor of their connection."""
        self._allowed = {os.geteuid()}
        """IDs of the users whose programs may attach."""
        self._waits: dict[int, Callable[[], None]] = {listener.fileno(): self._accept}
        self._poll = select.epoll()
        self._poll.register(listener, select.EPOLLIN)
        self._others = (self._poll.fileno(),)
        self._port_mask = endpoint.port_mask()
        self._idle_since_ns = device.now()

    def run(self) -> None:
        """Serve programs. Return when no program was attached for the linger time."""
        device = self._device
        spin_until_ns = 0
        while True:
            taken = self._take()
            now = device.now()
            if taken:
                spin_until_ns = now + SPIN_NS
            until_ns: int | None = 0
            if now >= spin_until_ns:
                until_ns = self._until_ns(now)
                if until_ns is not None and until_ns <= now and not self._sessions:
                    return
                if self._falls_asleep():
                    until_ns = 0
            readable = device.turn(until_ns, self._others)
            for session in self._sessions.values():
                session.set_asleep(0)
            events = device.events()
            if events:
                self._dispatch(events)
                spin_until_ns = device.now() + SPIN_NS
            if readable:
                self._serve()
                spin_until_ns = device.now() + SPIN_NS
            if self._endpoint.port_mask() != self._port_mask:
                self._ports_changed()
            if self._log is not None:
                self._log.hand_over(now)

    def _until_ns(self, now: int) -> int | None:
        """Return when the service must next write its log or end; None: never.

        The service ends after the linger time, in which no program was attached.
        """
        due = [] if self._sessions else [self._idle_since_ns + self._linger_ns]
        if self._log is not None and (flush := self._log.next_due()) is not None:
            due.append(max(flush, now + 1))
        return min(due, default=None)

    def _falls_asleep(self) -> bool:
        """Prepare to sleep: from now on, programs must ring the doorbell to wake the service.

        Return True if posted work already waits.
        """
        for session in self._sessions.values():
            session.set_asleep(1)
        fence()
        return any(session.has_posted() for session in self._sessions.values())

    def _take(self) -> int:
        """Take the programs' requests, and distribute completions. Return the number of requests."""
        taken = 0
        over = []
        for session in self._sessions.values():
            try:
                taken += session.take()
            except (RingError, OSError) as error:
                LOGGER.warning("session of process %d ends: %s", session.pid, error)
                over.append(session)
        for session in over:
            self._end(session)
        fence()
        for session in self._sessions.values():
            session.notify()
        return taken

    def _dispatch(self, events: list[Event]) -> None:
        sessions = list(self._sessions.values())
        for event in events:
            session = next((each for each in sessions if event.qpn in each.qps), None)
            try:
                if session is not None:
                    qp = session.qps[event.qpn]
                    if isinstance(event, SendCompleted):
                        qp.on_sent(event)
                    elif isinstance(event, ReceiveCompleted):
                        qp.on_received(event)
                    elif isinstance(event, QpError):
                        qp.on_error(event)
                    else:
                        self._control.observe(event)
            except RingError as error:
                assert session is not None
                LOGGER.warning("session of process %d ends: %s", session.pid, error)
                self._end(session)
                sessions.remove(session)
            if self._log is not None:
                self._log.add(event, event.t_ns)

    def _ports_changed(self) -> None:
        """Report to programs that the NIC has lost its last working port, or has a working port again."""
        before, self._port_mask = self._port_mask, self._endpoint.port_mask()
        if bool(before) != bool(self._port_mask):
            for session in self._sessions.values():
                session.raise_event(PORT_ACTIVE if self._port_mask else PORT_ERR, 1)

    def _serve(self) -> None:
        found = [(fd, self._waits.get(fd)) for fd, _ in self._poll.poll(0)]
        for fd, wait in found:
            # An earlier event may have closed the descriptor, and a new session may have the same number.
            if wait is not None and self._waits.get(fd) is wait:
                wait()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid not in self._allowed or len(self._sessions) >= MOST_SESSIONS:
            LOGGER.warning("refused process %d of user %d", pid, uid)
            connection.close()
            return
        pidfd = -1
        try:
            try:
                pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
            except OSError:
                pidfd = os.pidfd_open(pid)  # before Linux 6.5
            session = Session(
                connection, pid, self._endpoint, self._fabric, self._host, self._control, self._recordings
            )
        except OSError as error:
            LOGGER.warning("refused process %d: %s", pid, error)
            if pidfd >= 0:
                os.close(pidfd)
            connection.close()
            return
        fds = connection.fileno(), session.doorbell, pidfd
        self._sessions[fds[0]] = session
        self._waits[fds[0]] = lambda: self._request(session, uid)
        self._waits[fds[1]] = lambda: self._rung(session)
        self._waits[pidfd] = lambda: self._end(session)
        session.pidfd = pidfd
        for fd in fds:
            self._poll.register(fd, select.EPOLLIN)

    def _rung(self, session: Session) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(session.doorbell)

    def _request(self, session: Session, uid: int) -> None:
        try:
            if uid == os.geteuid() and not session.hello_done() and self._administer(session):
                return
            self._control.profiles.set_time(self._device.now())
            session.serve()
        except SessionOverError as over:
            if session.hello_done() and str(over) != "closed":
                LOGGER.warning("session of process %d ends: %s", session.pid, over)
            self._end(session)

    def _administer(self, session: Session) -> bool:
        """Carry out a request of the administrator. Return False if the connection is a program's.

        ALLOW lets programs of another user attach. RECORD passes a file; the programs' requests are recorded
        into it until the connection is closed.
        """
        try:
            message = session.connection.recv(_REQUEST.size, socket.MSG_PEEK)
        except OSError:
            return False
        if len(message) != _REQUEST.size:
            return False
        number, _, user, *_ = _REQUEST.unpack(message)
        if number not in (op("ALLOW"), op("RECORD")):
            return False
        _, fds, _, _ = socket.recv_fds(session.connection, _REQUEST.size, 1)
        if number == op("ALLOW"):
            self._allowed.add(user)
        for fd in fds:
            if number == op("RECORD"):
                self._recordings.begin(session.connection.fileno(), fd)
            else:
                os.close(fd)
        with suppress(OSError):
            session.connection.send(record("reply").pack(0, 0, *[0] * 8, b""))
        return True

    def _end(self, session: Session) -> None:
        fd = session.connection.fileno()
        if self._sessions.pop(fd, None) is None:
            return
        for each in (fd, session.doorbell, session.pidfd):
            self._poll.unregister(each)
            del self._waits[each]
        os.close(session.pidfd)
        self._recordings.end(fd)
        session.close()
        self._idle_since_ns = self._device.now()
