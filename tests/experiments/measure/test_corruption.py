"""Packets in which a link flipped a bit of the PSN: captures show them, but their data has not arrived."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.experiments.measure.pcap import parse_pcap
from mrclab.experiments.measure.recording import ClockMap, OffsetSample
from mrclab.experiments.measure.trace import NEVER, Trace, build_trace, unwrap_flows
from mrclab.topologies import Fabric, load_fabric
from tests.support.synthetic_run import OFFSET_NS, ONE_WAY_NS, PAYLOAD, Wire

CLOCK = ClockMap((OffsetSample(0, OFFSET_NS, 25),))
T = 10_000_000_000
LAB = load_fabric("lab")


def trace_of(wire: Wire, lab: Fabric) -> Trace:
    sender, receiver = wire.captures()
    return build_trace(parse_pcap(sender), parse_pcap(receiver), lab.paths("h0", "h6"), CLOCK)


@pytest.mark.parametrize("bit", [0, 3, 22, 23])
def test_a_damaged_number_changes_no_other(bit: int) -> None:
    numbers = np.array([12, 10 ^ 1 << bit, 9], np.int64)
    found = unwrap_flows(np.arange(3), np.zeros(3, np.int64), numbers, sent=1)
    assert found[[0, 2]].tolist() == [12, 9]


def test_after_a_damaged_packet_all_arrivals_are_of_their_own_transmissions(lab: Fabric) -> None:
    wire, path = Wire(lab), lab.paths("h0", "h6")[0]
    for i in range(20):
        late = 2_500 if i == 9 else 0  # packet 9 arrives after two later packets
        wire.send(
            T + i * 1_000, i, path, arrives_ns=T + i * 1_000 + ONE_WAY_NS + late, flipped=(i == 10) << 23
        )
    trace = trace_of(wire, lab)
    assert trace.sent.psn.tolist() == list(range(20))
    assert np.flatnonzero(trace.sent.lost).tolist() == [10]
    assert int(trace.received.first.sum()) == 19


def test_a_damaged_packet_is_no_copy_of_the_packet_whose_number_it_has(lab: Fabric) -> None:
    """Packet 8 is lost, and packet 12 arrives damaged with PSN 8 on the same path. Both count as lost."""
    wire, path = Wire(lab), lab.paths("h0", "h6")[0]
    wire.send(T, 8, path, arrives_ns=None)
    wire.send(T + 1_000, 12, path, flipped=8 ^ 12)
    wire.send(T + 90_000, 8, path, rtx=True)
    wire.send(T + 91_000, 12, path, rtx=True)
    trace = trace_of(wire, lab)
    assert trace.sent.lost.tolist() == [True, True, False, False]
    assert trace.sent.first_ns.tolist() == [T + 90_000 + ONE_WAY_NS, T + 91_000 + ONE_WAY_NS] * 2
    assert not trace.sent.needless.any()
    assert int(trace.received.payload[trace.received.first].sum()) == 2 * PAYLOAD


def test_what_has_not_been_sent_yet_cannot_have_arrived(lab: Fabric) -> None:
    """Packet 8 arrives damaged, with PSN 12, before packet 12 is sent. Then packet 12 is lost."""
    wire, path = Wire(lab), lab.paths("h0", "h6")[0]
    wire.send(T, 8, path, flipped=8 ^ 12)
    wire.send(T + 100_000, 12, path, arrives_ns=None)
    trace = trace_of(wire, lab)
    assert trace.sent.lost.all()
    assert (trace.sent.first_ns == NEVER).all()
    assert trace.received.tx.tolist() == [-1]
    assert not trace.received.first.any()


@pytest.mark.slow
@given(
    first=st.sampled_from([0, 5, (1 << 24) - 7, 1 << 23]),
    fates=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 23), st.integers(0, 9_000)), max_size=40),
)
def test_whatever_bits_are_flipped_exactly_those_packets_are_lost(
    first: int, fates: list[tuple[int, int, int]]
) -> None:
    """Send packets 1 us apart, reordered by up to 9 us. In some packets, a bit is flipped (-1: no bit)."""
    wire, paths = Wire(LAB), LAB.paths("h0", "h6")
    for i, (which, bit, late) in enumerate(fates):
        at = T + i * 1_000
        flipped = 1 << bit if bit >= 0 else 0
        wire.send(at, first + i, paths[which], arrives_ns=at + ONE_WAY_NS + late, flipped=flipped, sack=False)
    trace = trace_of(wire, LAB)
    assert trace.sent.lost.tolist() == [bit >= 0 for _, bit, _ in fates]
    assert int(trace.received.first.sum()) == sum(bit < 0 for _, bit, _ in fates)
