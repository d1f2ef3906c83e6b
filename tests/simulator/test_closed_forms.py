"""The network half against theory: situations whose outcome is a formula (docs/validation.md)."""

from __future__ import annotations

import random
from math import sqrt

import pytest

from mrclab.simulator.clock import Clock
from mrclab.simulator.port import DATA, UNLIMITED, Bucket, Depths, Packet, Port
from tests.simulator.test_port import NS, RATE, Line, packet

FRAME = 1000
"""Bytes, and ns on a link."""


def test_a_packet_over_four_links_takes_four_serialisations_and_the_delays() -> None:
    took_ns = 0
    for delay_ns in (500, 725, 725, 500):
        line = Line(delay_ns=delay_ns)
        line.put_at(0, packet(FRAME))
        ((arrived_ns, _),) = line.run()
        took_ns += arrived_ns
    assert took_ns == 4 * FRAME + 2 * (500 + 725)


@pytest.mark.parametrize("overload", [1.1, 1.5, 2.0, 4.0, 7.0])
def test_an_overload_is_trimmed_by_the_share_that_the_link_cannot_carry(overload: float) -> None:
    """A share s trimmed to T bytes of frames of F bytes fills the link: k ((1 - s) F + s T) = F."""
    trimmed_bytes, frames = 70, 5_000
    depths = Depths(
        drop_ps=10**12,
        trim_from_ps=20 * FRAME * NS,
        cut_limit_ps=10**12,
        cut_dscp=12,
        mark_from_ps=10**12,
        mark_span_ps=1,
    )
    line = Line(depths)
    for number in range(frames):
        line.put_at(round(number * FRAME / overload), packet(FRAME, trim=trimmed_bytes))
    line.run()
    wanted = (overload - 1) * FRAME / (overload * (FRAME - trimmed_bytes))
    start = 20 / frames * overload  # the queue fills first, untrimmed
    assert line.port.trimmed / frames == pytest.approx(wanted, abs=0.002 + start)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
def test_marks_rise_linearly_with_the_wait(part: float) -> None:
    """Between the two thresholds the probability is the part of the way, within five sigmas of its draws."""
    low_ps, span_ps, draws = 100 * FRAME * NS, 200 * FRAME * NS, 2000
    depths = Depths(
        drop_ps=10**12,
        trim_from_ps=10**12,
        cut_limit_ps=0,
        cut_dscp=12,
        mark_from_ps=low_ps,
        mark_span_ps=span_ps,
    )
    ahead = round((low_ps + part * span_ps) / NS)
    rng, clock, marked = random.Random(7), Clock(), 0
    for _ in range(draws):
        port = Port(clock, "line", 1, RATE, 0, depths, rng)
        port.put(packet(ahead))
        behind = packet(FRAME, markable=True)
        port.put(behind)
        marked += behind.marked
    sigma = sqrt(part * (1 - part) / draws)
    assert marked / draws == pytest.approx(part, abs=5 * sigma + 1e-9)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5])
def test_a_lossy_link_loses_its_share(ratio: float) -> None:
    frames = 5000
    line = Line()
    line.port.set_loss(ratio)
    for number in range(frames):
        line.put_at(number * FRAME, packet(FRAME))
    arrived = len(line.run())
    assert arrived + line.port.lost == frames
    assert arrived / frames == pytest.approx(1 - ratio, abs=5 * sqrt(ratio * (1 - ratio) / frames))


def test_a_full_link_carries_its_rate_and_the_queue_grows_by_the_rest() -> None:
    """Arrivals at twice the rate: n frames leave in n serialisations, and the last waits for half of them."""
    frames = 200
    line = Line()
    for number in range(frames):
        line.put_at(number * FRAME // 2, packet(FRAME))
    seen = line.run()
    assert seen[-1][0] == frames * FRAME
    assert line.port.longest_wait_ps == (frames - 1) * FRAME * NS // 2


def test_a_bucket_lets_its_burst_through_and_then_keeps_the_rate() -> None:
    burst, frames = 5 * FRAME, 50
    line = Line(UNLIMITED, bucket=Bucket(burst))
    sent: list[Packet] = [line.put_at(0, packet(FRAME, DATA)) for _ in range(frames)]
    seen = line.run()
    assert len(seen) == len(sent)
    assert [at for at, _ in seen] == [max(0, (n + 1) * FRAME - burst) for n in range(frames)]
