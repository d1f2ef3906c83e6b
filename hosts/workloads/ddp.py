"""One data-parallel training step as PyTorch's DDP makes it: buckets of gradients, summed during backward.

The model is GPT-2 without biases, as nanoGPT trains it; the defaults are its 124 million parameters. The
head shares the embedding's weights. DDP fills buckets with gradients from the last layer to the first, closes
each as soon as it has reached its limit, and sums one after another (an all-reduce each), while the backward
pass goes on. The embedding's gradient comes last, so its bucket is never hidden behind computing.

Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, 2020, section 3.2,
and DDP's defaults: 1 MiB for the first bucket, 25 MiB for the others; the model of nanoGPT's train.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from mrclab.hosts.workloads.graph import Graph, Op


@dataclass(frozen=True, slots=True)
class DdpStep:
    """A model, its buckets, and how long a rank computes."""

    ranks: int = 4
    layers: int = 12
    width: int = 768
    vocabulary: int = 50_304
    context: int = 1024
    bytes_each: int = 4
    first_bucket_bytes: int = 1 << 20
    bucket_bytes: int = 25 << 20
    forward_ns: int = 16_000_000
    backward_ns: int = 32_000_000

    @property
    def embedding(self) -> int:
        """Return the number of weights of the embedding, which are the head's, too."""
        return self.vocabulary * self.width

    @property
    def tensors(self) -> tuple[int, ...]:
        """Return the number of parameters of each tensor, in the order of the model."""
        wide = self.width**2
        layer = (self.width, 3 * wide, wide, self.width, 4 * wide, 4 * wide)
        return (self.embedding, self.context * self.width, *layer * self.layers, self.width)

    @property
    def parameters(self) -> int:
        """Return the number of all parameters."""
        return sum(self.tensors)

    @property
    def buckets(self) -> tuple[tuple[int, ...], ...]:
        """Return the tensors of each bucket, in the order in which the buckets are full."""
        found: list[tuple[int, ...]] = []
        filling: list[int] = []
        for count in reversed(self.tensors):
            filling.append(count)
            limit_bytes = self.bucket_bytes if found else self.first_bucket_bytes
            if sum(filling) * self.bytes_each >= limit_bytes:
                found.append(tuple(filling))
                filling = []
        return (*found, tuple(filling)) if filling else tuple(found)


def ddp_graph(step: DdpStep) -> Graph:
    """Return the graph of a training step, the same on every rank.

    The time of the backward pass is divided by numbers of weights: the head's part comes first, that of the
    embedding, a sum of rows, takes none.
    """
    group = tuple(range(step.ranks))
    ns_each = step.backward_ns / (step.parameters - step.width * step.context)
    ops = [
        Op(0, "compute", "forward", duration_ns=step.forward_ns),
        Op(1, "compute", "backward head", (0,), duration_ns=round(ns_each * step.embedding)),
    ]
    computed, summed = 1, -1
    for number, bucket in enumerate(step.buckets):
        lookups = (step.embedding, step.width * step.context)
        weights = sum(count for count in bucket if count not in lookups)
        ops.append(
            Op(len(ops), "compute", f"backward {number}", (computed,), duration_ns=round(ns_each * weights))
        )
        computed = len(ops) - 1
        waits = (computed,) if summed < 0 else (computed, summed)
        size_bytes = sum(bucket) * step.bytes_each
        ops.append(
            Op(
                len(ops),
                "collective",
                f"bucket {number}",
                waits,
                size_bytes=size_bytes,
                collective="all-reduce",
                group=group,
            )
        )
        summed = len(ops) - 1
    return Graph("ddp", (tuple(ops),) * step.ranks)
