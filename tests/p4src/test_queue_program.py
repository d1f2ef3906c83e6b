"""The queue in front of a port, marks and trimming, in the interpreter and the compiled program.

The tests write the time at which a port will be idle into a register. This sets the length of the port's
queue, so the results do not depend on the clock.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrclab.controller.entries import switch_entries
from mrclab.linux import bpf
from mrclab.linux.traffic_control import TrafficControl
from mrclab.p4src.contract import TRAFFIC_CLASS_TABLE
from mrclab.switches.p4_model import Exact, Interpreter, Prefix, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from mrclab.topologies import load_fabric
from tests.support.switch_bench import Bench, bench_of
from tests.support.switch_kit import JSON, Namespace, ipv6_frame, mrc_frame, sid

pytestmark = pytest.mark.parallel

QUEUE, MARKS = "MrcIngress.port_queue", "MrcIngress.ecn_mark"
HOP = "MrcIngress.micro_segment"
TRIMMABLE, RETX, TRIMMED, LAST_HOP, CONTROL = 4, 8, 12, 16, 46
LIMIT, TRIM_FROM, TRIM_LIMIT = 3_000_000, 1_000_000, 500_000
MARK_FROM, MARK_SPAN = 200_000, 600_000
FAR = 1 << 60  # in ticks; no uptime reaches it

RULES = {
    f"{HOP}.my_sid": [Rule((Prefix(sid(1), 48),), f"{HOP}.un")],
    f"{HOP}.next_hop": [
        Rule((Prefix(sid(u), 48),), f"{HOP}.forward", (u, 0x0A0000000000 + u, 0x0B0000000000 + u))
        for u in (2, 3)
    ],
    f"{QUEUE}.traffic_class": [
        *(Rule((Exact(dscp),), f"{QUEUE}.trimmable") for dscp in (TRIMMABLE, RETX)),
        *(Rule((Exact(dscp),), f"{QUEUE}.cut") for dscp in (TRIMMED, LAST_HOP)),
        Rule((Exact(CONTROL),), f"{QUEUE}.urgent"),
    ],
    f"{QUEUE}.port_queue": [
        Rule((Exact(port),), f"{QUEUE}.send_at", (0, LIMIT, TRIM_FROM, TRIM_LIMIT, dscp))
        for port, dscp in ((2, TRIMMED), (3, LAST_HOP))
    ],
    f"{MARKS}.marking": [Rule((Exact(2),), f"{MARKS}.red", (MARK_FROM, MARK_SPAN))],
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    for made in bench_of(JSON):
        for table, rules in RULES.items():
            for rule in rules:
                made.add(table, rule)
        yield made


def set_wait(bench: Bench, name: str, port: int, idle_at: int) -> None:
    """Set the time (ticks) at which a port will be idle, in the registers of interpreter and program."""
    layout = bench.path.compiled.plan.registers[f"{QUEUE}.{name}"]
    cells = bytearray(bench.path.maps[layout.map].lookup(bytes(4)) or b"")
    struct.pack_into("<Q", cells, port * layout.cell_size, idle_at)
    bench.path.maps[layout.map].update(bytes(4), bytes(cells))
    bench.model.registers[f"{QUEUE}.{name}", port] = idle_at


@pytest.mark.root
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    port=st.sampled_from([2, 3]),
    dscp=st.sampled_from([0, TRIMMABLE, RETX, TRIMMED, LAST_HOP, CONTROL, 63]),
    ecn=st.integers(0, 3),
    payload=st.sampled_from([0, 1, 3, 4, 8, 64, 1000, 2900]),
    stamped=st.booleans(),
    imm=st.booleans(),
    queued=st.sampled_from([0, FAR]),
    trims=st.sampled_from([0, FAR]),
)
def test_a_full_queue_and_an_empty_one(
    bench: Bench,
    port: int,
    dscp: int,
    ecn: int,
    payload: int,
    stamped: bool,
    imm: bool,
    queued: int,
    trims: int,
) -> None:
    for name, value in (("idle_at", queued), ("trims_idle_at", trims)):
        set_wait(bench, name, port, value)
    frame = mrc_frame(sid(1, port), payload, dscp=dscp, ecn=ecn, stamped=stamped, imm=imm)
    got = bench.compare(frame)
    high, may = dscp in (TRIMMED, LAST_HOP, CONTROL), dscp in (TRIMMABLE, RETX)
    kept = 138 if stamped else 134
    marked = 3 if port == 2 and ecn and queued else ecn
    if not queued or high:
        ((_, out),) = got
        assert len(out) == len(frame)
        assert out[15] >> 4 & 3 == marked
    elif not may or len(frame) <= kept or trims:
        assert got == []
    else:
        ((_, out),) = got
        assert len(out) == kept
        assert out[14:16] == struct.pack(
            "!H", 6 << 12 | (TRIMMED if port == 2 else LAST_HOP) << 6 | marked << 4
        )
        lengths = [struct.unpack_from("!H", out, at)[0] for at in (18, 58, 98)]
        assert lengths == [kept - 54, kept - 94, kept - 94]
        untouched = [(22, 38), (54, 58), (60, 98), (100, kept)]
        assert [out[a:b] for a, b in untouched] == [frame[a:b] for a, b in untouched]


@pytest.mark.root
@pytest.mark.parametrize("length", [54, 60, 93, 95, 101, 102, 113])
def test_frames_that_end_inside_a_header_are_not_trimmed(bench: Bench, length: int) -> None:
    """A frame with incomplete inner headers is forwarded or dropped."""
    whole = mrc_frame(sid(1, 2), 64, dscp=TRIMMABLE)
    for queued in (0, FAR):
        set_wait(bench, "idle_at", 2, queued)
        got = bench.compare(whole[:length])
        assert len(got) == (not queued)


@pytest.mark.root
def test_marks_between_the_thresholds_are_linear_on_the_kernels_clock(bench: Bench) -> None:
    """The thresholds are seconds apart, so the time between setting a wait and sending is negligible."""
    span, n = (1 << 32) - 1, 1000
    bench.remove_all(f"{MARKS}.marking")
    bench.add(f"{MARKS}.marking", Rule((Exact(2),), f"{MARKS}.red", (0, span)))
    bench.remove_all(f"{QUEUE}.port_queue")
    bench.add(f"{QUEUE}.port_queue", Rule((Exact(2),), f"{QUEUE}.send_at", (0, span, span, span, TRIMMED)))
    frame = mrc_frame(sid(1, 2), 64, dscp=0, ecn=2)
    try:
        for share in (0.1, 0.5, 0.9):
            marked = 0
            for _ in range(n):
                now = _ticks()
                set_wait(bench, "idle_at", 2, now + int(share * span))
                _, out, _ = bench.ns.run(lambda: bpf.run_once(bench.path.fd, frame, bench.index))
                marked += out[15] >> 4 & 3 == 3
            assert abs(marked / n - share) < 5 * math.sqrt(share * (1 - share) / n) + 0.01
    finally:
        for table in (f"{MARKS}.marking", f"{QUEUE}.port_queue"):
            bench.remove_all(table)
            for rule in RULES[table]:
                bench.add(table, rule)


def _ticks() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 << 10


class Link:
    """A port of 1 Gbit/s (8.192 ticks per byte) in the interpreter, with a clock that a test moves."""

    def __init__(self) -> None:
        self.us = 1000
        self.draws = 0
        rules = dict(RULES)
        byte_time = round(8.192 * 65536)
        args = (byte_time, LIMIT, TRIM_FROM, TRIM_LIMIT, TRIMMED)
        rules[f"{QUEUE}.port_queue"] = [Rule((Exact(2),), f"{QUEUE}.send_at", args)]
        self.model = Interpreter(
            read_program(JSON.read_bytes()), rules, random=self._draw, clock=lambda: self.us
        )

    def _draw(self, low: int, high: int) -> int:
        self.draws += 1
        return self.draws * 4099 % (high + 1)  # evenly distributed numbers

    def send(self, size: int, dscp: int = 0, ecn: int = 0) -> bytes | None:
        out = self.model.run(1, mrc_frame(sid(1, 2), size - 138, dscp=dscp, ecn=ecn))
        return out[0][1] if out else None

    def register(self, name: str) -> int:
        return self.model.registers.get((f"{QUEUE}.{name}", 2), 0)

    @property
    def wait_us(self) -> float:
        return max(self.register("idle_at") - (self.us << 10), 0) / 1024


def test_a_queue_fills_by_the_time_frames_take_and_drains_by_itself() -> None:
    link = Link()
    for _ in range(10):
        link.send(1250)  # each frame takes 10 us
    assert link.wait_us == pytest.approx(100, rel=1e-3)
    link.us += 60
    assert link.wait_us == pytest.approx(40, rel=2e-3)
    link.us += 1000
    link.send(1250)
    assert link.wait_us == pytest.approx(10, rel=1e-2)
    assert link.register("longest_wait") / 1024 == pytest.approx(90, rel=1e-3)


@pytest.mark.slow
def test_no_trimmable_frame_is_dropped_at_ten_times_the_rate_and_the_queue_stays_bounded() -> None:
    link = Link()
    whole = trimmed = 0
    for turn in range(150):
        for _ in range(10):  # 4200 bytes take 33.6 us
            out = link.send(4200, TRIMMABLE, 2)
            assert out is not None
            assert len(out) in (4200, 134)
            if turn >= 50:  # the first frames filled the queue
                whole, trimmed = whole + (len(out) == 4200), trimmed + (len(out) == 134)
            assert link.wait_us <= TRIM_FROM / 1024 + 34 + 12  # a frame: 34 us; trimmed frames: 12 us
        link.us += 34
    assert whole + trimmed == 1000
    # The trimmed frames take about 28 % of the link, and whole frames get the rest.
    assert 0.7 < whole / 100 < 0.75


@pytest.mark.slow
def test_trims_get_half_of_the_link_at_most() -> None:
    link = Link()
    dropped = trims = 0
    for turn in range(60):
        for _ in range(40):  # forty times the rate: the headers alone are more than the link can carry
            out = link.send(4200, TRIMMABLE)
            dropped += out is None
            trims += out is not None and len(out) == 134 and turn >= 30
        link.us += 34
    assert dropped
    assert trims * 134 * 8 / (30 * 34) == pytest.approx(500, rel=0.02)  # Mbit/s


def test_what_may_not_be_trimmed_is_dropped_at_the_limit_and_control_never() -> None:
    link = Link()
    passed = sum(link.send(4200) is not None for _ in range(200))
    assert passed == math.ceil(LIMIT / 1024 / 33.6)
    assert link.send(138, CONTROL) is not None
    assert link.model.counters["MrcIngress.drops", 7].packets == 200 - passed


@pytest.mark.parametrize(("classes", "length"), [((), 134), (((RETX, "high"),), 4200)])
def test_the_map_of_a_fabric_says_whether_a_full_queue_trims_a_retransmission(
    classes: tuple[tuple[int, str], ...], length: int
) -> None:
    fabric = replace(load_fabric("tiny"), classes=classes)
    entries = switch_entries(fabric, fabric.switch("p0-t0-0"))
    link = Link()
    link.model.rules[f"{QUEUE}.traffic_class"] = [
        Rule((Exact(int(e.match)),), f"{QUEUE}.{e.action}") for e in entries if e.table == TRAFFIC_CLASS_TABLE
    ]
    link.model.registers[f"{QUEUE}.idle_at", 2] = FAR
    for dscp, left in ((RETX, length), (TRIMMABLE, 134), (CONTROL, 4200)):
        out = link.send(4200, dscp)
        assert out is not None
        assert len(out) == left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait_us", "share"), [(100, 0), (195, 0), (342, 0.25), (488, 0.5), (635, 0.75), (790, 1)]
)
def test_marks_are_linear_in_the_depth(wait_us: int, share: float) -> None:
    link = Link()
    n, marked = 400, 0
    for _ in range(n):
        link.model.registers[f"{QUEUE}.idle_at", 2] = link.us + wait_us << 10
        out = link.send(1250, 0, 2)
        assert out is not None
        marked += out[15] >> 4 & 3 == 3
    assert marked / n == pytest.approx(share, abs=0.01)


def test_a_sender_that_knows_no_marks_gets_none_nor_does_a_port_without_thresholds() -> None:
    link = Link()
    link.model.registers[f"{QUEUE}.idle_at", 2] = link.us + 900 << 10
    out = link.send(1250, 0, 0)
    assert out is not None
    assert out[15] >> 4 & 3 == 0
    link.model.rules[f"{MARKS}.marking"] = []
    out = link.send(1250, 0, 1)
    assert out is not None
    assert out[15] >> 4 & 3 == 1


def test_frames_without_mrc_headers_pass_as_before() -> None:
    link = Link()
    frame = ipv6_frame(sid(1, 2), 700)
    ((port, out),) = link.model.run(1, frame)
    assert (port, len(out)) == (2, 700)
    assert link.wait_us == pytest.approx(5.6, abs=0.1)


@pytest.mark.root
def test_a_real_frame_is_cut_on_a_real_interface(namespace: Namespace) -> None:
    """Long frames arrive in several buffers; the kernel must trim these, too."""
    bench = Bench(namespace, JSON)
    try:
        for table, rules in RULES.items():
            for rule in rules:
                bench.add(table, rule)
        set_wait(bench, "idle_at", 2, FAR)

        def attach() -> None:
            with TrafficControl() as tc:
                bench.path.attach(tc)

        namespace.run(attach)
        near, far = namespace.packet_socket("h1"), namespace.packet_socket("h2")
        for payload in (100, 1400, 4096, 8800):
            frame = mrc_frame(sid(1, 2), payload, dscp=TRIMMABLE)
            near.send(frame)
            assert far.recv(1 << 16) == bench.model.run(1, frame)[0][1]
        near.close()
        far.close()
    finally:
        bench.close()
