"""A fault's times (first loss, rerouted, recovered) for each transport, from made-up captures."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.pcap import parse_pcap
from mrclab.experiments.measure.recording import ClockMap, OffsetSample, Recording
from mrclab.experiments.measure.recovery import (
    BY_FLOW,
    BY_SEGMENT_LIST,
    CAPTURE_STAMP_NS,
    NO_MESSAGE_LATE,
    NOT_FELT,
    STILL_USED,
    TOOK_ANSWERS,
    Measured,
    Retirements,
    Times,
    spans,
    times,
    times_of_messages,
)
from mrclab.experiments.measure.repetition import measure
from mrclab.experiments.measure.tcp import build_tcp_trace, parse_segments
from mrclab.experiments.measure.trace import NEVER, Trace, build_trace
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.topologies import Fabric, load_fabric
from tests.support.synthetic_run import OFFSET_NS, ONE_WAY_NS, Record, Wire, ends, ipv6, pcap

CLOCK = ClockMap((OffsetSample(0, OFFSET_NS, 25),))
LAB = load_fabric("lab")
PATHS = LAB.paths("h0", "h6")
BROKEN, SOUND = PATHS[0], PATHS[5]
T = 10_000_000_000  # the time of the cut
MS = 1_000_000
FAULT = FaultRecord("blackhole", "p0-t0-0:p0-t1-0", T - 500, T + 500, T + 100 * MS, T + 100 * MS + 1_000)
NOBODY = Measured(None, reason="not asked")
SIZE = 1000


@dataclass(frozen=True)
class Frame:
    """A packet of RoCEv2 or TCP, given header by header."""

    body: bytes
    next_header: int

    def frame(self) -> bytes:
        src, dst = ends(LAB, PATHS[0])
        return ipv6(src, dst, self.body, next_header=self.next_header)


def roce(psn: int, qp: int = 0x21) -> Frame:
    bth = struct.pack("!BBHII", 0x0A, 0, 0xFFFF, qp, psn % (1 << 24))
    body = bth + bytes(16) + bytes(SIZE) + bytes(4)
    return Frame(struct.pack("!HHHH", 0xC123, 4791, 8 + len(body), 0) + body, 17)


def tcp(seq: int, size: int = SIZE, port: int = 5000) -> Frame:
    header = struct.pack("!HHIIBBHHH", port, 6000, seq % (1 << 32), 0, 8 << 4, 0x10, 1000, 0, 0) + bytes(12)
    return Frame(header + bytes(size), 6)


@dataclass
class Ends:
    """Two captures, to which a test adds packets one by one."""

    sender: list[Record] = field(default_factory=list)
    receiver: list[Record] = field(default_factory=list)

    def send(self, t_ns: int, packet: Frame, arrives: bool = True, late_ns: int = 0) -> int:
        self.sender.append(Record(t_ns, packet, outgoing=True))  # type: ignore[arg-type]
        arrived = t_ns + ONE_WAY_NS + late_ns
        if arrives:
            self.receiver.append(Record(arrived, packet, outgoing=False))  # type: ignore[arg-type]
        return arrived

    def captures(self) -> tuple[bytes, bytes]:
        both = (sorted(side, key=lambda r: r.t_ns) for side in (self.sender, self.receiver))
        sender, receiver = (pcap(side) for side in both)
        return sender, receiver

    def roce(self) -> Trace:
        sender, receiver = (parse_pcap(data) for data in self.captures())
        return build_trace(sender, receiver, PATHS, CLOCK, LAB)

    def tcp(self) -> Trace:
        sender, receiver = (parse_segments(data) for data in self.captures())
        return build_tcp_trace(sender, receiver, PATHS, CLOCK, LAB)


def found(trace: Trace, fault: FaultRecord = FAULT, detected: Measured = NOBODY, **more: object) -> Times:
    (span,) = spans([fault], *trace.span_ns)
    return times([trace], fault, span, detected, **more)  # type: ignore[arg-type]


def mrc(*sent: tuple[int, int, bool, bool], background: bool = True) -> Trace:
    """Return a trace of packets (time, PSN, on the broken path, arrives), plus a stream on a working path."""
    wire = Wire(LAB)
    if background:
        for i in range(200):
            wire.send(T - 20 * MS + i * MS, 1000 + i, SOUND)
    for t_ns, psn, broken, arrives in sent:
        wire.send(t_ns, psn, BROKEN if broken else SOUND, arrives_ns=-1 if arrives else None, rtx=not broken)
    sender, receiver = wire.captures()
    return build_trace(parse_pcap(sender), parse_pcap(receiver), PATHS, CLOCK, LAB)


def test_mrc_by_the_segment_list() -> None:
    retired = {"h0": Retirements(*(replace_array(v) for v in ([T + 300_000], [BROKEN.ev])))}
    trace = mrc((T + 20_000, 5000, True, False), (T + 90_000, 5001, True, False),
                (T + 310_000, 5000, False, True), (T + 320_000, 5001, False, True))  # fmt: skip
    result = found(trace, detected=Measured(300_000, 1_500), retired=retired)
    assert (result.rule, result.felt, result.lost) == (BY_SEGMENT_LIST, True, 2)
    error = FAULT.half_width_ns + CAPTURE_STAMP_NS + 25
    assert result.first_loss == Measured(20_000, error)
    assert result.rerouted == Measured(90_000, error)
    assert result.recovered == Measured(320_000 + ONE_WAY_NS, error)
    assert result.recovered_since_loss == Measured(300_000 + ONE_WAY_NS, error)


def test_a_path_that_is_in_use_until_its_repair_was_never_left() -> None:
    """Without a retirement, the sender has left a path only if it stopped sending there before the repair."""
    lost = [(T + i * MS, 5000 + i, True, False) for i in range(1, 100)]
    repairs = [(t_ns + 300_000, psn, False, True) for t_ns, psn, _, _ in lost]
    before = [(T - 20 * MS + i * MS, 4000 + i, True, True) for i in range(19)]
    result = found(mrc(*before, *lost, *repairs))
    assert (result.felt, result.lost) == (True, 99)
    assert result.rerouted == Measured(None, reason=STILL_USED)
    assert found(mrc(*before, *lost[:50], *repairs[:50])).rerouted.ns == 50 * MS


def test_what_was_in_flight_at_the_cut_is_the_faults() -> None:
    result = found(mrc((T - 10_000, 5000, True, False), (T + 20_000, 5001, True, False),
                       (T + 310_000, 5000, False, True), (T + 320_000, 5001, False, True)))  # fmt: skip
    assert (result.lost, result.in_flight_lost) == (2, 1)
    assert result.first_loss.ns == 0


def replace_array(values: list[int]):  # type: ignore[no-untyped-def]
    import numpy as np

    return np.array(values, np.int64)


def test_no_recovery_is_sooner_than_the_detection_of_a_sender_that_detects() -> None:
    """The sender may resend the lost packet before it retires the path, for instance after a tail probe."""
    trace = mrc((T + 20_000, 5000, True, False), (T + 110_000, 5000, False, True))
    late = Measured(900_000, 1_500)
    assert found(trace, detected=late, retired={}).recovered == late
    # Routes that change later are not a detection by the sender.
    assert found(trace, detected=late).recovered.ns == 110_000 + ONE_WAY_NS


@pytest.mark.parametrize("transport", ["mrc", "roce", "tcp"])
def test_a_fault_that_nobody_feels_has_no_times_and_no_number_in_their_place(transport: str) -> None:
    """Messages may be slow during the fault. But no packet was lost, so there is no recovery."""
    if transport == "mrc":
        trace = mrc()
    else:
        wire = Ends()
        for i in range(60):
            wire.send(
                T - 20 * MS + i * MS, roce(i) if transport == "roce" else tcp(i * SIZE), late_ns=i % 7 * MS
            )
        trace = wire.roce() if transport == "roce" else wire.tcp()
    result = found(trace, detected=Measured(5_000, 1))
    assert result.felt is False
    assert result.lost == 0
    for name in ("first_loss", "detected", "rerouted", "recovered", "recovered_since_loss"):
        measured = getattr(result, name)
        assert (measured.ns, measured.error_ns) == (None, None)
        assert measured.reason.startswith(NOT_FELT)


def test_a_fault_off_all_paths_is_not_felt() -> None:
    elsewhere = replace(FAULT, where="p0-t0-2:p0-t1-0")
    result = found(mrc((T + 20_000, 5000, True, False)), elsewhere)
    assert result.felt is False
    assert (
        result.recovered.reason == f"{NOT_FELT}: p0-t0-2:p0-t1-0 lies on no path from a sender to a receiver"
    )


def go_back_n(rerouted_ns: int) -> tuple[Ends, int]:
    """Send a packet each ms until the cut. Then send the next four packets every 20 ms until they arrive."""
    wire = Ends()
    for i in range(20):
        wire.send(T - 20 * MS + i * MS, roce(i))
    t_ns, last = T + 10_000, 0
    while last < rerouted_ns:
        arrives = t_ns >= rerouted_ns
        sent = [wire.send(t_ns + k * 1_000, roce(20 + k), arrives=arrives) for k in range(4)]
        last = sent[-1] if arrives else 0
        t_ns += 20 * MS
    return wire, last


def test_rocev2_by_its_run_of_losses() -> None:
    wire, last = go_back_n(T + 50 * MS)
    result = found(wire.roce())
    assert (result.rule, result.felt, result.lost) == (BY_FLOW, True, 12)
    assert result.first_loss.ns == 10_000
    assert result.rerouted.ns == 40 * MS + 13_000  # the last lost packet
    assert result.recovered.ns == last - T


def test_a_flow_that_is_repaired_with_the_fault_was_never_rerouted() -> None:
    wire, last = go_back_n(T + 110 * MS)
    result = found(wire.roce())
    assert result.rerouted == Measured(None, reason=STILL_USED)
    assert result.recovered.ns == last - T


def test_losses_of_another_flow_and_later_losses_are_not_the_faults() -> None:
    wire, last = go_back_n(T + 50 * MS)
    for i in range(30):  # another queue pair, which sometimes loses a packet in a full queue
        wire.send(T - 15 * MS + i * 2 * MS, roce(i, qp=0x99), arrives=i % 9 != 0)
    wire.send(T + 65 * MS, roce(24), arrives=False)
    wire.send(T + 80 * MS, roce(24))
    result = found(wire.roce())
    assert result.lost == 12
    assert result.recovered.ns == last - T


def test_go_back_n_sends_the_same_psn_again_and_each_arrival_is_of_the_latest_copy() -> None:
    wire = Ends()
    wire.send(T, roce(1), arrives=False)
    wire.send(T + MS, roce(1), late_ns=5 * MS)  # the packet's own copy overtakes it
    wire.send(T + 2 * MS, roce(1))
    sent = wire.roce().sent
    assert sorted(sent.arrived_ns.tolist())[:2] == [T + 2 * MS + ONE_WAY_NS, T + 6 * MS + ONE_WAY_NS]
    assert sent.lost.tolist() == [True, False, False]
    assert set(sent.first_ns.tolist()) == {T + 2 * MS + ONE_WAY_NS}
    assert sent.rtx.tolist() == [False, True, True]


def test_acknowledgements_that_are_lost_alone_are_no_loss_of_data_and_said() -> None:
    wire = Ends()
    for i in range(40):
        wire.send(T - 20 * MS + i * MS, tcp(i * SIZE))
    wire.send(T + 60 * MS, tcp(39 * SIZE))  # the data had arrived, but its ACK was lost
    result = found(wire.tcp())
    assert (result.felt, result.recovered.reason) == (False, TOOK_ANSWERS)


def test_a_lost_copy_of_what_had_arrived_is_no_data_that_a_fault_took() -> None:
    """If a fault takes only a copy of data that had already arrived, the fault took no data."""
    wire = Ends()
    for i in range(40):
        wire.send(T - 41 * MS + i * MS, tcp(i * SIZE))
    wire.send(T + 60 * MS, tcp(39 * SIZE), arrives=False)
    result = found(wire.tcp())
    assert (result.felt, result.recovered.ns, result.recovered_since_loss.ns) == (False, None, None)


def test_tcp_by_byte_ranges_though_the_ends_cut_segments_differently() -> None:
    wire = Ends()
    start = (1 << 32) - 3 * SIZE  # the sequence numbers wrap in this stream
    for i in range(5):
        wire.send(T - 5 * MS + i * MS, tcp(start + i * SIZE))
    wire.sender.append(Record(T + MS, tcp(start + 5 * SIZE, 3 * SIZE), outgoing=True))  # type: ignore[arg-type]
    again = T + 40 * MS
    wire.sender.append(Record(again, tcp(start + 5 * SIZE, 3 * SIZE), outgoing=True))  # type: ignore[arg-type]
    for k in range(3):
        piece = tcp(start + (5 + k) * SIZE)
        wire.receiver.append(Record(again + ONE_WAY_NS + k, piece, outgoing=False))  # type: ignore[arg-type]
    result = found(wire.tcp())
    assert (result.rule, result.felt, result.lost) == (BY_FLOW, True, 1)  # one lost frame
    assert (result.first_loss.ns, result.rerouted.ns) == (MS, MS)
    assert result.recovered.ns == 40 * MS + ONE_WAY_NS + 2


def test_of_a_fault_that_drops_a_share_every_loss_counts() -> None:
    wire = Ends()
    for i in range(60):
        wire.send(T - 20 * MS + i * MS, roce(i), arrives=i not in (25, 31))
    for k, psn in enumerate((25, 31)):
        last = wire.send(T + 50 * MS + k * MS, roce(psn))
    result = found(wire.roce(), replace(FAULT, kind="loss", params={"ratio": 0.2}))
    assert (result.felt, result.lost, result.recovered.ns) == (True, 2, last - T)


def test_what_never_arrives_is_no_recovery() -> None:
    wire = Ends()
    wire.send(T - MS, roce(1))
    wire.send(T + MS, roce(2), arrives=False)
    result = found(wire.roce())
    assert result.recovered == Measured(None, reason="1 of 1 lost packets were never delivered")


def test_late_messages_stand_in_where_captures_cannot_say() -> None:
    none = times_of_messages("a rule", None, 0, FAULT, NOBODY)
    assert (none.felt, none.recovered.ns, none.recovered.reason) == (False, None, NO_MESSAGE_LATE)
    late = times_of_messages("a rule", (T + MS, T + 5 * MS), 0, FAULT, NOBODY)
    assert (late.rule, late.felt, late.recovered.ns) == ("a rule", True, 5 * MS)
    assert late.first_loss.ns is late.rerouted.ns is late.recovered_since_loss.ns is None
    missing = times_of_messages("a rule", (T + MS, T + 5 * MS), 2, FAULT, NOBODY)
    assert missing.recovered == Measured(None, reason="2 late messages were never delivered")


@pytest.mark.parametrize(("transport", "packet"), [("mrc", "roce"), ("tcp", "tcp")])
@pytest.mark.parametrize(("kept", "why"), [(-10, "is cut short"), (24, "holds no packet")])
def test_a_capture_that_ends_early_makes_a_run_invalid(
    tmp_path: Path, transport: str, packet: str, kept: int, why: str
) -> None:
    """The process that captures may have been killed."""
    wire = Ends()
    for number in range(20):
        wire.send(T + number * MS, roce(number) if packet == "roce" else tcp(number * SIZE))
    files = {host: tmp_path / f"{host}.pcap" for host in ("h0", "h6")}
    sender, receiver = wire.captures()
    files["h0"].write_bytes(sender)
    files["h6"].write_bytes(receiver[:kept])
    evidence = Evidence(
        transport=TRANSPORTS[transport],
        number=0,
        seed=1,
        fabric=LAB,
        hosts=("h0", "h6"),
        pairs=((0, 1),),
        workload={"kind": "spray"},
        measure_ns=T,
        end_ns=T + 20 * MS,
        captures=files,
        recording=Recording({}, CLOCK.samples, ()),
    )
    assert f"the capture at h6 {why}" in measure(evidence).validity.reasons


FATES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 3), st.booleans(), st.integers(0, 30_000)), max_size=60
)


@pytest.mark.slow
@given(first=st.sampled_from([0, 7, (1 << 24) - 3]), fates=FATES)
def test_of_any_rocev2_stream_the_first_copies_and_losses_are_known(
    first: int, fates: list[tuple[int, int, bool, int]]
) -> None:
    """The sender uses PSNs in any order, and repeats some. The path loses packets, but reorders none."""
    wire = Ends()
    earliest: dict[int, int] = {}
    lost = []
    for i, (psn, _, arrives, _) in enumerate(fates):
        arrived = wire.send(T + i * MS, roce(first + psn), arrives=arrives)
        lost.append(not arrives)
        if arrives:
            earliest.setdefault(psn, arrived)
    sent = wire.roce().sent
    assert sent.lost.tolist() == lost
    assert sent.first_ns.tolist() == [earliest.get(psn, NEVER) for psn, *_ in fates]


@pytest.mark.slow
@given(first=st.sampled_from([0, 5, (1 << 32) - 2500, 1 << 31]), fates=FATES)
def test_of_any_tcp_stream_every_byte_is_accounted_for(
    first: int, fates: list[tuple[int, int, bool, int]]
) -> None:
    """Each segment has one to three pieces of the stream. Segments can overlap, and some are lost."""
    wire = Ends()
    earliest: dict[int, int] = {}
    expected_lost = 0
    for i, (at, pieces, arrives, late) in enumerate(fates):
        arrived = wire.send(T + i * MS, tcp(first + at * 100, pieces * 100), arrives=arrives, late_ns=late)
        for piece in range(at, at + pieces):
            if arrives:
                earliest.setdefault(piece, arrived)
            else:
                expected_lost += 100
    trace = wire.tcp()
    sent, received = trace.sent, trace.received
    assert int(sent.payload[sent.lost].sum()) == expected_lost
    assert int(sent.payload.sum()) == sum(pieces * 100 for _, pieces, _, _ in fates)
    assert int(received.payload[received.first].sum()) == 100 * len(earliest)
    assert set(sent.first_ns[sent.first_ns != NEVER].tolist()) <= set(earliest.values())
    never = {piece for at, pieces, _, _ in fates for piece in range(at, at + pieces)} - set(earliest)
    assert int(sent.payload[sent.first_ns == NEVER].sum()) == 100 * sum(
        piece in never for at, pieces, _, _ in fates for piece in range(at, at + pieces)
    )


@pytest.mark.slow
@given(
    run=st.integers(1, 20), before=st.integers(1, 10), again_ms=st.integers(1, 60), bursts=st.integers(0, 3)
)
def test_recovery_is_the_last_lost_byte_whatever_the_run(
    run: int, before: int, again_ms: int, bursts: int
) -> None:
    wire = Ends()
    for i in range(before):
        wire.send(T - (before - i) * MS, roce(i))
    for attempt in range(bursts + 1):
        for k in range(run):
            wire.send(T + 10_000 + attempt * 10 * MS + k * 1_000, roce(before + k), arrives=False)
    start = T + (bursts + 1) * 10 * MS + again_ms * MS // 100
    arrivals = [wire.send(start + k * 1_000, roce(before + k)) for k in range(run)]
    for i in range(5):  # the stream continues
        wire.send(start + (i + 1) * MS, roce(before + run + i))
    result = found(wire.roce())
    assert result.lost == run * (bursts + 1)
    assert result.first_loss.ns == 10_000
    assert result.recovered.ns == max(arrivals) - T
    assert result.rerouted.ns == 10_000 + bursts * 10 * MS + (run - 1) * 1_000


def test_two_fabrics_agree_on_nobody(lab: Fabric) -> None:
    """Captures without a packet must not cause an error."""
    trace = Ends().roce()
    assert found(trace).felt is False
    assert found(Ends().tcp()).felt is False
    assert trace.span_ns == (0, 0)
    assert lab.name == LAB.name
