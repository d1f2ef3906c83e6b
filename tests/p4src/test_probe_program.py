"""Path probes: every switch fills the next record of a probe, and does not change other packets."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrclab.linux import bpf
from mrclab.switches.p4_model import Exact, Interpreter, Prefix, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_bench import Bench, bench_of
from tests.support.switch_kit import JSON, probe_frame, records_at, sid, without_times

pytestmark = pytest.mark.parallel

HOP, PROBE = "MrcIngress.micro_segment", "MrcIngress.probe"
NODE = 0x1801
RECORD = struct.Struct("!IHHIQ")


def rules(node: int = NODE) -> dict[str, list[Rule]]:
    forward = f"{HOP}.forward"
    return {
        f"{HOP}.my_sid": [Rule((Prefix(sid(1), 48),), f"{HOP}.un")],
        f"{HOP}.next_hop": [Rule((Prefix(sid(u), 48),), forward, (u, 10, 20)) for u in (1, 2, 3)],
        f"{PROBE}.probe_version": [Rule((Exact(1),), f"{PROBE}.record", (node,))],
    }


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    for made in bench_of(JSON):
        for table, some in rules().items():
            for rule in some:
                made.add(table, rule)
        yield made


@pytest.mark.root
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    capacity=st.integers(0, 9),
    used=st.integers(0, 9) | st.just(255),
    version=st.sampled_from([1, 1, 1, 0, 2]),
    encapsulated=st.booleans(),
    missing=st.just(0) | st.integers(0, 230),
)
def test_a_switch_fills_the_next_record(
    bench: Bench, capacity: int, used: int, version: int, encapsulated: bool, missing: int
) -> None:
    whole = probe_frame(sid(1, 2), capacity=capacity, used=used, version=version, encapsulated=encapsulated)
    frame = whole[: max(len(whole) - missing, 60)]
    ((port, out),) = bench.compare(frame, without_times)
    assert port == 2
    at = records_at(frame) + 20 * used
    start = records_at(frame) - 16
    fills = version == 1 and used < min(capacity, 8) and len(frame) >= at + 20
    if not fills:
        assert out[54 + 40 * encapsulated :] == frame[54 + 40 * encapsulated :]
        return
    assert out[start + 2] == used + 1
    assert RECORD.unpack_from(out, at) == (NODE, 1, 2, 0, 0)
    expected = bytearray(frame[start:])
    expected[2] = used + 1
    expected[at - start : at - start + 20] = out[at : at + 20]
    assert out[start:] == expected


@pytest.mark.root
def test_the_time_is_that_of_the_kernels_monotonic_clock(bench: Bench) -> None:
    before = time.monotonic_ns() // 1000
    _, out, _ = bench.ns.run(lambda: bpf.run_once(bench.path.fd, probe_frame(sid(1, 2)), bench.index))
    after = time.monotonic_ns() // 1000
    assert before <= RECORD.unpack_from(out, records_at(out))[4] <= after


def test_a_probe_that_goes_out_and_back_tells_its_whole_way() -> None:
    program = read_program(JSON.read_bytes())
    us = 1000
    switches = {
        u: Interpreter(
            program,
            {
                f"{HOP}.my_sid": [Rule((Prefix(sid(u), 48),), f"{HOP}.un")],
                f"{HOP}.next_hop": [
                    Rule((Prefix(sid(v), 48),), f"{HOP}.forward", (v, 10, 20)) for v in (1, 2, 3, 9)
                ],
                f"{PROBE}.probe_version": [Rule((Exact(1),), f"{PROBE}.record", (u,))],
            },
            clock=lambda: us,
        )
        for u in (1, 2, 3)
    }
    way = [1, 2, 3, 2, 1, 9]
    frame = probe_frame(sid(*way))
    for here, there in itertools.pairwise(way):
        us += 5
        ((port, frame),) = switches[here].run(7, frame)
        assert port == there
    start = records_at(frame)
    seen = [RECORD.unpack_from(frame, start + 20 * i) for i in range(8)]
    assert frame[start - 14] == 5
    assert [s[0] for s in seen] == [*way[:5], 0, 0, 0]
    assert [s[2] for s in seen[:5]] == way[1:]
    assert [s[4] for s in seen[:5]] == [1005, 1010, 1015, 1020, 1025]
