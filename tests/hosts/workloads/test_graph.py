"""Match a graph's sends and receives, or refuse the graph with a line that names rank and operation."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mrclab.hosts.workloads.graph import Graph, Op, matched
from mrclab.hosts.workloads.player import step_ns, summary_of
from mrclab.hosts.workloads.training_steps import LlmStep, llm_graph
from mrclab.linux.errors import InputError

BOTH = (0, 1)


def send(number: int, peer: int, size: int = 8, after: tuple[int, ...] = ()) -> Op:
    return Op(number, "send", after=after, size_bytes=size, peer=peer)


def receive(number: int, peer: int, size: int = 8, after: tuple[int, ...] = ()) -> Op:
    return Op(number, "receive", after=after, size_bytes=size, peer=peer)


def sums(number: int, size: int = 8, after: tuple[int, ...] = ()) -> Op:
    return Op(number, "collective", after=after, size_bytes=size, collective="all-reduce", group=BOTH)


def test_ends_of_a_communication_have_one_number() -> None:
    graph = Graph("g", ((send(1, 1), sums(2)), (sums(7), receive(9, 0))))
    found = matched(graph).instance
    assert found[0, 1] == found[1, 9] != found[0, 2] == found[1, 7]


def test_ranks_that_send_before_they_receive_come_to_an_end() -> None:
    around = [(send(0, (r + 1) % 3), receive(1, (r - 1) % 3, after=(0,))) for r in range(3)]
    assert len(matched(Graph("g", tuple(around))).ops) == 3


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ((send(1, 1),), (), "rank 0, operation 1: 1 sends from rank 0 to 1 with tag 0 meet 0 receives"),
        ((send(1, 1),), (receive(1, 0, 9),), "rank 1, operation 1: it receives 9 bytes, rank 0 sends 8"),
        ((send(1, 5),), (), "its peer is 5"),
        ((sums(1),), (), "rank 1 has no collective 0 of this group"),
        ((sums(1),), (sums(1, 9),), "it is all-reduce of 9 bytes, on rank 0 all-reduce of 8"),
        ((sums(1), sums(1)), (sums(1), sums(2)), "its number is not unique"),
        ((sums(1, after=(4,)),), (sums(1),), "it waits for 4, which does not exist"),
        ((sums(1, after=(2,)), sums(2)), (sums(1), sums(2, after=(1,))), "in a circle"),
        ((receive(1, 1), send(2, 1, after=(1,))), (receive(1, 0), send(2, 0, after=(1,))), "in a circle"),
        ((Op(1, "compute", duration_ns=10**15),), (), "an hour at most"),
        ((Op(1, "collective", collective="sum", group=BOTH),), (), "no collective 'sum'"),
        ((Op(1, "collective", collective="barrier", group=(1, 2)),), (), "rank 2 of its group is not"),
    ],
)
def test_a_graph_that_cannot_end_is_refused(first: tuple[Op, ...], second: tuple[Op, ...], text: str) -> None:
    with pytest.raises(InputError, match=text) as found:
        matched(Graph("g", (first, second)))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "step",
    [
        LlmStep(),
        LlmStep(data=2, tensor=2, pipeline=2, layers=4),
        LlmStep(data=4, expert=2, layers=2),
        LlmStep(data=4, tensor=2, pipeline=4, expert=4, layers=8, microbatches=2),
        LlmStep(data=1, pipeline=4, microbatches=8),
    ],
)
def test_a_generated_step_matches(step: LlmStep) -> None:
    found = summary_of(matched(llm_graph(step)), {})
    assert found["ranks"] == step.ranks
    assert found["sent_bytes"]["all"] > 0


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"ffn": -1}, "ffn is -1: at least 0"),
        ({"microbatches": 0}, "microbatches is 0: at least 1"),
        ({"hidden": 10**200}, "at most 1,000,000"),
        ({"flops": 1e-300}, "flops is 1e-300: at least 1"),
        ({"flops": math.nan}, "flops is nan"),
        ({"layers": 10_000}, "is 160,000: at most 100,000"),
    ],
)
def test_a_step_of_impossible_or_huge_numbers_is_refused(numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LlmStep(**numbers)


def test_the_bytes_of_a_generated_step_follow_from_the_model() -> None:
    step = LlmStep(data=4, tensor=2, pipeline=2, layers=4, hidden=64, ffn=192, tokens=128, microbatches=3)
    rows = {(r["what"], r["ranks"]): r for r in summary_of(matched(llm_graph(step)), {})["communication"]}
    activations = 128 * 64 * 2
    # Factors: 8 groups of tensor-parallel ranks, 2 layers, 3 microbatches, 2 directions, 2 parts of a layer.
    assert rows["all-reduce", 2]["bytes"] == 8 * 2 * 3 * 2 * 2 * activations
    # The messages at the stage boundary: 8 pairs of ranks, 3 microbatches, 2 directions.
    assert rows["message", 2]["bytes"] == 8 * 3 * 2 * activations // 2
    weights = 4 * 64 * 64 + 3 * 64 * 192
    assert rows["all-reduce", 4]["bytes"] == 4 * 2 * weights * 2 // 2


def test_a_pipeline_idles_at_its_ends() -> None:
    one = step_ns(matched(llm_graph(LlmStep(data=2, layers=4, microbatches=4))))
    four = step_ns(matched(llm_graph(LlmStep(data=2, layers=4, microbatches=4, pipeline=4))))
    # Without the optimizer, p stages with m microbatches take (m + p - 1) / m times 1/p of one stage's time.
    assert four / (one / 4) == pytest.approx((4 + 3) / 4, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layers": 3, "pipeline": 2}, "layers 3 is no multiple of pipeline 2"),
        ({"flops": 0.0}, "flops is 0.0"),
        ({"data": 1}, "one rank has nobody"),
    ],
)
def test_a_division_that_does_not_come_out_even_is_refused(changes: dict[str, int], text: str) -> None:
    with pytest.raises(InputError, match=text):
        LlmStep(**changes)
