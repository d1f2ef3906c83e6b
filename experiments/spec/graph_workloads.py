"""Workloads that run a graph of operations: traces, training steps, matrices, random flows, several jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mrclab.hosts.options import link_bps
from mrclab.hosts.workloads.schedules import SCHEDULES
from mrclab.hosts.workloads.sources import (
    arrivals_source,
    collective_source,
    ddp_source,
    distribution_of,
    llm_source,
    matrix_source,
    recorded_source,
    tenants_source,
    trace_source,
)
from mrclab.hosts.workloads.traffic import Arrivals
from mrclab.hosts.workloads.training_steps import DdpStep, LlmStep
from mrclab.topologies import Fabric
from mrclab.topologies.yaml_model import Number, Size, Time, WholeNumber, YamlModel, wrong


class WorkloadModel(YamlModel):
    """The base class of all workloads."""

    kind: str

    @property
    def params(self) -> dict[str, Any]:
        """Return the values of all fields except ``kind``, by the fields' names."""
        return self.model_dump(exclude={"kind"})

    @property
    def lasts_ns(self) -> int | None:
        """Return how long the workload sends, ns. Return None if this time is not set."""
        return getattr(self, "duration_ns", None) or None


Algorithms = Annotated[
    dict[str, str],
    Field(
        default_factory=dict,
        description="algorithms by operation, such as {all-reduce: halving-doubling} (docs/workloads.md)",
    ),
]


class Graph(WorkloadModel):
    """The base class of workloads that run a graph of operations once in each step."""

    steps: Annotated[int, WholeNumber(1, 10_000)] = Field(
        1, description="number of times that the graph is played"
    )
    warmup_steps: Annotated[int, WholeNumber(0, 100)] = Field(
        0, description="number of times that it is played before the measurement"
    )
    ranks_per_host: Annotated[int, WholeNumber(1, 64)] = Field(
        1, description="ranks that share a host and its NIC"
    )
    placement: Literal["packed", "spread"] = Field(
        "packed", description="of ranks: host after host of a rack, or on hosts rack by rack in turns"
    )
    algorithms: Algorithms

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which `mrclab.hosts.workloads.sources.source_of` builds the graph."""
        raise NotImplementedError

    @field_validator("algorithms")
    @classmethod
    def _known(cls, value: dict[str, str]) -> dict[str, str]:
        for operation, name in value.items():
            if operation not in SCHEDULES:
                raise wrong(f"no operation '{operation}': {', '.join(SCHEDULES)}", "algorithms")
            if name not in SCHEDULES[operation]:
                raise wrong(f"no '{name}' for {operation}: {', '.join(SCHEDULES[operation])}", "algorithms")
        return value


class TraceReplay(Graph):
    """An execution trace of MLCommons Chakra (docs/workloads.md)."""

    kind: Literal["trace"]
    path: str = Field(description="a file, a directory, or NAME for NAME.0.et, NAME.1.et and so on")
    groups: str = Field("", description="a JSON file with the ranks of each process group")
    ranks: Annotated[int, WholeNumber(0, 4096)] = Field(
        0, description="how many ranks play a trace of one file; 0: a rank for each file"
    )

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which the graph is built (see `Graph.source`)."""
        return trace_source(self.path, self.groups, self.ranks)


class Llm(Graph):
    """A training step of a small language model with data, tensor, pipeline and expert parallelism."""

    kind: Literal["llm"]
    data: Annotated[int, WholeNumber(1, 1024)] = Field(4, description="data-parallel ranks")
    tensor: Annotated[int, WholeNumber(1, 64)] = Field(1, description="tensor-parallel ranks")
    pipeline: Annotated[int, WholeNumber(1, 64)] = Field(1, description="stages of the pipeline")
    expert: Annotated[int, WholeNumber(1, 1024)] = Field(
        1, description="expert-parallel ranks, of the data-parallel ones; 1: no experts"
    )
    layers: Annotated[int, WholeNumber(1, 256)] = Field(4, description="of the model")
    hidden: Annotated[int, WholeNumber(8, 65536)] = Field(512, description="width of the model")
    ffn: Annotated[int, WholeNumber(0, 1 << 20)] = Field(
        0, description="width of the feed-forward part; 0: 8/3 of hidden"
    )
    tokens: Annotated[int, WholeNumber(1, 1 << 20)] = Field(512, description="tokens of a microbatch")
    microbatches: Annotated[int, WholeNumber(1, 256)] = Field(
        4, description="microbatches of each data-parallel rank in a step"
    )
    bytes_each: Annotated[int, WholeNumber(1, 8)] = Field(2, description="bytes of a value")
    flops: Annotated[float, Number(1e6, 1e18)] = Field(100e12, description="operations a second of each rank")

    @property
    def step(self) -> LlmStep:
        """Return the model and its division among ranks. Raise InputError if the division is not even."""
        return LlmStep(**{item.name: getattr(self, item.name) for item in fields(LlmStep)})

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which the graph is built (see `Graph.source`)."""
        return llm_source(asdict(self.step))


class Ddp(Graph):
    """A data-parallel training step, as in PyTorch's DDP: the backward pass sums buckets of gradients."""

    kind: Literal["ddp"]
    ranks: Annotated[int, WholeNumber(2, 1024)] = Field(4, description="how many ranks take part")
    layers: Annotated[int, WholeNumber(1, 256)] = Field(12, description="of the transformer")
    width: Annotated[int, WholeNumber(8, 65536)] = Field(768, description="of the transformer")
    vocabulary: Annotated[int, WholeNumber(2, 1 << 20)] = Field(50_304, description="rows of its embedding")
    context: Annotated[int, WholeNumber(2, 1 << 20)] = Field(1024, description="positions of its embedding")
    bytes_each: Annotated[int, WholeNumber(1, 8)] = Field(4, description="bytes of a gradient's value")
    first_bucket_bytes: Annotated[int, Size(low=1, high=1 << 30)] = Field(
        1 << 20, alias="first_bucket", description="size from which the first bucket is closed"
    )
    bucket_bytes: Annotated[int, Size(low=1, high=1 << 30)] = Field(
        25 << 20, alias="bucket", description="the same, of the other buckets"
    )
    forward_ns: Annotated[int, Time(high=3600 * 10**9)] = Field(
        16_000_000, alias="forward", description="how long the forward pass computes"
    )
    backward_ns: Annotated[int, Time(high=3600 * 10**9)] = Field(
        32_000_000, alias="backward", description="how long the backward pass computes"
    )

    @property
    def step(self) -> DdpStep:
        """Return the model, the sizes of its buckets, and the computing times."""
        return DdpStep(**{item.name: getattr(self, item.name) for item in fields(DdpStep)})

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which the graph is built (see `Graph.source`)."""
        return ddp_source(asdict(self.step))


class Matrix(Graph):
    """A traffic matrix in the file format of the simulator htsim."""

    kind: Literal["matrix"]
    path: str = Field(description="htsim's file (.cm); node i is the i-th host")

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which the graph is built (see `Graph.source`)."""
        return matrix_source(self.path)


class RecordedProgram(Graph):
    """A recording of a program's requests to its NIC, made by mrclab exec --record (docs/programs.md)."""

    kind: Literal["recorded"]
    placement: Literal["packed", "spread"] = Field(
        "spread", description="of ranks: host after host of a rack, or on hosts rack by rack in turns"
    )
    path: str = Field(description="the recording; those of several hosts in one file, one after another")
    pauses: Annotated[float, Number(0, 1000)] = Field(
        1.0,
        description="multiplies the times that the program let pass between what it waited for and its next "
        "request; 0: as fast as the network",
    )
    requests: Annotated[int, WholeNumber(0, 200_000)] = Field(
        0, description="how many requests are replayed, from the first one on; 0: all"
    )

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which the graph is built (see `Graph.source`)."""
        return recorded_source(self.path, self.pauses, self.requests)


class RandomArrivals(Graph):
    """Random flows with a given load: every host starts flows to random other hosts (Poisson arrivals)."""

    kind: Literal["arrivals"]
    load: Annotated[float, Number(0.001, 1)] = Field(0.5, description="share of a NIC's rate, in the mean")
    sizes: str = Field(
        "web-search", description="web-search, hadoop, or a file with bytes and percent in each line"
    )
    duration_ns: Annotated[int, Time(low=10**3, high=60 * 10**9)] = Field(
        10**6, alias="duration", description="how long flows begin; the run ends with the last of them"
    )
    hosts: Annotated[int, WholeNumber(0, 4096)] = Field(0, description="hosts that take part; 0: all")

    @property
    def lasts_ns(self) -> int | None:
        """Return None: the workload ends with its last flow."""
        return None

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which the graph is built (see `Graph.source`)."""
        rate_bps = link_bps(fabric, fabric.hosts[0].name)
        hosts = self.hosts or len(fabric.hosts) * self.ranks_per_host
        sizes = distribution_of(self.sizes)
        return arrivals_source(Arrivals(hosts, rate_bps, self.load, sizes, self.duration_ns, seed))


class OneCollective(Graph):
    """One collective operation, such as an all-reduce. The key ``algorithms`` chooses its algorithm."""

    kind: Literal["collective"]
    operation: Literal[
        "all-reduce",
        "reduce",
        "all-gather",
        "gather",
        "scatter",
        "broadcast",
        "all-to-all",
        "reduce-scatter",
        "barrier",
    ] = Field("all-reduce", description="the operation (docs/workloads.md)")
    size_bytes: Annotated[int, Size(low=1, high=1 << 30)] = Field(
        1 << 20, alias="size", description="bytes that each rank contributes"
    )
    ranks: Annotated[int, WholeNumber(0, 4096)] = Field(0, description="how many ranks take part; 0: all")

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which the graph is built (see `Graph.source`)."""
        ranks = self.ranks or len(fabric.hosts) * self.ranks_per_host
        return collective_source(self.operation, ranks, self.size_bytes)


class Tenants(Graph):
    """Several jobs on one fabric. All jobs begin each step at the same time."""

    kind: Literal["tenants"]
    jobs: Annotated[
        dict[str, Annotated[TraceReplay | Llm | OneCollective, Field(discriminator="kind")]],
        Field(min_length=2, max_length=16, description="jobs by name: trace, llm or collective"),
    ]

    @field_validator("jobs")
    @classmethod
    def _only_the_outer_keys(cls, value: dict[str, Graph]) -> dict[str, Graph]:
        for name, job in value.items():
            if given := sorted(job.model_fields_set & set(Graph.model_fields) - {"kind"}):
                raise wrong(f"{given[0]} belongs to all jobs: write it beside jobs", "jobs", name, given[0])
            if isinstance(job, OneCollective) and not job.ranks:
                raise wrong("a job among others needs a number of ranks", "jobs", name, "ranks")
        return value

    def source(self, fabric: Fabric, seed: int) -> str:
        """Return the text from which the graph is built (see `Graph.source`)."""
        # If the workload was read from a result.json, its jobs are mappings instead of Graph objects.
        jobs = {name: job if isinstance(job, Graph) else _recorded(job) for name, job in self.jobs.items()}
        return tenants_source({name: job.source(fabric, seed) for name, job in jobs.items()})


def _recorded(job: Mapping[str, Any]) -> Graph:
    return GRAPH_KINDS[job["kind"]].model_construct(**job)


GRAPH_KINDS: dict[str, type[Graph]] = {
    "trace": TraceReplay,
    "llm": Llm,
    "ddp": Ddp,
    "matrix": Matrix,
    "recorded": RecordedProgram,
    "arrivals": RandomArrivals,
    "collective": OneCollective,
    "tenants": Tenants,
}
GRAPHS = tuple(GRAPH_KINDS)
FLOW_GRAPHS = ("matrix", "recorded", "arrivals")
"""The kinds of graphs in which each send is a flow. Each flow is measured separately."""
