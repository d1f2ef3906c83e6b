"""Recorded requests: how they are read, for which events they wait, and invalid files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.workloads.graph import AFTER, WAIT, Op, matched
from mrclab.hosts.workloads.recorded import header, read_recorded, recorded_graph
from mrclab.linux.errors import InputError
from mrclab.topologies import load_fabric

LAB = load_fabric("lab")


def sent(posted: int, completed: int, size: int = 100, **more: Any) -> str:
    values = {"posted_ns": posted, "completed_ns": completed, "qpn": 1, "peer": "h6", "peer_qpn": 2}
    return json.dumps({**values, "bytes": size, "imm": 0, "signaled": 1, "status": 0, **more}) + "\n"


def received(at: int, qpn: int = 2, size: int = 100) -> str:
    return json.dumps({"received_ns": at, "qpn": qpn, "bytes": size}) + "\n"


def ops(text: str, pauses: float = 1.0, most: int = 0) -> list[dict[int, Op]]:
    graph = recorded_graph("x", read_recorded(text, "x"), pauses, most)
    matched(graph)
    return [{op.number: op for op in listed} for listed in graph.ranks]


def test_a_window_is_kept_and_so_is_the_time_before_a_request() -> None:
    """Two requests are open at a time. The third request begins 20 ns after the first is complete."""
    text = header(LAB, "h0") + sent(1000, 1500) + sent(1001, 1600) + sent(1520, 2000, 300)
    src, dst = ops(text)
    assert src[1].after == ()
    assert (src[3].stream, src[3].duration_ns, src[4].after) == (WAIT, 1, (3,))
    assert (src[6].stream, src[6].duration_ns, src[6].after) == (AFTER, 20, (1,))
    assert (src[7].after, src[7].size_bytes, src[7].peer) == ((6,), 300, 1)
    assert [op.kind for op in dst.values()] == ["receive"] * 3


def test_without_pauses_only_the_order_is_left() -> None:
    text = header(LAB, "h0") + sent(1000, 1500) + sent(1900, 2000)
    src, _ = ops(text, pauses=0)
    assert sorted(src) == [1, 4]
    assert src[4].after == (1,)


def test_an_answer_waits_for_the_immediate_that_it_answers() -> None:
    """h6 posted its reply 7 ns after the second request arrived. So the reply waits for this request."""
    there = header(LAB, "h6") + received(1200) + received(1300)
    there += sent(1307, 1400, peer="h0", qpn=2, peer_qpn=1)
    here = header(LAB, "h0") + sent(1000, 1250, imm=1) + sent(1100, 1350, imm=1)
    for text in (here + there, there + here):
        _, dst = ops(text)
        assert (dst[6].after, dst[6].duration_ns) == ((5,), 7)


def test_a_request_that_is_not_signaled_tells_the_program_nothing() -> None:
    text = header(LAB, "h0") + sent(1000, 1100, signaled=0) + sent(1000, 1200) + sent(1300, 1400)
    src, _ = ops(text)
    assert src[6].after == (4,)


def test_failed_requests_are_counted_and_the_first_ones_can_be_taken() -> None:
    text = header(LAB, "h0") + sent(1, 2) + sent(3, 4, status=12) + sent(5, 6)
    recorded = read_recorded(text, "x")
    assert (len(recorded.requests), recorded.failed) == (2, 1)
    assert sorted(ops(text, most=1)[0]) == [1]


def test_the_last_line_of_an_interrupted_recording_is_left_out() -> None:
    text = header(LAB, "h0") + sent(1, 2) + sent(3, 4)[:30]
    assert len(read_recorded(text, "x").requests) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing to replay"),
        ("\x00\x01\n", "x:1: no line of a recording: take a file of mrclab exec --record"),
        (sent(1, 2), "x:1: the header is missing"),
        (header(LAB, "h0"), "nothing to replay"),
        (header(LAB, "h0") + sent(1, 2, peer="h99"), "x:2: its peer is no other host"),
        (header(LAB, "h0") + sent(1, 2, peer="h0"), "x:2: its peer is no other host"),
        (header(LAB, "h0") + sent(2, 1), "x:2: it is completed before it is posted"),
        (header(LAB, "h0") + sent(1, 2, 1 << 60), "x:2: bytes is no whole number from 0 to"),
        (header(LAB, "h0") + sent(1, 2, qpn=-1), "x:2: qpn is no whole number from 0 to"),
        (header(LAB, "h0") + '{"a": 1}\n', "x:2: neither a request nor an arrival"),
        (header(LAB, "h0") + header(load_fabric("tiny"), "h0"), "x:2: its parts are of different fabrics"),
        (header(LAB, "h0").replace("requests/1", "requests/9"), "x:1: another form than mrclab.requests/1"),
        (header(LAB, "h0") + "[" * 100_000 + "\n", "x:2: no line of a recording"),
    ],
)
def test_a_stranger_s_file_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as found:
        read_recorded(text, "x")
    assert said in str(found.value)
    assert "\n" not in str(found.value)


_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("h6"))
_NAMES = ("posted_ns", "completed_ns", "received_ns", "qpn", "peer", "peer_qpn", "bytes", "imm", "status")
_LINES = st.one_of(
    st.text(max_size=20),
    st.dictionaries(st.sampled_from((*_NAMES, "signaled", "form", "host")), _VALUES).map(json.dumps),
    st.builds(
        lambda posted, took, size, imm, signaled: sent(
            posted, posted + took, size, imm=int(imm), signaled=int(signaled)
        ).strip(),
        *(st.integers(0, 100), st.integers(0, 100), st.integers(0, 9), st.booleans(), st.booleans()),
    ),
    st.integers(0, 200).map(lambda at: received(at).strip()),
)


@given(st.lists(_LINES, max_size=12))
def test_any_text_is_a_graph_that_ends_or_is_refused(lines: list[str]) -> None:
    text = header(LAB, "h0") + "".join(line.replace("\n", " ") + "\n" for line in lines)
    try:
        recorded = read_recorded(text, "x")
    except InputError:
        return
    graph = recorded_graph("x", recorded)
    matched(graph)  # every operation is carried out
    total = sum(op.size_bytes for listed in graph.ranks for op in listed if op.kind == "send")
    assert total == sum(request.size_bytes for request in recorded.requests)
