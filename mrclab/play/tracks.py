"""Record every frame of a simulated network, link by link, and compute the four times of a fault.

A recorder at each NIC sees frames that are sent. A tap in front of each node sees frames that arrive. If a
frame is much later than expected, it counts as lost.

The times have the same meaning as in experiments (`mrclab.experiments.measure.recovery`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.hosts.mrc.wire import Opcode
from mrclab.hosts.rdma.frames import BTH_OFFSET, NEXT_IPV6, PLAIN_BTH_OFFSET
from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.network import Network
from mrclab.simulator.nic import Nic
from mrclab.simulator.port import Node, Packet, Port
from mrclab.simulator.switch import NEXT_HEADER, destination
from mrclab.topologies import Path

DATA, AGAIN, ANSWER, PROBE = range(4)
"""Kinds of frames: data, data sent again, acknowledgements and other control frames, path probes."""
ON_ITS_WAY, ARRIVED, LOST, TRIMMED = range(4)
"""The possible states of a frame."""
NEVER: Final = 1 << 62
KEPT_TRACKS: Final = 30_000
_FIRST_WRITE, _LAST_WRITE = 6, 11
"""The range of a BTH opcode's lower five bits in packets with data, in MRC and in RoCEv2."""


class Track:
    """One frame on its way from a NIC to a NIC."""

    __slots__ = (
        "arrived_ns",
        "due_ps",
        "fate",
        "frame",
        "key",
        "kind",
        "number",
        "path",
        "place",
        "source",
        "t_ns",
    )

    def __init__(self, number: int, frame: bytes, source: str, t_ns: int) -> None:
        self.number = number
        self.frame: bytes | None = frame
        """The bytes that the NIC sent; None after the frame has arrived or is lost."""
        self.source = source
        self.t_ns = t_ns
        """The time at which the NIC sent the frame."""
        self.kind = DATA
        self.key = (0, 0)
        """Queue pair and PSN. A packet that is sent again has the same numbers."""
        self.path = -1
        """The index of the frame's path, or -1 if the frame carries no data or its path is unknown."""
        self.fate = ON_ITS_WAY
        self.arrived_ns = NEVER
        self.due_ps = 0
        """The time at which the frame should arrive at the end of its present link."""
        self.place = -1
        """The frame's present or last link: twice the link's index, plus 1 if it leads away from hosts."""


class Book:
    """The tracks of the frames of one network, and the new rows of `moves` and `ends` for the page."""

    def __init__(
        self, network: Network, nics: Mapping[str, Nic], paths: Mapping[tuple[str, bytes], int]
    ) -> None:
        """Record all frames of a network to which all NICs are attached.

        ``paths`` has the number of each path. Its keys are (sending host, outer destination address).
        """
        self.network = network
        self.tracks: deque[Track] = deque()
        self.first: dict[tuple[int, int], int] = {}
        """For each queue pair and PSN, the time at which the complete data of this packet first arrived."""
        self.moves: list[list[int]] = []
        """[track, place, start ns, end ns, kind] of each link that a frame enters."""
        self.ends: list[list[int]] = []
        """[track, ns, fate, place] of each lost or trimmed frame."""
        self._paths = paths
        self._sent: set[tuple[int, int]] = set()
        self._flying: dict[int, Track] = {}
        """The tracks of moving frames, by the ``id`` of the frame. All nodes forward the same object."""
        self._count = 0
        self._places: dict[int, int] = {}
        """The place of each port, by the ``id`` of the port."""
        frame_bits = 8 * 4300 * 10**12
        self._slack_ps = 3 * frame_bits // min(port.rate_bps for port in network.links.values())
        """The longest time, ps, by which a frame is late because it waits for frames of a higher class."""
        for index, link in enumerate(network.fabric.links):
            up, down = network.links[link.a.node, link.b.node], network.links[link.b.node, link.a.node]
            for way, port in ((1, up), (0, down)):
                self._places[id(port)] = 2 * index + way
                if port.peer is not None:
                    port.peer = _Tap(self, port.peer)
        for name, nic in nics.items():
            nic.recorder = _AtNic(self, name, nic)

    def begin(self, nic: Nic, host: str, plane: int, frame: bytes, now_ns: int) -> None:
        """Record a frame that a NIC sends."""
        track = Track(self._count, frame, host, now_ns)
        self._count += 1
        bth = BTH_OFFSET if frame[NEXT_HEADER] == NEXT_IPV6 else PLAIN_BTH_OFFSET
        opcode = frame[bth]
        if _FIRST_WRITE <= opcode & 0x1F <= _LAST_WRITE:
            key = track.key = (
                frame[bth + 5] << 16 | frame[bth + 6] << 8 | frame[bth + 7],
                frame[bth + 9] << 16 | frame[bth + 10] << 8 | frame[bth + 11],
            )
            track.path = self._paths.get((host, destination(frame)), -1)
            if key in self._sent:
                track.kind = AGAIN
            else:
                self._sent.add(key)
            self.tracks.append(track)
            if len(self.tracks) > KEPT_TRACKS:
                old = self.tracks.popleft()
                self.first.pop(old.key, None)
                self._sent.discard(old.key)
        else:
            track.kind = PROBE if opcode == Opcode.PROBE_REQUEST else ANSWER
        port = nic.ports[plane]
        begin = max(self.network.clock.now_ps, port.busy_until_ps())
        duration = 8 * len(frame) * 10**12 // port.rate_bps
        self._flying[id(frame)] = track
        self._enter(track, port, begin, begin + duration)

    def _enter(self, track: Track, port: Port, begin_ps: int, leaves_ps: int) -> None:
        track.due_ps = leaves_ps + port.delay_ps
        track.place = self._places[id(port)]
        self.moves.append(
            [track.number, track.place, begin_ps // PS_PER_NS, track.due_ps // PS_PER_NS, track.kind]
        )

    def pass_on(self, packet: Packet, node: Node) -> None:
        """Deliver a frame to a node. Record the frame's next link, or that it has arrived or is lost."""
        track = self._flying.get(id(packet.frame))
        if track is None or track.frame is not packet.frame:
            node.arrive(packet)
            return
        before = packet.port
        assert before is not None
        if isinstance(node, Nic):
            node.arrive(packet)
            heard = node.up[before.peer_port] and packet.corrupt < 0
            self._end(track, (TRIMMED if packet.cut_dscp >= 0 else ARRIVED) if heard else LOST)
            return
        whole = packet.cut_dscp < 0
        node.arrive(packet)
        after = packet.port
        if after is before or after is None:
            self._end(track, LOST)
            return
        if whole and packet.cut_dscp >= 0:
            self.ends.append([track.number, self.network.clock.now_ns, TRIMMED, track.place])
        self._enter(track, after, packet.leaves_ps - packet.duration_ps, packet.leaves_ps)

    def _end(self, track: Track, fate: int) -> None:
        assert track.frame is not None
        now_ns = self.network.clock.now_ns
        del self._flying[id(track.frame)]
        track.frame = None
        track.fate = fate
        if fate == ARRIVED:
            track.arrived_ns = now_ns
            if track.kind in (DATA, AGAIN):
                self.first.setdefault(track.key, now_ns)
        elif fate == LOST:
            self.ends.append([track.number, min(now_ns, track.due_ps // PS_PER_NS), LOST, track.place])

    def settle(self) -> None:
        """Mark a frame as lost if it should have arrived more than ``_slack_ps`` ago."""
        limit_ps = self.network.clock.now_ps - self._slack_ps
        for track in [track for track in self._flying.values() if track.due_ps < limit_ps]:
            self._end(track, LOST)

    def take(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return the rows of `moves` and `ends` since the last call."""
        self.settle()
        found = self.moves, self.ends
        self.moves, self.ends = [], []
        return found


class _Tap(Node):
    """A recorder in front of a node. It records the frames that arrive, and passes them to the node."""

    def __init__(self, book: Book, node: Node) -> None:
        self._book = book
        self._node = node

    def arrive(self, packet: Packet) -> None:
        """Record a packet and pass it on to the node."""
        self._book.pass_on(packet, self._node)


class _AtNic:
    """A recorder for the frames that a NIC sends."""

    def __init__(self, book: Book, host: str, nic: Nic) -> None:
        self._book = book
        self._host = host
        self._nic = nic

    def note(self, now_ns: int, port: int, frame: bytes, outgoing: bool) -> None:
        """Record a frame if it is outgoing."""
        if outgoing:
            self._book.begin(self._nic, self._host, port, frame, now_ns)


RULE: Final = "every frame of the simulation; paths by the frames' segment lists"
STAYS: Final = "it has one path, and stays on it"
KEEPS: Final = "it goes on using paths that lose packets"
MOVES: Final = "its failed port's messages are sent again on another port"
STILL_USED: Final = "a path that the fault broke is still in use"
NOT_DETECTED: Final = "no path that the fault broke has been retired"
NONE_SENT: Final = "nothing was sent where it broke the fabric"
NONE_LOST: Final = "nothing was lost where it broke the fabric"


def times_of(
    tracks: Iterable[Track],
    fault: FaultRecord,
    paths: Sequence[Path],
    first: Mapping[tuple[int, int], int],
    retired: Sequence[tuple[int, int]],
    *,
    flight_ns: int,
    now_ns: int,
    retires: bool,
    stays: str = STAYS,
    delivered: Callable[[int], int] | None = None,
) -> dict[str, Any]:
    """Return the times of a fault, us, for one transport, as a dictionary for the page's card.

    ``tracks`` are the transport's data frames, oldest first. ``first`` has the first complete arrival of each
    packet. ``retired`` has the retired paths as (ns, EV). If a transport never retires a path, ``retires`` is
    false and ``stays`` is the reason. ``delivered`` is for transports that send lost messages again on other
    queue pairs. For a time, it returns the time at which all messages posted until then had arrived.
    """
    made, mended = fault.t_before_ns, fault.restore_before_ns or NEVER
    broken = {number for number, path in enumerate(paths) if fault.breaks(path)}
    met = [t for t in tracks if t.path in broken and made - flight_ns <= t.t_ns < mended]
    lost = [t for t in met if t.fate in (LOST, TRIMMED) and first.get(t.key, NEVER) > t.t_ns]
    found: dict[str, Any] = {"felt": bool(lost), "rule": RULE, "lost": len({t.key for t in lost})}
    if not lost:
        why = NONE_LOST if any(t.t_ns >= made for t in met) else NONE_SENT
        for name in ("first_loss", "detected", "rerouted", "recovered", "recovered_since_loss"):
            found |= {f"{name}_us": None, f"{name}_why": why}
        return found
    bad_evs = {paths[number].ev for number in broken}
    gone = [(t_ns, ev) for t_ns, ev in retired if made <= t_ns < mended and ev in bad_evs]
    first_ns = max(lost[0].t_ns - made, 0)
    detected_ns = gone[0][0] - made if gone else None
    rerouted_ns = None
    if retires:
        onto = [t for t in met if t.t_ns >= made]
        used = {paths[t.path].ev for t in onto}
        if used <= {ev for _, ev in gone}:
            rerouted_ns = max((t.t_ns - made for t in onto), default=0)
    whole = [first.get(t.key, NEVER) if delivered is None else delivered(t.t_ns) for t in lost]
    recovered_ns = None if NEVER in whole else max(max(whole) - made, detected_ns or 0)
    if retires and detected_ns is None and mended == NEVER and now_ns - made < flight_ns:
        recovered_ns = None
    for name, value, why in (
        ("first_loss", first_ns, ""),
        ("detected", detected_ns, NOT_DETECTED if retires else stays),
        ("rerouted", rerouted_ns, STILL_USED if retires else stays),
        ("recovered", recovered_ns, f"{whole.count(NEVER)} of {len(whole)} lost packets are still missing"),
    ):
        found[f"{name}_us"] = None if value is None else round(value / 1e3, 3)
        if value is None:
            found[f"{name}_why"] = why
    since = None if recovered_ns is None else round((recovered_ns - first_ns) / 1e3, 3)
    found["recovered_since_loss_us"] = since
    return found


def packets_around(
    tracks: Iterable[Track],
    fault: FaultRecord,
    paths: Sequence[Path],
    *,
    before_ns: int,
    until_ns: int,
    most: int = 1500,
) -> dict[str, Any]:
    """Return the transmissions around a fault, with rows as in `mrclab.live.card.packets_around`."""
    zero = fault.t_before_ns
    rows = []
    for t in tracks:
        if not zero - before_ns <= t.t_ns <= zero + until_ns or t.path < 0:
            continue
        fate = {LOST: 1, TRIMMED: 2}.get(t.fate, 0)
        arrived = None if t.arrived_ns == NEVER else round((t.arrived_ns - zero) / 1e3, 3)
        rows.append([round((t.t_ns - zero) / 1e3, 3), t.path, t.key[1], fate, int(t.kind == 1), arrived])
    names = [f"plane {p.plane}" + ("" if p.t1 is None else f", T1 {p.t1}") for p in paths]
    broken = [number for number, path in enumerate(paths) if fault.breaks(path)]
    links = [list(path.links) for path in paths]
    return {"paths": names, "links": links, "broken": broken, "rows": rows[:most]}
