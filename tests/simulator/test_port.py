"""Ports: the times at which frames leave, classes, marks, trims, drops and faults."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.simulator.clock import Clock
from mrclab.simulator.port import CONTROL, CUT, DATA, UNLIMITED, Bucket, Depths, Hop, Node, Packet, Port

RATE = 8 * 10**9
"""At this rate a byte takes a nanosecond."""
NS = 1000
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(20, 400), st.booleans()),
    max_size=40,
    unique_by=lambda a: a[0],
)
"""For each frame: its time of arrival (ns), its length (bytes), and whether it is a control frame."""


class Sink(Node):
    """A node that records the frames that arrive, with their times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seen: list[tuple[int, Packet]] = []

    def arrive(self, packet: Packet) -> None:
        self.seen.append((self._clock.now_ps // NS, packet))


class Line:
    """A port with a sink at its other end."""

    def __init__(self, depths: Depths = UNLIMITED, delay_ns: int = 0, bucket: Bucket | None = None) -> None:
        self.clock = Clock()
        self.sink = Sink(self.clock)
        self.port = Port(self.clock, "line", 1, RATE, delay_ns * NS, depths, random.Random(1))
        self.port.peer = self.sink
        if bucket is not None:
            self.port.keep_by(bucket)

    def put_at(self, at_ns: int, packet: Packet) -> Packet:
        self.clock.call_at(at_ns * NS, lambda: self.port.put(packet) and None)
        return packet

    def run(self) -> list[tuple[int, Packet]]:
        self.clock.run(self.clock.now_ps + 10**12)
        return self.sink.seen


def packet(size: int = 100, priority: int = DATA, trim: int = 0, *, markable: bool = False) -> Packet:
    return Packet(bytes(size), size, Hop(bytes(16), 64, None, 0, True), priority, trim, markable)


def test_packets_leave_one_after_another_and_take_the_delay() -> None:
    line = Line(delay_ns=50)
    sent = [line.put_at(0, packet()) for _ in range(3)]
    assert line.run() == [(150, sent[0]), (250, sent[1]), (350, sent[2])]


def test_control_overtakes_queued_data_and_delays_it() -> None:
    line = Line()
    data = [line.put_at(0, packet()) for _ in range(3)]
    control = line.put_at(10, packet(20, CONTROL))
    assert line.run() == [(100, data[0]), (120, control), (220, data[1]), (320, data[2])]


def test_data_that_left_already_is_not_delayed() -> None:
    line = Line(delay_ns=1000)
    data = [line.put_at(0, packet()) for _ in range(3)]
    control = line.put_at(250, packet(20, CONTROL))
    assert line.run() == [(1100, data[0]), (1200, data[1]), (1300, data[2]), (1320, control)]


def test_data_behind_packets_that_are_still_on_the_wire_is_delayed_once() -> None:
    line = Line(delay_ns=1000)
    first = [line.put_at(0, packet()) for _ in range(2)]
    early = line.put_at(10, packet(20, CONTROL))
    later = [line.put_at(400, packet()) for _ in range(3)]
    late = line.put_at(410, packet(20, CONTROL))
    assert line.run() == [
        (1100, first[0]),
        (1120, early),
        (1220, first[1]),
        (1500, later[0]),
        (1520, late),
        (1620, later[1]),
        (1720, later[2]),
    ]


def test_control_goes_before_cut_frames_that_wait() -> None:
    line = Line()
    data = line.put_at(0, packet())
    cut = line.put_at(1, packet(30, CUT))
    control = line.put_at(2, packet(20, CONTROL))
    late = line.put_at(3, packet(30, CUT))
    arrived = line.run()
    assert next(p for _, p in arrived) is data
    assert {id(p): t for t, p in arrived}[id(control)] == 120
    assert {id(p): t for t, p in arrived}[id(late)] == 180
    assert len(arrived) == 4
    assert cut in [p for _, p in arrived]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(ARRIVALS)
def test_the_port_is_the_queue_of_a_model_that_serves_frame_by_frame(
    arrivals: list[tuple[int, int, bool]],
) -> None:
    """Compare a port that has strict priority with a model that chooses a frame whenever the port is free."""
    arrivals = sorted(arrivals, key=lambda a: a[0])
    line = Line()
    sent = [line.put_at(at, packet(size, CONTROL if high else DATA)) for at, size, high in arrivals]
    found = {id(p): t for t, p in line.run()}

    waiting, expected, now = list(range(len(arrivals))), dict[int, int](), 0
    while waiting:
        here = [n for n in waiting if arrivals[n][0] <= now]
        if not here:
            now = min(arrivals[n][0] for n in waiting)
            continue
        chosen = min(here, key=lambda n: (not arrivals[n][2], n))
        now += arrivals[chosen][1]
        expected[chosen] = now
        waiting.remove(chosen)
    # If a frame arrives at the very moment at which the port becomes free, either may be served first.
    if len({at for at, _, _ in arrivals} & set(expected.values())) == 0:
        assert [found[id(p)] for p in sent] == [expected[n] for n in range(len(sent))]
    assert len(found) == len(sent)


DEPTHS = Depths(
    drop_ps=1000 * NS,
    trim_from_ps=500 * NS,
    cut_limit_ps=90 * NS,
    cut_dscp=12,
    mark_from_ps=200 * NS,
    mark_span_ps=1,
)


def test_marks_trims_and_drops_by_depth() -> None:
    line = Line(DEPTHS)
    plain = [line.put_at(0, packet(markable=True)) for _ in range(12)]
    line.run()
    assert [p.marked for p in plain[:12]] == [False] * 3 + [True] * 8 + [False]
    assert (line.port.dropped, len(line.sink.seen)) == (1, 11)

    line = Line(DEPTHS)
    cuttable = [line.put_at(0, packet(trim=20)) for _ in range(9)]
    line.run()
    # Six frames wait at most 500 ns. The other three are trimmed, and each takes 40 ns of the link.
    assert [p.size_bytes for p in cuttable] == [100] * 6 + [20] * 3
    assert [p.cut_dscp for p in cuttable] == [-1] * 6 + [12] * 3
    assert [p for _, p in line.sink.seen][1:4] == cuttable[6:9]
    assert line.port.trimmed == 3


def test_cut_frames_beyond_their_half_are_dropped() -> None:
    line = Line(DEPTHS)
    for _ in range(12):
        line.put_at(0, packet(trim=20))
    line.run()
    # A trimmed frame takes 40 ns. It is dropped if frames of more than 90 ns wait before it, so three pass.
    assert (line.port.trimmed, line.port.dropped) == (3, 3)


def test_a_dead_link_loses_what_arrives_while_it_is_dead() -> None:
    line = Line(delay_ns=100)
    line.clock.call_at(120 * NS, lambda: line.port.set_dead(True))
    line.clock.call_at(320 * NS, lambda: line.port.set_dead(False))
    sent = [line.put_at(at, packet(10)) for at in (0, 100, 200, 300)]
    assert [p for _, p in line.run()] == [sent[0], sent[3]]
    assert line.port.lost == 2


def test_loss_corruption_and_a_slower_link() -> None:
    line = Line()
    line.port.set_loss(0.5)
    line.port.set_corruption(0.5)
    sent = [line.put_at(at * 200, packet()) for at in range(1000)]
    arrived = line.run()
    assert 400 < len(arrived) < 600
    assert line.port.lost == len(sent) - len(arrived)
    assert 0.4 < sum(p.corrupt >= 0 for _, p in arrived) / len(arrived) < 0.6
    line = Line()
    line.port.set_slow(RATE // 4)
    for at in range(1000):
        line.put_at(at * 100, packet())
    assert 240 < len(line.run()) < 260


def test_a_link_that_becomes_shorter_lets_later_packets_arrive_first() -> None:
    line = Line(delay_ns=1000)
    first = line.put_at(0, packet())

    def shorten() -> None:
        line.port.delay_ps = 10 * NS

    line.clock.call_at(200 * NS, shorten)
    second, third = line.put_at(300, packet()), line.put_at(300, packet())
    assert line.run() == [(410, second), (510, third), (1100, first)]


def test_a_token_bucket_lets_its_burst_through_at_once() -> None:
    host = Line(delay_ns=50, bucket=Bucket(250, ahead_bytes=100, classes=False))
    sent = [host.put_at(0, packet()) for _ in range(4)]
    late = host.put_at(10, packet(20, CONTROL))
    free = []
    host.clock.call_at(60 * NS, lambda: free.append(host.port.busy_until_ps()))
    # The bucket has tokens for 250 bytes. The third frame waits for 50 tokens, and no frame overtakes it.
    assert host.run() == [(50, sent[0]), (50, sent[1]), (100, sent[2]), (200, sent[3]), (220, late)]
    assert free == [(420 - 350) * NS]
    switch = Line(bucket=Bucket(150, owes=True))
    sent = [switch.put_at(0, packet()) for _ in range(4)]
    control = switch.put_at(10, packet(20, CONTROL))
    # A frame may leave if at least one token is left: after the second frame, 50 tokens are owed.
    assert switch.run() == [(0, sent[0]), (0, sent[1]), (50, control), (70, sent[2]), (170, sent[3])]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(ARRIVALS, st.integers(400, 900), st.booleans())
def test_a_port_with_a_bucket_is_one_that_counts_tokens(
    arrivals: list[tuple[int, int, bool]], burst: int, owes: bool
) -> None:
    """The model acts as a token bucket of the kernel.

    The bucket is sch_htb with two strict classes if `owes` is true, and sch_tbf if not.
    """
    arrivals = sorted(arrivals, key=lambda a: a[0])
    line = Line(bucket=Bucket(burst, owes=owes, classes=owes))
    sent = [line.put_at(at, packet(size, CONTROL if high else DATA)) for at, size, high in arrivals]
    found = {id(p): t for t, p in line.run()}

    waiting, expected, now = list(range(len(arrivals))), dict[int, int](), 0
    tokens, counted = burst, 0
    while waiting:
        here = [n for n in waiting if arrivals[n][0] <= now]
        if not here:
            now = min(arrivals[n][0] for n in waiting)
            continue
        tokens, counted = min(burst, tokens + now - counted), now
        chosen = min(here, key=lambda n: (owes and not arrivals[n][2], n))
        lacking = (0 if owes else arrivals[chosen][1]) - tokens
        if lacking > 0:
            now = min([now + lacking, *(arrivals[n][0] for n in waiting if arrivals[n][0] > now)])
            continue
        tokens -= arrivals[chosen][1]
        expected[chosen] = now
        waiting.remove(chosen)
    # If a frame arrives at the very moment at which another may leave, either may be served first.
    if len({at for at, _, _ in arrivals} & {t for n, t in expected.items() if t > arrivals[n][0]}) == 0:
        assert [found[id(p)] for p in sent] == [expected[n] for n in range(len(sent))]
    assert len(found) == len(sent)
