"""The data-parallel step: sizes of a real model, buckets by DDP's rule, and the effect of overlap."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mrclab.hosts.workloads.graph import matched
from mrclab.hosts.workloads.training_steps import DdpStep, ddp_graph

NANO = DdpStep()
SMALL = DdpStep(ranks=3, layers=2, width=16, vocabulary=100, context=32, first_bucket_bytes=1000)


def test_the_model_has_the_size_that_nanogpt_prints() -> None:
    """nanoGPT prints 123.59 million parameters. It does not count the position embeddings."""
    assert NANO.parameters == 124_373_760
    assert NANO.parameters - NANO.context * NANO.width == 123_587_328


@pytest.mark.parametrize("step", [NANO, SMALL, DdpStep(bucket_bytes=1 << 30)])
def test_buckets_hold_every_gradient_once_from_the_last_layer_on(step: DdpStep) -> None:
    assert [count for bucket in step.buckets for count in bucket] == list(reversed(step.tensors))


def test_a_bucket_is_closed_as_soon_as_it_has_reached_its_limit() -> None:
    sizes = [[count * NANO.bytes_each for count in bucket] for bucket in NANO.buckets]
    limits = [NANO.first_bucket_bytes] + [NANO.bucket_bytes] * (len(sizes) - 1)
    for bucket, limit in zip(sizes, limits, strict=True):
        assert sum(bucket) >= limit
        assert sum(bucket[:-1]) < limit
    assert len(sizes) == 13
    assert sizes[-1][-1] == NANO.embedding * 4  # the embedding's bucket is last and the largest


@pytest.mark.parametrize("step", [NANO, SMALL])
def test_buckets_are_summed_one_after_another_while_the_backward_pass_goes_on(step: DdpStep) -> None:
    graph = ddp_graph(step)
    assert matched(graph).graph.size == step.ranks
    ops = graph.ranks[0]
    sums = [op for op in ops if op.kind == "collective"]
    assert sum(op.size_bytes for op in sums) == step.parameters * step.bytes_each
    for earlier, later in pairwise(sums):
        assert earlier.number in later.after
    computed = sum(op.duration_ns for op in ops if op.kind == "compute")
    assert computed == pytest.approx(step.forward_ns + step.backward_ns, abs=len(ops))
    waits = {number for op in ops if op.kind == "compute" for number in op.after}
    assert not waits & {op.number for op in sums}  # no computation waits for the network
