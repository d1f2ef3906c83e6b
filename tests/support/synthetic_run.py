"""Captures and logs made of packets that a test chooses, so that it can compute every result to the ns."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

from mrclab.experiments.measure.events import Event, EventLog
from mrclab.experiments.measure.faults import FaultRecord, save_faults
from mrclab.experiments.measure.recording import OffsetSample
from mrclab.hosts import eventlog
from mrclab.topologies import Fabric, Path

# The made-up machine's realtime clock minus its monotonic clock. All digits differ, to reveal rounding.
OFFSET_NS = 1_793_000_000_123_456_789
ONE_WAY_NS = 40_000
SACK_NS = 1_000  # the time from a packet's arrival to its SACK
RTT_NS = 2 * ONE_WAY_NS + SACK_NS
PAYLOAD = 1000
QP = 0x11

WRITE_ONLY_IMM, SACK, PROBE = 0xCB, 0xDC, 0xDE


def ipv6(
    src: int, dst: int, body: bytes, *, next_header: int, flow: int = 0, dscp: int = 0, ecn: int = 0
) -> bytes:
    word = 6 << 28 | dscp << 22 | ecn << 20 | flow
    return struct.pack("!IHBB", word, len(body), next_header, 64) + src.to_bytes(16) + dst.to_bytes(16) + body


@dataclass(frozen=True)
class Mrc:
    """One MRC packet. If ``outer`` is None, it has no outer header. ``trim`` cuts the payload off."""

    opcode: int = WRITE_ONLY_IMM
    psn: int = 0
    ev: int = 0xC000
    rtx: bool = False
    payload: int = PAYLOAD
    address: int = 0x1000
    outer: int | None = None
    src: int = 1
    dst: int = 2
    qp: int = QP
    dport: int = 4791
    stamped: bool = False
    trim: bool = False
    dscp: int = 0
    ecn: int = 0
    echo_ev: int = 0
    cack: int = 0
    ack_offset: int = 0
    probe_reply: bool = False
    srh: bytes = b""

    def frame(self) -> bytes:
        """Return the bytes from the first IPv6 header on."""
        flags = self.rtx << 29 | self.stamped << 28 | self.psn
        body = struct.pack("!BBHII", self.opcode, 0, 0xFFFF, self.qp, flags)
        if 0xC6 <= self.opcode <= 0xCB:
            body += bytes(4) + bytes(4 * self.stamped) + struct.pack("!QII", self.address, 7, self.payload)
            if self.opcode in (0xC9, 0xCB):
                body += bytes(4)
            body += bytes(self.payload)
        elif self.opcode == SACK:
            body += struct.pack(
                "!BBhIII", 0, 2 * self.probe_reply, self.ack_offset, self.echo_ev, 0, self.cack
            )
            body += bytes(20)
        body += bytes(4)  # ICRC
        udp = struct.pack("!HHHH", self.ev & 0xFFFF, self.dport, 8 + len(body), 0) + body
        packet = ipv6(
            self.src, self.dst, udp, next_header=17, flow=self.ev >> 16, dscp=self.dscp, ecn=self.ecn
        )
        if self.outer is not None:
            packet = ipv6(
                self.src,
                self.outer,
                self.srh + packet,
                next_header=43 if self.srh else 41,
                dscp=self.dscp,
                ecn=self.ecn,
            )
        return packet[: len(packet) - self.payload - 4] if self.trim else packet


@dataclass(frozen=True)
class Record:
    """A packet in a capture: its monotonic time, and whether it was sent or received."""

    t_ns: int
    packet: Mrc
    outgoing: bool
    ifindex: int = 2

    def sll2(self) -> bytes:
        kind = 4 if self.outgoing else 0
        return struct.pack("!HHIHBB8s", 0x86DD, 0, self.ifindex, 1, kind, 6, bytes(8)) + self.packet.frame()


def pcap(
    records: Iterable[Record], *, snaplen: int = 192, offset_ns: int = OFFSET_NS, order: str = "<"
) -> bytes:
    """Return a capture of link type LINUX_SLL2, with timestamps of the realtime clock in nanoseconds."""
    out = [struct.pack(order + "IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snaplen, 276)]
    for record in records:
        frame = record.sll2()
        seconds, ns = divmod(record.t_ns + offset_ns, 10**9)
        out += [
            struct.pack(order + "IIII", seconds, ns, min(len(frame), snaplen), len(frame)),
            frame[:snaplen],
        ]
    return b"".join(out)


def ends(fabric: Fabric, path: Path) -> tuple[int, int]:
    """Return the inner source and destination address of packets on a path."""
    src, dst = fabric.host(path.src), fabric.host(path.dst)
    return int(src.ports[path.plane].address), int(dst.ports[path.plane].address)


@dataclass
class Wire:
    """Two captures of packets that the test sends one by one."""

    fabric: Fabric
    sender: list[Record] = field(default_factory=list)
    receiver: list[Record] = field(default_factory=list)

    def send(
        self,
        t_ns: int,
        psn: int,
        path: Path,
        *,
        rtx: bool = False,
        arrives_ns: int | None = -1,
        trim: bool = False,
        sack: bool = True,
        qp: int = QP,
        ev: int | None = None,
        flipped: int = 0,
    ) -> None:
        """Send data. ``arrives_ns`` is -1 for ``t_ns + ONE_WAY_NS``, or None if the packet is lost."""
        src, dst = ends(self.fabric, path)
        ev = path.ev if ev is None else ev
        packet = Mrc(
            psn=psn % (1 << 24), ev=ev, rtx=rtx, address=psn * PAYLOAD,
            outer=int(path.outer_dst), src=src, dst=dst, qp=qp,
        )  # fmt: skip
        self.sender.append(Record(t_ns, packet, outgoing=True))
        if arrives_ns is None:
            return
        arrives = t_ns + ONE_WAY_NS if arrives_ns == -1 else arrives_ns
        left = self.fabric.plan.container([path.segments[-1]])
        there = replace(packet, psn=packet.psn ^ flipped, outer=int(left), trim=trim)
        self.receiver.append(Record(arrives, there, outgoing=False))
        if sack and not flipped:
            back = Mrc(
                opcode=SACK, ev=ev, outer=1, src=dst, dst=src, qp=QP + 1, echo_ev=ev,
                cack=(psn - 3) % (1 << 24), ack_offset=3,
            )  # fmt: skip
            self.receiver.append(Record(arrives + SACK_NS, back, outgoing=True))
            self.sender.append(Record(arrives + SACK_NS + ONE_WAY_NS, back, outgoing=False))

    def captures(self) -> tuple[bytes, bytes]:
        """Return both capture files, each in order of time."""
        sender, receiver = (sorted(side, key=lambda r: r.t_ns) for side in (self.sender, self.receiver))
        return pcap(sender), pcap(receiver)


@dataclass(frozen=True)
class Answer:
    """The values that the analysis must find for one fault. Times are in ns since the fault."""

    detect: int
    switch: int
    whole: int
    lost: int


def log_text(events: Iterable[Event], reference_ns: int = 1_000) -> str:
    """Return an event log as agents write it. All events have the category ``new``."""
    lines = [eventlog.header("test", "h0", reference_ns)]
    for event in events:
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in event.name).lstrip("_")
        time_ms = (event.t_ns - reference_ns) / 1e6
        lines.append({"time": time_ms, "name": f"mrc:new:{words}", "data": dict(event.fields)})
    return "".join(json.dumps(line) + "\n" for line in lines)


@dataclass(frozen=True)
class Story:
    """A made-up run, and the correct results of its analysis."""

    wire: Wire
    events: EventLog
    receiver_events: EventLog
    faults: tuple[FaultRecord, ...]
    answers: tuple[Answer, ...]
    offsets: tuple[OffsetSample, ...]

    def save(self, directory: FilePath) -> None:
        """Write the run's directory as the recorder, the agents and the runner do."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in zip(("sender", "receiver"), self.wire.captures(), strict=True):
            (directory / f"{name}.pcap").write_bytes(data)
        for name, log in (("sender", self.events), ("receiver", self.receiver_events)):
            (directory / f"{name}.jsonl").write_text(log_text(log.events))
        save_faults(directory / "faults.json", self.faults)
        recording = {
            "captures": {n: {"captured": 1, "received": 1, "dropped": 0} for n in ("sender", "receiver")},
            "clock_offsets": [sample.to_dict() for sample in self.offsets],
            "loads": [],
        }
        (directory / "recording.json").write_text(json.dumps(recording))


def tell(
    fabric: Fabric,
    links: Sequence[str],
    *,
    interval_ns: int = 100_000,
    hold_ns: int = 100_000_000,
    period_ns: int = 260_000_000,
    start_ns: int = 5_000_000_000,
    reaction_ns: int = 220_000,
    first_psn: int = (1 << 24) - 500,
    seed: int = 7,
) -> Story:
    """Return a run of paced packets from the first to the last rack. Each link is cut and restored in turn.

    The sender notices a loss ``reaction_ns`` after the first lost packet, and retires the EV. It sends the
    lost packets again at once on other paths, 2 us apart. A probe restores the EV 30 ms after the repair.
    """
    chooser = random.Random(seed)
    src = fabric.hosts[0].name
    dst = next(host.name for host in fabric.hosts if host.rack == fabric.hosts[-1].rack)
    paths = fabric.paths(src, dst)
    wire, events, done = Wire(fabric), [], []
    faults = []
    for i, link in enumerate(links):
        cut = start_ns + 100_000_000 + i * period_ns
        heal = cut + hold_ns
        faults.append(FaultRecord("blackhole", link, cut, cut + 4_000, heal, heal + 4_000))
    broken = [{path for path in paths if fault.breaks(path)} for fault in faults]
    state: dict[int, list[tuple[int, int]]] = {i: [] for i in range(len(faults))}
    detected: dict[int, int] = {}
    switched: dict[int, int] = {}
    whole: dict[int, int] = {}
    psn, t = first_psn, start_ns
    end = faults[-1].t_before_ns + period_ns
    while t < end:
        for i, fault in enumerate(faults):
            if i in detected or not state[i] or t < state[i][0][0] + reaction_ns:
                continue
            detected[i] = moment = state[i][0][0] + reaction_ns
            for path in paths:
                if path in broken[i]:
                    events.append(
                        Event(moment, "EvRetired", {"ev": path.ev, "plane": path.plane, "reason": "loss"})
                    )
                    healed = fault.restore_after_ns + 30_000_000
                    events.append(Event(healed, "EvRestored", {"ev": path.ev, "plane": path.plane}))
            others = [path for path in paths if path not in broken[i]]
            for k, (_, lost) in enumerate(state[i]):
                again = moment + 2_000 * (k + 1)
                path = chooser.choice(others)
                wire.send(again, lost, path, rtx=True)
                events.append(Event(again, "Retransmitted", {"psn": lost % (1 << 24), "new_ev": path.ev}))
                whole[i] = again + ONE_WAY_NS
        out = [
            broken[i] for i, f in enumerate(faults) if i in detected and t < f.restore_after_ns + 30_000_000
        ]
        path = chooser.choice([path for path in paths if not any(path in lost for lost in out)])
        hit = next(
            (
                i
                for i, f in enumerate(faults)
                if f.t_before_ns <= t < f.restore_after_ns and path in broken[i]
            ),
            None,
        )
        if hit is None:
            wire.send(t, psn, path)
            done.append(Event(t + ONE_WAY_NS, "ReceiveCompleted", {"wr_id": psn}))
        else:
            state[hit].append((t, psn))
            switched[hit] = t
            wire.send(t, psn, path, arrives_ns=None)
        psn += 1
        t += interval_ns
    answers = tuple(
        Answer(detected[i] - f.middle_ns, switched[i] - f.middle_ns, whole[i] - f.middle_ns, len(state[i]))
        for i, f in enumerate(faults)
    )
    offsets = (OffsetSample(start_ns, OFFSET_NS, 30), OffsetSample(end, OFFSET_NS, 30))
    return Story(wire, EventLog.of_events(events), EventLog.of_events(done), tuple(faults), answers, offsets)
