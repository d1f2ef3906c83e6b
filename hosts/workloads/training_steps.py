"""One training step of a language model as a graph: with Megatron-LM's parallelism, or with PyTorch's DDP.

``llm_graph``: data, tensor, pipeline and expert parallel. The model is a decoder like Llama: a layer has
attention (4 h^2 weights) and a gated feed-forward part (3 h f weights). Here h is ``hidden``, and f is the
width of the feed-forward part. Ranks are numbered as in Megatron-LM: the tensor number changes fastest, then
data, then pipeline. The members of an expert-parallel group are neighbours in the data dimension. Each value
in a message has `bytes_each` bytes. The communication is:

* tensor: an all-reduce of the activations after attention and after feed-forward, in both directions;
* pipeline: activations to the next stage and gradients back, alternating forward and backward (1F1B);
* expert: an all-to-all before and after feed-forward, in both directions;
* data: an all-reduce of a layer's gradients after the layer's last backward pass, then the optimizer.

Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021, for the
schedule, the sizes, and the operations for each weight and token (2 forward, 4 backward).

``ddp_graph``: buckets of gradients, summed during the backward pass. The model is GPT-2 without biases, as in
nanoGPT; the defaults are its 124 million parameters. The head shares the embedding's weights. DDP fills
buckets with gradients from the last layer to the first, and closes a bucket when it reaches its limit. An
all-reduce sums each bucket, one after another, during the backward pass. The embedding's gradient is the
last, so nothing is computed during the all-reduce of its bucket.

Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, 2020, section 3.2,
and DDP's defaults: 1 MiB for the first bucket, 25 MiB for the others; the model of nanoGPT's train.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from mrclab.hosts.workloads.graph import Graph, Kind, Op
from mrclab.linux.errors import InputError

MOST = 10**6
"""The largest number in an `LlmStep`, except for the speed."""
MOST_PASSES = 100_000
"""The most passes of a microbatch through a layer, over all ranks. These are some 400,000 operations."""


@dataclass(frozen=True, slots=True)
class LlmStep:
    """A model, its division among ranks, and the speed of the ranks."""

    data: int = 4
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    layers: int = 4
    hidden: int = 512
    ffn: int = 0
    """Width of the feed-forward part. 0 means 8/3 of ``hidden``, as in Llama."""
    tokens: int = 512
    """Tokens of a microbatch on each data-parallel rank."""
    microbatches: int = 4
    bytes_each: int = 2
    flops: float = 100e12
    """Floating-point operations per second of each rank."""

    def __post_init__(self) -> None:
        """Raise InputError if a number is out of range, or the model cannot be divided evenly."""
        for item in fields(self):
            value = getattr(self, item.name)
            least, most = (0 if item.name == "ffn" else 1, math.inf if item.name == "flops" else MOST)
            if not least <= value <= most:
                limit = f" and at most {MOST:,}" if value > most else ""
                raise InputError(f"llm: {item.name} is {value}: at least {least}{limit}")
        if self.ranks < 2:
            raise InputError("llm: one rank has nobody to talk to: data, tensor or pipeline 2 or more")
        for whole, by in (("layers", "pipeline"), ("data", "expert"), ("hidden", "tensor")):
            if getattr(self, whole) % getattr(self, by):
                raise InputError(
                    f"llm: {whole} {getattr(self, whole)} is no multiple of {by} {getattr(self, by)}"
                )

        passes = self.data * self.tensor * self.layers * self.microbatches
        if passes > MOST_PASSES:
            raise InputError(
                f"llm: data x tensor x layers x microbatches is {passes:,}: at most {MOST_PASSES:,}"
            )

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.data * self.tensor * self.pipeline

    @property
    def width(self) -> int:
        """Return the width of the feed-forward part."""
        return self.ffn or 8 * self.hidden // 3

    def rank(self, pipeline: int, data: int, tensor: int) -> int:
        """Return the number of a rank."""
        return (pipeline * self.data + data) * self.tensor + tensor


def llm_graph(step: LlmStep) -> Graph:
    """Return the graph of a training step."""
    ranks = [
        tuple(_Rank(step, p, d, t).ops())
        for p in range(step.pipeline)
        for d in range(step.data)
        for t in range(step.tensor)
    ]
    return Graph("llm", tuple(ranks))


@dataclass(slots=True)
class _Rank:
    """Builder of the operations of one rank."""

    step: LlmStep
    pipeline: int
    data: int
    tensor: int
    listed: list[Op] = field(default_factory=list)

    def _add(self, kind: Kind, name: str, after: tuple[int, ...], **rest: int | str | tuple[int, ...]) -> int:
        number = len(self.listed)
        self.listed.append(Op(number, kind, name, after, **rest))  # type: ignore[arg-type]
        return number

    def _compute(self, name: str, operations: float, after: tuple[int, ...]) -> int:
        duration_ns = round(operations / self.step.flops * 1e9)
        return self._add("compute", name, after, duration_ns=duration_ns)

    def _collective(self, what: str, size: int, group: tuple[int, ...], name: str, after: int) -> int:
        if len(group) == 1:
            return after
        return self._add(
            "collective", f"{what} {name}", (after,), size_bytes=size, collective=what, group=group
        )

    @property
    def _tensor_group(self) -> tuple[int, ...]:
        return tuple(self.step.rank(self.pipeline, self.data, t) for t in range(self.step.tensor))

    def _data_group(self, first: int, stride: int, count: int) -> tuple[int, ...]:
        return tuple(self.step.rank(self.pipeline, first + stride * i, self.tensor) for i in range(count))

    def ops(self) -> list[Op]:
        """Return the operations of the step, in the order in which the rank's program calls them."""
        s = self.step
        ahead = min(s.pipeline - self.pipeline - 1, s.microbatches)
        last = -1
        done: list[int] = []
        turns = [("forward", i) for i in range(ahead)]
        for i in range(s.microbatches - ahead):
            turns += [("forward", ahead + i), ("backward", i)]
        turns += [("backward", i) for i in range(s.microbatches - ahead, s.microbatches)]
        for direction, number in turns:
            final = direction == "backward" and number == s.microbatches - 1
            last, reduced = self._pass(direction, number, last, final=final)
            done += reduced
        weights = s.layers // s.pipeline * self._weights()
        self._compute("optimizer", 12 * weights / s.tensor, (last, *done))
        return self.listed

    def _weights(self) -> float:
        return 4 * self.step.hidden**2 + 3 * self.step.hidden * self.step.width

    def _pass(self, direction: str, number: int, after: int, *, final: bool) -> tuple[int, list[int]]:
        """Add a microbatch's operations in this stage.

        Return the number of the last added operation, and the numbers of the added all-reduces.
        """
        s = self.step
        forward = direction == "forward"
        before, behind = (-1, 1) if forward else (1, -1)
        size = s.tokens * s.hidden * s.bytes_each
        tag = 2 * number + (not forward)
        waits = (after,) if after >= 0 else ()
        source = self.pipeline + before
        if 0 <= source < s.pipeline:
            peer = s.rank(source, self.data, self.tensor)
            got = self._add(
                "receive", f"{direction} {number}", (), size_bytes=size // s.tensor, peer=peer, tag=tag
            )
            waits = (*waits, got)
        reduced: list[int] = []
        layers = range(s.layers // s.pipeline)
        last = -1
        for layer in layers if forward else reversed(layers):
            last = self._layer(f"{direction} {number}.{layer}", forward=forward, waits=waits, size=size)
            waits = (last,)
            if final:
                reduced += self._gradients(layer, last)
        target = self.pipeline + behind
        if 0 <= target < s.pipeline:
            peer = s.rank(target, self.data, self.tensor)
            self._add(
                "send", f"{direction} {number}", (last,), size_bytes=size // s.tensor, peer=peer, tag=tag
            )
        return last, reduced

    def _layer(self, name: str, *, forward: bool, waits: tuple[int, ...], size: int) -> int:
        s = self.step
        each = (2 if forward else 4) * s.tokens / s.tensor
        attention = each * (4 * s.hidden**2 + 2 * s.tokens * s.hidden)
        parts = [("attention", attention), ("feed-forward", each * 3 * s.hidden * s.width)]
        last = -1
        for what, operations in parts if forward else reversed(parts):
            experts = what == "feed-forward" and s.expert > 1
            group = self._data_group(self.data // s.expert * s.expert, 1, s.expert)
            if experts:
                if last < 0:
                    last = self._add("compute", f"router {name}", waits)
                last = self._collective("all-to-all", size // s.tensor, group, f"dispatch {name}", last)
                waits = (last,)
            last = self._compute(f"{what} {name}", operations, waits)
            if experts:
                last = self._collective("all-to-all", size // s.tensor, group, f"combine {name}", last)
            last = self._collective("all-reduce", size, self._tensor_group, f"{what} {name}", last)
            waits = (last,)
        return last

    def _gradients(self, layer: int, after: int) -> list[int]:
        """Add the all-reduces of a layer's gradients. Gradients of experts have a smaller group of ranks."""
        s = self.step
        dense, experts = 4 * s.hidden**2, 3 * s.hidden * s.width
        everyone = self._data_group(0, 1, s.data)
        if s.expert == 1:
            parts = [("gradients", dense + experts, everyone)]
        else:
            same = self._data_group(self.data % s.expert, s.expert, s.data // s.expert)
            parts = [("gradients", dense, everyone), ("expert gradients", experts, same)]
        return [
            self._collective(
                "all-reduce", weights * s.bytes_each // s.tensor, group, f"{name} {layer}", after
            )
            for name, weights, group in parts
        ]


@dataclass(frozen=True, slots=True)
class DdpStep:
    """A model, its buckets, and the computing times of a rank."""

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
        """Return the number of weights of the embedding, which the head shares."""
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
        """Return the sizes of the tensors in each bucket, in the order in which the buckets become full."""
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
    """Return the graph of a training step, which is the same on every rank.

    The backward pass begins with the head. Each part of the model takes time in proportion to its number of
    weights. The embedding takes no time, because it only adds gradients to rows of a table.
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
