"""Chakra traces: they are written and read back, and invalid files are refused with a one-line error."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.workloads import chakra
from mrclab.hosts.workloads.chakra import (
    ops_of,
    put_bytes,
    put_int,
    put_message,
    put_varint,
    read_rank,
    write_rank,
)
from mrclab.hosts.workloads.graph import groups_of
from mrclab.hosts.workloads.sources import read_trace, source_of, trace_source
from mrclab.hosts.workloads.training_steps import LlmStep, llm_graph
from mrclab.linux.errors import InputError

GRAPH = llm_graph(LlmStep(data=2, tensor=2, pipeline=2, layers=2, hidden=64, tokens=64, microbatches=2))
GROUPS = groups_of(op for listed in GRAPH.ranks for op in listed)
NAMES = {group: str(number) for number, group in enumerate(GROUPS, 1)}
KNOWN = {name: group for group, name in NAMES.items()}
FILES = [write_rank(ops, NAMES) for ops in GRAPH.ranks]


def attribute(name: str, number: int, value: int | bytes) -> bytes:
    content = put_int(number, value) if isinstance(value, int) else put_bytes(number, value)
    return put_bytes(10, put_bytes(1, name) + content)


def trace(*nodes: bytes, version: str = "0.0.4") -> bytes:
    return b"".join([put_message(put_bytes(1, version)), *map(put_message, nodes)])


def collective(number: int, *more: bytes) -> bytes:
    parts = [put_int(1, number), put_int(3, 7), attribute("comm_type", 7, 0), attribute("comm_size", 7, 64)]
    return b"".join([*parts, *more])


def test_a_written_trace_is_read_back() -> None:
    for rank, data in enumerate(FILES):
        found = read_rank(data, "x")
        assert found.version == "1.0.0"
        ops = tuple(ops_of(found, GRAPH.size, KNOWN, "x"))
        # Chakra's durations are in whole microseconds.
        wanted = tuple(replace(op, duration_ns=-(-op.duration_ns // 1000) * 1000) for op in GRAPH.ranks[rank])
        assert ops == wanted


def test_a_directory_is_a_trace(tmp_path: Path) -> None:
    for rank, data in enumerate(FILES):
        (tmp_path / f"llm.{rank}.et").write_bytes(gzip.compress(data) if rank % 2 else data)
    (tmp_path / "groups.json").write_text(json.dumps({name: list(group) for name, group in KNOWN.items()}))
    groups = str(tmp_path / "groups.json")
    graph = read_trace(str(tmp_path / "llm"), groups)
    assert graph.size == GRAPH.size
    assert source_of(trace_source(str(tmp_path / "llm"), groups)).graph == graph


@pytest.mark.parametrize("number", [7, 9, 11, 13, 15, 17])
def test_sizes_may_be_of_any_type_of_integer(number: int) -> None:
    value = 64 if number < 15 else 128  # zigzag encoding
    node = put_int(3, 7) + attribute("comm_type", 9, 6) + attribute("comm_size", number, value)
    (op,) = ops_of(read_rank(trace(node), "x"), 4, {}, "x")
    assert (op.size_bytes, op.collective, op.group) == (64, "all-to-all", (0, 1, 2, 3))


def test_a_call_on_the_cpu_carries_no_data() -> None:
    call = collective(1, attribute("is_cpu_op", 27, 1), put_int(7, 5))
    (op,) = ops_of(read_rank(trace(call), "x"), 4, {}, "x")
    assert (op.kind, op.duration_ns) == ("compute", 5000)


def test_process_groups_come_from_the_trace() -> None:
    text = json.dumps([{"pg_name": "3", "ranks": [2, 3]}, {"pg_name": "0", "ranks": []}])
    meta = (
        put_int(3, 1) + put_bytes(2, "## process_group:init ##") + put_bytes(8, put_bytes(1, f"['{text}']"))
    )
    found = read_rank(trace(meta, collective(5, attribute("pg_name", 29, b"3"))), "x")
    assert [op.group for op in ops_of(found, 4, {}, "x")][1] == (2, 3)
    everyone = read_rank(trace(meta, collective(5, attribute("pg_name", 29, b"0"))), "x")
    assert [op.group for op in ops_of(everyone, 4, {}, "x")][1] == (0, 1, 2, 3)


def test_no_file_makes_more_dependencies_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chakra, "MAX_DEPENDENCIES", 100)
    node = put_int(3, 4) + put_bytes(5, bytes(range(60)))
    assert len(read_rank(trace(node), "x").nodes[0].after) == 60
    with pytest.raises(InputError, match="more than 100 dependencies"):
        read_rank(trace(node, node), "x")


def test_the_json_form_is_read() -> None:
    document = {
        "workload_graph": [
            {"Id": 4, "Name": "a", "NodeType": 4, "runtime": 7, "data_deps": [99], "is_cpu_op": False},
            {"Id": 5, "NodeType": 7, "data_deps": [4], "comm_type": 2, "comm_size": 10, "is_cpu_op": False},
        ]
    }
    first, second = ops_of(read_rank(json.dumps(document).encode(), "x"), 2, {}, "x")
    assert (first.after, first.duration_ns) == ((), 7000)
    assert (second.after, second.collective) == ((4,), "all-gather")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "a Chakra trace without nodes"),
        (b"\x05\x0a", "it ends inside a message"),
        (put_message(b"\x0b"), "unknown wire type 3"),
        (b"\xff" * 12, "more than 64 bits"),
        (b'{"nodes": []}', "PyTorch's own execution trace"),
        (b'{"workload_graph": 3}', "is no list"),
        (trace(attribute("comm_size", 5, 1 << 32)), "a float has more than 32 bits"),
        (b"{", "no Chakra trace: JSONDecodeError"),
        (b'{"workload_graph": [{}]}', "no Chakra trace: KeyError"),
    ],
)
def test_other_files_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(InputError, match=text) as found:
        read_rank(data, "f.et")
    assert str(found.value).startswith("f.et: ")


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (put_int(3, 7), "it has no comm_type"),
        (put_int(3, 9), "its type is 9"),
        (put_int(3, 5), "comm_size"),
        (collective(1, attribute("comm_type", 7, 77)), "comm_type is 77: 0 to 9"),
        (collective(1, attribute("pg_name", 29, b"9")), "process group '9' is unknown"),
    ],
)
def test_nodes_that_cannot_be_played_are_refused(node: bytes, text: str) -> None:
    with pytest.raises(InputError, match=text):
        list(ops_of(read_rank(trace(node), "f.et"), 4, {}, "f.et"))


def test_missing_and_strange_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.0.et").write_bytes(FILES[0])
    (tmp_path / "a.2.et").write_bytes(FILES[0])
    with pytest.raises(InputError, match="the file of rank 1 is missing"):
        read_trace(str(tmp_path))
    (tmp_path / "b.0.et").write_bytes(FILES[0])
    with pytest.raises(InputError, match="two files of rank 0"):
        read_trace(str(tmp_path))
    with pytest.raises(InputError, match="no trace"):
        read_trace(str(tmp_path / "none"))
    (tmp_path / "c.0.et").write_bytes(b"\x1f\x8b" + b"\x00" * 40)
    with pytest.raises(InputError, match="gzip cannot unpack it"):
        read_trace(str(tmp_path / "c.0.et"), ranks=2)
    (tmp_path / "g.json").write_text("[1]")
    with pytest.raises(InputError, match="no process groups"):
        read_trace(str(tmp_path / "b"), str(tmp_path / "g.json"))


def play(data: bytes) -> None:
    """Read a rank's file. It must be read completely or be refused with one line."""
    problem = ""
    try:
        for op in ops_of(read_rank(data, "f"), 8, KNOWN, "f"):
            assert op.number >= 0
    except InputError as error:
        problem = str(error)
    assert "\n" not in problem


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_are_a_trace_or_bad_input(data: bytes) -> None:
    for form in (data, put_message(b"") + put_varint(len(data)) + data, b"{" + data):
        play(form)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_traces_are_a_trace_or_bad_input(data: st.DataObject) -> None:
    raw = bytearray(FILES[data.draw(st.integers(0, len(FILES) - 1))])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    play(bytes(raw[:cut]))
