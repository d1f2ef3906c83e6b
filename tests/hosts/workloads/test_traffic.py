"""Traffic matrices of htsim, random arrivals, and invalid input."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.workloads.graph import WAIT, Graph, matched
from mrclab.hosts.workloads.traffic import (
    DISTRIBUTIONS,
    Arrivals,
    arrivals_graph,
    drawn_bytes,
    mean_bytes,
    read_distribution,
    read_matrix,
)
from mrclab.linux.errors import InputError

SERIAL = """\
# all-to-all, one flow after another
Nodes 3
Connections 3
Triggers 1
0->1 id 1 start 2000000 size 1000 send_done_trigger 1
0->2 id 2 msg trigger 1 size 500 prio 7
2->1 id 3 start 0.0 size 20
trigger id 1 oneshot
"""


def sends(graph: Graph) -> dict[int, tuple[int, int, tuple[int, ...]]]:
    return {
        op.number: (op.peer, op.size_bytes, op.after)
        for ops in graph.ranks
        for op in ops
        if op.kind == "send"
    }


def test_a_matrix_of_htsim_is_read() -> None:
    graph = matched(read_matrix(SERIAL, "m.cm")).graph
    assert sends(graph) == {1: (1, 1000, (0,)), 4: (2, 500, (1,)), 7: (1, 20, ())}
    (wait,) = [op for op in graph.ranks[0] if op.stream == WAIT]
    assert wait.duration_ns == 2000  # starts are in picoseconds


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("0->1 start 0", "m.cm:9: a connection needs a size"),
        ("0->1 size 5", "either start or trigger"),
        ("0->1 start 0 trigger 1 size 5", "either start or trigger"),
        ("0->1 start 0 size", "'size' has no value"),
        ("0->1 start x size 5", "start is 'x': a whole number"),
        ("0->0 start 0 size 5", "a flow needs two nodes"),
        ("0->9 start 0 size 5", "0->9 of 3 nodes"),
        ("0->1 start 0 size 5 colour 3", "a connection has no 'colour'"),
        ("0->1 trigger 8 size 5", "m.cm:9: nothing sets off trigger 8"),
        ("1->0 trigger 1 size 5", "trigger 1 is set off by another node"),
        ("0->1 start 0 size 5 recv_done_trigger 3", "only send_done_trigger"),
        ("trigger id 3", "a trigger needs an id, and oneshot"),
        ("failure switch_type TOR", "failures belong into the scenario's faults"),
        ("hello", "no line of a traffic matrix: 'hello'"),
    ],
)
def test_a_line_that_cannot_be_played_is_named(line: str, text: str) -> None:
    with pytest.raises(InputError, match=text) as found:
        read_matrix(f"{SERIAL}{line}\n", "m.cm")
    assert "\n" not in str(found.value)


def test_a_trigger_of_several_flows_must_be_a_barrier() -> None:
    both = SERIAL + "0->1 start 0 size 9 send_done_trigger 1\n"
    with pytest.raises(InputError, match=r"trigger 1 \(oneshot 0\) is set off by 2 flows"):
        read_matrix(both, "m.cm")
    graph = read_matrix(both.replace("id 1 oneshot", "id 1 barrier count 2"), "m.cm")
    assert sends(graph)[4][2] == (1, 10)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*SERIAL.split(), "\n", "-1", "9" * 30, "barrier", "count"]), max_size=60))
def test_shuffled_words_are_a_matrix_or_bad_input(words: list[str]) -> None:
    problem = ""
    try:
        matched(read_matrix("Nodes 3\n" + " ".join(words), "m.cm"))
    except InputError as error:
        problem = str(error)
    assert "\n" not in problem


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_drawn_sizes_have_the_mean_of_the_distribution(name: str) -> None:
    sizes, rng = DISTRIBUTIONS[name], random.Random(4)
    drawn = [drawn_bytes(sizes, rng.random()) for _ in range(200_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean_bytes(sizes), rel=0.05)
    assert min(drawn) >= 1
    assert max(drawn) <= sizes[-1][0]


def test_arrivals_have_the_load_that_is_asked() -> None:
    rate_bps, duration_ns = 4 * 10**11, 3 * 10**7
    given = Arrivals(16, rate_bps, 0.6, DISTRIBUTIONS["hadoop"], duration_ns, 3)
    graph = arrivals_graph(given)
    total = sum(size for _, size, _ in sends(graph).values())
    assert total * 8e9 / (16 * rate_bps * duration_ns) == pytest.approx(0.6, rel=0.05)
    assert arrivals_graph(given) == graph
    matched(graph)


def test_too_many_arrivals_are_refused() -> None:
    with pytest.raises(InputError, match="200000 at most: a shorter duration"):
        arrivals_graph(Arrivals(64, 10**12, 1.0, DISTRIBUTIONS["hadoop"], 10**9, 1))


def test_distributions_are_read_from_files() -> None:
    assert read_distribution("0 0\n# x\n10 50\n20 100\n", "d") == ((0, 0.0), (10, 0.5), (20, 1.0))
    for text, problem in (
        ("0 0\n10 50\n", "rises from 0 to 100 percent"),
        ("0 0\n10 60\n20 60\n30 100", "a distribution rises"),
        ("0 0\nten 100", "d:2: bytes and percent"),
        ("0 0\n10 nan\n", "percent 0 to 100"),
    ):
        with pytest.raises(InputError, match=problem):
            read_distribution(text, "d")
