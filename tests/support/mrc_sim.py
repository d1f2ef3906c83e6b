"""Two endpoints in memory (MRC by default) with a virtual clock and a network that can fail in many ways.

Everything depends only on the seed, so a failing run can be repeated exactly.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.rdma.events import Event, SendCompleted
from mrclab.hosts.rdma.frames import BTH_OFFSET, IPV6_LEN, NEXT_IPV6, UDP_OFFSET
from mrclab.hosts.rdma.memory import MemoryRegion
from mrclab.hosts.rdma.paths import Path, PlanePaths, PortAddress, RemotePaths

TRIMMED_LENGTH = BTH_OFFSET + 36


def mac(node: int, port: int) -> bytes:
    return bytes([2, 0, 0, 0, node, port])


def address(node: int, port: int) -> bytes:
    return bytes.fromhex("fd00000000000000") + bytes([0, 0, 0, port, 0, 0, 0, node])


def ev_value(plane: int, path: int) -> int:
    return plane << 16 | 0x4000 | path


def port_addresses(node: int, planes: int) -> list[PortAddress]:
    return [PortAddress(p, mac(node, p), address(node, p)) for p in range(planes)]


def remote_paths(src: int, dst: int, planes: int, paths: int) -> RemotePaths:
    return RemotePaths(
        tuple(
            PlanePaths(
                port=p,
                src_mac=mac(src, p),
                dst_mac=mac(0xF0, p),
                src=address(src, p),
                dst=address(dst, p),
                paths=tuple(
                    Path(
                        ev_value(p, k),
                        bytes.fromhex("5f000000") + bytes([p, 1, p, k, p, 2, p, dst]) + bytes(4),
                    )
                    for k in range(paths)
                ),
            )
            for p in range(planes)
        )
    )


def bth_offset(frame: bytes) -> int:
    """Return the offset of the BTH. RoCEv2 frames may have no outer header."""
    return BTH_OFFSET if frame[20] == NEXT_IPV6 else BTH_OFFSET - IPV6_LEN


def frame_ev(frame: bytes) -> int:
    return int.from_bytes(frame[56:58], "big") << 16 | int.from_bytes(
        frame[UDP_OFFSET : UDP_OFFSET + 2], "big"
    )


def opcode(frame: bytes) -> int:
    return frame[bth_offset(frame)]


def frame_psn(frame: bytes) -> int:
    at = bth_offset(frame) + 9
    return int.from_bytes(frame[at : at + 3], "big")


def is_data(frame: bytes) -> bool:
    """Return whether the frame is a write of MRC or RoCEv2."""
    return 0xC6 <= opcode(frame) <= 0xCB or 0x06 <= opcode(frame) <= 0x0B


def mark_ce(frame: bytes) -> bytes:
    changed = bytearray(frame)
    changed[15] |= 0x30
    return bytes(changed)


def trim(frame: bytes, *, last_hop: bool = False) -> bytes:
    changed = bytearray(frame[:TRIMMED_LENGTH])
    dscp = 16 if last_hop else 12
    changed[14] = 0x60 | dscp >> 2
    changed[15] = changed[15] & 0x3F | (dscp & 3) << 6
    return bytes(changed)


@dataclass
class Network:
    """The network between the endpoints, with its faults. Probabilities are per frame, times in ns."""

    delay_ns: int = 20_000
    jitter_ns: int = 5_000
    """The largest random extra delay of a packet. The delays reorder packets, even those of one path."""
    path_delay_ns: dict[int, int] = field(default_factory=dict)
    """The additional delay of an EV."""
    port_rate_bps: int = 0
    """The rate at which each port sends. 0 means no limit."""
    path_rate_bps: dict[int, int] = field(default_factory=dict)
    """The rate of an EV's path. Each direction has a separate queue."""
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    ce: float = 0.0
    trim: float = 0.0
    trim_last_hop: float = 0.0
    control_loss: float = 0.0
    dead: set[int] = field(default_factory=set)
    """EVs whose packets are all lost, in both directions."""
    dead_planes: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Sighting:
    """A frame that was given to the network."""

    t_ns: int
    source: int
    port: int
    frame: bytes


class Sim:
    """Endpoints 0 and 1 with one or more connections between them."""

    def __init__(
        self,
        seed: int = 1,
        planes: int = 4,
        paths: int = 8,
        config: Any = None,
        network: Network | None = None,
        keep_frames: bool = False,
        rng_class: type[random.Random] = random.Random,
        qps: int = 1,
        endpoint_class: type[Any] = Endpoint,
        batch: int = 32,
    ) -> None:
        self.now_ns = 1_000_000
        self.rng = random.Random(seed)
        self.network = network or Network()
        self.planes, self.paths = planes, paths
        self.ends = [
            endpoint_class(port_addresses(n, planes), config, rng_class(self.rng.getrandbits(64)))
            for n in (0, 1)
        ]
        self.connections = [[end.create_qp() for end in self.ends] for _ in range(qps)]
        """The numbers of the two queue pairs of each connection."""
        self.qpns = self.connections[0]
        for pair in self.connections:
            for me in (0, 1):
                remote = self.ends[1 - me].local_attributes(pair[1 - me])
                self.ends[me].connect(pair[me], remote, remote_paths(me, 1 - me, planes, paths))
        self.events: list[list[Event]] = [[], []]
        self.completed = [0, 0]
        """The number of writes of each end that have completed."""
        self.sightings: list[Sighting] = []
        self.keep_frames = keep_frames
        self.batch = batch
        """The number of frames that an end returns at a time."""
        self.frames = 0
        self.unpredictable: Callable[[int, int, bytes], bool] | None = None
        """An additional rule for losses: (source, port, frame) -> whether to drop the frame."""
        self.paused_until = [0, 0]
        """For each end: the time until which its process is not scheduled. Its frames and timers wait."""
        self._busy_until: dict[tuple[int, str, int], int] = {}
        self._heap: list[tuple[int, int, int, int, bytes]] = []
        self._actions: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, t_ns: int, action: Callable[[], None]) -> None:
        """Call a function at a time of the virtual clock."""
        self._count += 1
        heapq.heappush(self._actions, (t_ns, self._count, action))

    # A subclass may represent packets in another form. Here they are bytes.

    def taken_from(self, end: Any) -> Any:
        return end.frames_to_send(self.now_ns, None, self.batch)

    def hand_over(self, end: Any, port: int, frame: Any) -> None:
        end.receive(port, frame, self.now_ns)

    def ev_of(self, frame: Any) -> int:
        return frame_ev(frame)

    def length_of(self, frame: Any) -> int:
        return len(frame)

    def is_data(self, frame: Any) -> bool:
        return is_data(frame)

    def trimmed(self, frame: Any, *, last_hop: bool) -> Any:
        return trim(frame, last_hop=last_hop)

    def marked(self, frame: Any) -> Any:
        return mark_ce(frame)

    def _put(self, target: int, port: int, frame: bytes) -> None:
        net, rng = self.network, self.rng
        ev = self.ev_of(frame)
        extra = net.path_delay_ns.get(ev, 0)
        leaves = self.now_ns
        for queue, rate in (
            ((target, "port", port), net.port_rate_bps),
            ((target, "path", ev), net.path_rate_bps.get(ev, 0)),
        ):
            if rate:
                leaves = (
                    max(leaves, self._busy_until.get(queue, 0))
                    + self.length_of(frame) * 8_000_000_000 // rate
                )
                self._busy_until[queue] = leaves
        when = leaves + net.delay_ns + extra + (rng.randrange(net.jitter_ns) if net.jitter_ns else 0)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, target, port, frame))

    def _transmit(self, source: int, port: int, frame: bytes) -> None:
        net, rng = self.network, self.rng
        self.frames += 1
        if self.keep_frames:
            self.sightings.append(Sighting(self.now_ns, source, port, frame))
        if self.ev_of(frame) in net.dead or port in net.dead_planes:
            return
        if self.unpredictable is not None and self.unpredictable(source, port, frame):
            return
        if self.is_data(frame):
            if rng.random() < net.loss:
                return
            if rng.random() < net.trim:
                frame = self.trimmed(frame, last_hop=False)
            elif rng.random() < net.trim_last_hop:
                frame = self.trimmed(frame, last_hop=True)
            if rng.random() < net.ce:
                frame = self.marked(frame)
        elif rng.random() < net.control_loss:
            return
        if rng.random() < net.corrupt:
            broken = bytearray(frame)
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            frame = bytes(broken)
        self._put(1 - source, port, frame)
        if rng.random() < net.duplicate:
            self._put(1 - source, port, frame)

    def _drain(self) -> None:
        for n, end in enumerate(self.ends):
            if self.now_ns < self.paused_until[n]:
                continue
            while batch := self.taken_from(end):
                for port, frame in batch:
                    self._transmit(n, port, frame)
            for event in end.events():
                self.events[n].append(event)
                self.completed[n] += isinstance(event, SendCompleted)

    def step(self, until_ns: int) -> bool:
        """Advance to the next event. Return False if there is no event before `until_ns`."""
        self._drain()
        times = [
            max(t, self.paused_until[n])
            for n, end in enumerate(self.ends)
            if (t := end.next_timer()) is not None
        ]
        if self._heap:
            times.append(self._heap[0][0])
        if self._actions:
            times.append(self._actions[0][0])
        if not times or min(times) > until_ns:
            self.now_ns = max(self.now_ns, until_ns)
            return False
        self.now_ns = max(self.now_ns, min(times))
        while self._actions and self._actions[0][0] <= self.now_ns:
            heapq.heappop(self._actions)[2]()
        while self._heap and self._heap[0][0] <= self.now_ns:
            _, _, target, port, frame = heapq.heappop(self._heap)
            if self.now_ns < self.paused_until[target]:
                self._count += 1
                heapq.heappush(self._heap, (self.paused_until[target], self._count, target, port, frame))
                continue
            self.hand_over(self.ends[target], port, frame)
        for n, end in enumerate(self.ends):
            due = end.next_timer()
            if due is not None and due <= self.now_ns and self.now_ns >= self.paused_until[n]:
                end.handle_timer(self.now_ns)
        self._drain()
        return True

    def run(self, duration_ns: int = 5_000_000_000, until: Callable[[], bool] | None = None) -> None:
        """Run for a time, or until a condition is true."""
        end_ns = self.now_ns + duration_ns
        while not (until is not None and until()):
            if not self.step(end_ns):
                break
        self._drain()

    def of(self, end: int, kind: type[Event]) -> list[Event]:
        """Return the events of one kind at one end."""
        return [event for event in self.events[end] if isinstance(event, kind)]


def stream(sim: Sim, lengths: list[int], *, source: int = 0, imm: bool = True) -> tuple[bytes, MemoryRegion]:
    """Post messages of these lengths from one end. Return the data and the region to which it is written."""
    data = sim.rng.randbytes(sum(lengths))
    region = sim.ends[1 - source].register_memory(bytearray(len(data)))
    at = 0
    for number, length in enumerate(lengths):
        sim.ends[source].post_write(
            sim.qpns[source],
            number,
            memoryview(data)[at : at + length],
            region.address + at,
            region.rkey,
            imm=number if imm else None,
        )
        at += length
    return data, region


def finish(sim: Sim, count: int, *, source: int = 0, duration_ns: int = 60_000_000_000) -> None:
    """Run until one end has completed ``count`` messages, and then for 50 ms more."""
    sim.run(duration_ns, until=lambda: sim.completed[source] >= count)
    sim.run(50_000_000)
