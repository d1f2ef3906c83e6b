"""The control API of a NIC: one object, which all controllers (programs that control the NIC) share.

A controller needs CAP_NET_ADMIN. When a controller ends, its event queues and probes are removed, but
profiles stay.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.events import EvProbed, EvRestored, EvRetired
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.profile import MOST_EVS, MOST_PROFILES, EvEvent
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.service import addresses
from mrclab.hosts.service.control import abi
from mrclab.hosts.service.control.abi import FormatMode, Mode, Option
from mrclab.hosts.service.control.evs import EvProfiles
from mrclab.hosts.service.control.formats import CcProfiles, ControlError, Formats, invalid
from mrclab.hosts.service.shared_memory import CONTROLS, CompletionRing, ProgramMemory
from mrclab.topologies import Fabric

CAP_NET_ADMIN = 12
PROTOCOL_VERSIONS = 1 << 0
MOST_WIDTH_BITS = 128
OPTIONS = Option.MODIFY_ONLINE_EVS | Option.EV_EVENTS | Option.EXACT_DROPS | Option.PROBES
MOST_PROBES = 1024
"""Largest number of probes in a batch, and of batches of a controller."""
EV_PROBE = 0
DISABLED, ENABLED = 0, 1


def may_control(pid: int) -> bool:
    """Return whether a process has CAP_NET_ADMIN, in this process's user namespace."""
    try:
        if not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")):
            return False
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            effective = next(line for line in status if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(int(effective.split()[1], 16) >> CAP_NET_ADMIN & 1)


@dataclass
class EventQueue:
    """A queue of events about EVs, which one controller reads."""

    ring: CompletionRing
    waiting: deque[tuple[EvEvent, int]] = field(default_factory=deque)
    """Pairs of an event and the number of events that were dropped before this event."""
    dropped: int = 0

    def add(self, event: EvEvent) -> None:
        """Store an event, or drop it if the queue is full."""
        self.dropped += event.dropped
        if len(self.waiting) >= self.ring.slots:
            self.dropped += 1
            return
        self.waiting.append((event, self.dropped))
        self.dropped = 0
        self.ring.pushed = True


@dataclass
class Batch:
    """The probes of one call. ``asked`` maps the endpoint's id of a probe to the controller's id."""

    asked: dict[int, int] = field(default_factory=dict)
    answers: list[bytes] = field(default_factory=list)
    open: int = 0


class Caller:
    """A program that controls the NIC."""

    def __init__(self, pid: int, memory: ProgramMemory, rings: Mapping[int, CompletionRing]) -> None:
        self.pid, self.memory, self.rings = pid, memory, rings
        self.queues: dict[int, EventQueue] = {}
        """Event queues by the number of their completion queue."""
        self.batches: dict[int, Batch] = {}

    def queue(self, number: int) -> EventQueue:
        """Return an event queue. Raise EINVAL if it no longer exists."""
        queue = self.queues.get(number)
        if queue is None or self.rings.get(number) is not queue.ring:
            self.queues.pop(number, None)
            raise invalid("no such queue of events")
        return queue


Operation = Callable[[Caller, tuple[int, ...]], tuple[int, ...]]
"""The function for a request. It gets the controller and the arguments, and returns the answer's values."""


def _on_structure(work: Callable[[ProgramMemory, int, int, int], object]) -> Operation:
    """Return the operation for a request with these arguments: profile, address of a structure, and mask."""
    return lambda caller, a: (int(bool(work(caller.memory, a[0], a[1], a[2]))),)


class Control:
    """The control API of one NIC."""

    def __init__(self, endpoint: Endpoint, fabric: Fabric, host: str) -> None:
        self._endpoint, self._fabric, self._host = endpoint, fabric, host
        self.profiles = NicProfiles(endpoint)
        self._formats = Formats(self.profiles)
        self._evs = EvProfiles(endpoint, self.profiles, self._formats)
        self._ccs = CcProfiles(self.profiles)
        self._callers: list[Caller] = []
        self._disabled: set[int] = set()
        self._next_batch = 1
        self._operations: Mapping[str, Operation] = {
            "QUERY_DEVICE": self._query_device,
            "QUERY_PORT": self._query_port,
            "MODIFY_PORT": self._modify_port,
            "QUERY_FORMAT": _on_structure(self._formats.query),
            "MODIFY_FORMAT": _on_structure(self._formats.modify),
            "QUERY_EVS": _on_structure(self._evs.query),
            "MODIFY_EVS": _on_structure(self._evs.modify),
            "QUERY_CC": _on_structure(self._ccs.query),
            "MODIFY_CC": _on_structure(self._ccs.modify),
            "WATCH_EVS": self._watch,
            "POLL_EVS": self._poll,
            "PROBE": self._probe,
            "PROBED": self._probed,
            "FORGET_PROBES": self._forget_probes,
        }

    def join(self, caller: Caller) -> None:
        """Add a controller."""
        self._callers.append(caller)

    def leave(self, caller: Caller) -> None:
        """Remove a controller that has ended."""
        if caller in self._callers:
            self._callers.remove(caller)

    def call(self, caller: Caller, number: int, arguments: tuple[int, ...]) -> tuple[int, ...]:
        """Carry out a request and return the values of its answer. Raise OSError with the reason."""
        if not 1 <= number <= len(CONTROLS):
            raise invalid(f"no request {number}")
        if not may_control(caller.pid):
            raise ControlError(errno.EPERM, "it needs CAP_NET_ADMIN")
        return self._operations[CONTROLS[number - 1]](caller, arguments)

    def observe(self, event: Event) -> None:
        """Pass an event of the endpoint to the controllers that wait for it."""
        if isinstance(event, EvRetired | EvRestored):
            self.profiles.observe(event)
            for profile in self.profiles.evs.values():
                while (found := profile.next_event()) is not None:
                    for caller in self._callers:
                        for queue in caller.queues.values():
                            queue.add(found)
        elif isinstance(event, EvProbed):
            for caller in self._callers:
                for batch in caller.batches.values():
                    self._answered(batch, event)

    def _query_device(self, caller: Caller, a: tuple[int, ...]) -> tuple[int, ...]:
        known = self.profiles.evs.values()
        most = MOST_PROFILES * MOST_EVS
        srv6 = self._endpoint.config.ev_mode == "srv6"
        values = (
            *(PROTOCOL_VERSIONS, MOST_PROFILES, MOST_PROFILES, most, most - sum(p.count for p in known)),
            *(MOST_EVS, 1, MOST_WIDTH_BITS, FormatMode.SRV6 if srv6 else FormatMode.STEV),
            *(Mode.AUTO | Mode.EXPLICIT | Mode.GENERATED, 0, MOST_PROFILES, 0),
            *(sum(1 << port.port + 1 for port in self._endpoint.ports), OPTIONS),
        )
        caller.memory.write(a[0], abi.DEVICE.pack(*values))
        return ()

    def _port(self, number: int) -> int:
        if number - 1 not in {port.port for port in self._endpoint.ports}:
            raise invalid(f"no port {number}")
        return number - 1

    def _query_port(self, caller: Caller, a: tuple[int, ...]) -> tuple[int, ...]:
        port = self._port(a[0])
        if a[2] & 1:
            caller.memory.write(a[1], abi.PORT.pack(DISABLED if port in self._disabled else ENABLED))
        return ()

    def _modify_port(self, caller: Caller, a: tuple[int, ...]) -> tuple[int, ...]:
        port = self._port(a[0])
        if a[2] & 1:
            (admin,) = abi.PORT.unpack(caller.memory.read(a[1], abi.PORT.size))
            if admin not in (DISABLED, ENABLED):
                raise invalid(f"no state {admin} of a port")
            (self._disabled.discard if admin else self._disabled.add)(port)
            self._endpoint.set_port_state(port, bool(admin), self._endpoint.now_ns)
        return ()

    def _watch(self, caller: Caller, a: tuple[int, ...]) -> tuple[int, ...]:
        caller.queues[a[0]] = EventQueue(caller.rings[a[0]])
        return ()

    def _poll(self, caller: Caller, a: tuple[int, ...]) -> tuple[int, ...]:
        queue = caller.queue(a[0])
        count = min(a[2], len(queue.waiting))
        packed = []
        for event, dropped in list(queue.waiting)[:count]:
            ev = abi.ev_array(event.entry.ev, self._evs.bits(event.profile))
            packed.append(abi.EVENT.pack(event.profile, ev, event.entry.port, dropped, event.state))
        caller.memory.write(a[1], b"".join(packed))
        for _ in range(count):
            queue.waiting.popleft()
        return (count,)

    def _probe(self, caller: Caller, a: tuple[int, ...]) -> tuple[int, ...]:
        dscp, operation, address, count, timeout_ns = a[:5]
        if operation != EV_PROBE or dscp not in (0, self._endpoint.config.dscp.control):
            raise ControlError(errno.EOPNOTSUPP, "probes of EVs, with the DSCP of control packets")
        if not 1 <= count <= MOST_PROBES or len(caller.batches) >= MOST_PROBES:
            raise ControlError(errno.ENOMEM, f"at most {MOST_PROBES} probes")
        if timeout_ns >> 32:
            raise invalid("a timeout has 32 bits")
        data = caller.memory.read(address, count * abi.REQUEST.size)
        requests = list(abi.REQUEST.iter_unpack(data))
        own = addresses.gids(self._fabric, self._host)
        if any(sgid not in own for _, sgid, *_ in requests):
            raise invalid("the source is another host's GID")
        batch = Batch(open=count)
        for number, _, dgid, mode, ev, port, _ in requests:
            found = self._ev(dgid, mode, ev, self._port(port))
            if found is not None:
                qpn, value = found
                asked = self._endpoint.probe_ev(qpn, value, self._endpoint.now_ns, timeout_ns)
                batch.asked[asked] = number
        self._next_batch += 1
        caller.batches[self._next_batch] = batch
        return (self._next_batch,)

    def _ev(self, gid: bytes, mode: int, ev: bytes, plane: int) -> tuple[int, int] | None:
        """Return the queue pair and the EV for a probe, or None if no queue pair to the host has this EV."""
        peer = addresses.host_of_gid(self._fabric, gid)
        if peer is None:
            raise invalid("the GID names no host of the fabric")
        theirs = {port.address.packed for port in self._fabric.host(peer).ports}
        for qpn, qp in self._endpoint.qps.items():
            if not qp.connected or not theirs & qp.peers:
                continue
            for value, known in qp.evs.by_value.items():
                stev = mode == FormatMode.STEV and ev == abi.ev_array(value, 32)
                srv6 = mode == FormatMode.SRV6 and known.path.outer_dst == ev[:16]
                if known.port == plane and (stev or srv6):
                    return qpn, value
        return None

    def _answered(self, batch: Batch, event: EvProbed) -> None:
        number = batch.asked.pop(event.request_id, None)
        if number is None or event.rtt_ns is None:
            return
        adjusted = self._endpoint.config.reading.service_time
        rtt_ns = min(event.rtt_ns, 0xFFFFFFFF)
        batch.answers.append(abi.RESPONSE.pack(number, event.plane + 1, rtt_ns, adjusted))

    def _probed(self, caller: Caller, a: tuple[int, ...]) -> tuple[int, ...]:
        """Write the answers that have arrived into the caller's memory.

        Return the number of answers and the number of unanswered probes.
        """
        batch = caller.batches[a[0]]
        caller.memory.write(a[1], b"".join(batch.answers))
        return len(batch.answers), batch.open - len(batch.answers)

    def _forget_probes(self, caller: Caller, a: tuple[int, ...]) -> tuple[int, ...]:
        caller.batches.pop(a[0], None)
        return ()
