"""The workloads that a scenario can name: one model for each kind.

In a spray or a mesh, the hosts' agents send streams (mrclab.hosts.agent). In all other kinds, rank processes
send (mrclab.hosts.collectives).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from mrclab.experiments.spec.graph_workloads import (
    Ddp,
    Llm,
    Matrix,
    OneCollective,
    RandomArrivals,
    RecordedProgram,
    Tenants,
    TraceReplay,
    WorkloadModel,
)
from mrclab.experiments.spec.program_workload import Program
from mrclab.hosts.streams.messages import OVERHEAD_BYTES
from mrclab.hosts.streams.stream import MAX_MESSAGE_BYTES
from mrclab.topologies.units import SIZE_PATTERN
from mrclab.topologies.yaml_model import Number, Rate, Size, Time, WholeNumber, YamlModel, wrong

AUTO = "auto"
WEEK_NS = 7 * 24 * 3600 * 10**9


Src = Annotated[str, Field(description="a host; auto: the first of the first rack")]
Dst = Annotated[str, Field(description="a host; auto: the first of the last rack")]
Duration = Annotated[int, Time(low=10**3, high=3600 * 10**9)]
Message = Annotated[int, Size(low=32, high=16 << 20)]
Paced = Annotated[int, Rate(high=10**12)]

_RATE = Field(0, alias="rate", description="rate of each flow's payload, paced; 0 bit/s: as fast as possible")
_DURATION = Field(10**9, alias="duration", description="how long it sends, after the warm-up")
_MESSAGE = Field(8192, description="size of a message")


class _Flow(WorkloadModel):
    src: Src = AUTO
    dst: Dst = AUTO
    message_bytes: Message = _MESSAGE
    rate_bps: Paced = _RATE
    depth: Annotated[int, WholeNumber(1, 64)] = Field(
        16, description="messages in flight at most, of each flow"
    )
    duration_ns: Duration = _DURATION


class Stream(_Flow):
    """One flow from ``src`` to ``dst``."""

    kind: Literal["stream"]


class Bidirectional(_Flow):
    """Two flows between ``src`` and ``dst``, one in each direction."""

    kind: Literal["bidirectional"]


class Join(_Flow):
    """A flow, and a second flow between other hosts that begins later."""

    kind: Literal["join"]
    second_src: str = Field("", description="the host that the second flow comes from")
    second_dst: str = Field("", description="the host that it goes to")
    second_at_ns: Annotated[int, Time(high=3600 * 10**9)] = Field(
        10**9, alias="second_at", description="when it begins, after the start of the measurement"
    )
    second_rate_bps: Paced = Field(
        0, alias="second_rate", description="rate of its payload, paced; 0 bit/s: as fast as possible"
    )


class RequestResponse(WorkloadModel):
    """``src`` sends a request and waits for the answer of ``dst`` before it sends the next request."""

    kind: Literal["request-response"]
    src: Src = AUTO
    dst: Dst = AUTO
    message_bytes: Message = _MESSAGE
    response_bytes: Message = Field(8192, description="size of an answer")
    duration_ns: Duration = _DURATION


class Permutation(WorkloadModel):
    """Every host sends to one other host and receives from one other host."""

    kind: Literal["permutation"]
    ranks: Annotated[int, WholeNumber(0, 1024)] = Field(
        0, description="how many hosts take part, rack by rack in turns; 0: all"
    )
    one_way: bool = Field(
        False, description="half of the hosts send to the other half: nobody both sends and receives"
    )
    message_bytes: Message = _MESSAGE
    rate_bps: Paced = _RATE
    depth: Annotated[int, WholeNumber(1, 64)] = Field(
        16, description="messages in flight at most, of each flow"
    )
    duration_ns: Duration = _DURATION


class Incast(WorkloadModel):
    """Many hosts send to one host at the same time."""

    kind: Literal["incast"]
    dst: Dst = AUTO
    senders: Annotated[int, WholeNumber(0, 1024)] = Field(
        0, description="how many hosts send to it; 0: all that can"
    )
    victim: bool = Field(
        False, description="adds a flow to a neighbour of dst from a host outside the incast, of another rack"
    )
    join_every_ns: Annotated[int, Time(high=3600 * 10**9)] = Field(
        0, alias="join_every", description="time between the starts of two senders; 0: all start at once"
    )
    message_bytes: Message = _MESSAGE
    rate_bps: Paced = _RATE
    depth: Annotated[int, WholeNumber(1, 64)] = Field(
        16, description="messages in flight at most, of each flow"
    )
    duration_ns: Duration = _DURATION


class _Job(WorkloadModel):
    ranks: Annotated[int, WholeNumber(0, 1024)] = Field(
        0, description="how many ranks take part, on hosts rack by rack in turns; 0: all"
    )
    ranks_per_host: Annotated[int, WholeNumber(1, 64)] = Field(
        1, description="ranks that share a host and its NIC"
    )
    dtype: Literal["float32", "int32"] = Field("float32", description="type of the elements")


_SIZE: dict[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]
}


def _as_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value if isinstance(value, tuple) else (value,)


_SIZES = {"anyOf": [{"type": "array", "items": _SIZE, "minItems": 1}, *_SIZE["anyOf"]]}


class _Collective(_Job):
    sizes_bytes: Annotated[
        tuple[Annotated[int, Size(low=4, high=1 << 30)], ...],
        BeforeValidator(_as_list),
        Field(min_length=1),
        WithJsonSchema(_SIZES),
    ] = Field(
        (1 << 20,),
        alias="sizes",
        description="bytes of each rank's buffer: a size, or a list of sizes to sweep",
    )
    iterations: Annotated[int, WholeNumber(1, 100_000)] = Field(
        5, description="operations of each size that count"
    )
    warmup_iterations: Annotated[int, WholeNumber(0, 1000)] = Field(
        1, description="operations of each size before those that count"
    )


class AllReduce(_Collective):
    """A ring all-reduce."""

    kind: Literal["all-reduce"]


class AllGather(_Collective):
    """A ring all-gather."""

    kind: Literal["all-gather"]


class AllToAll(_Collective):
    """Every rank sends data to every other rank."""

    kind: Literal["all-to-all"]


class Training(_Job):
    """Steps as in synchronous training: each step computes, then all-reduces the gradients."""

    kind: Literal["training"]
    size_bytes: Annotated[int, Size(low=4, high=1 << 30)] = Field(
        1 << 20, alias="size", description="bytes of gradients that a step all-reduces"
    )
    compute_ns: Annotated[int, Time(high=3600 * 10**9)] = Field(
        5_000_000, alias="compute", description="how long each step computes before that"
    )
    steps: Annotated[int, WholeNumber(1, 1_000_000)] = Field(50, description="how many steps")


class Transformer(WorkloadModel):
    """Data-parallel training of a small transformer: each step sums the gradients of all ranks."""

    kind: Literal["transformer"]
    ranks: Annotated[int, WholeNumber(0, 64)] = Field(
        0, description="how many ranks take part, one a host, rack by rack in turns; 0: all"
    )
    steps: Annotated[int, WholeNumber(1, 100_000)] = Field(100, description="how many steps")
    compute_ns: Annotated[int, Time(high=3600 * 10**9)] = Field(
        100_000_000,
        alias="compute",
        description="how long each step computes at least; the CPUs need the rest for the network",
    )
    layers: Annotated[int, WholeNumber(1, 24)] = Field(2, description="of the transformer")
    width: Annotated[int, WholeNumber(8, 1024)] = Field(
        64, description="of the transformer, a multiple of heads"
    )
    heads: Annotated[int, WholeNumber(1, 16)] = Field(4, description="of its attention")
    context: Annotated[int, WholeNumber(2, 512)] = Field(
        64, description="characters that a prediction may look back at"
    )
    batch: Annotated[int, WholeNumber(1, 256)] = Field(
        8, description="sequences of that length that each rank learns from in a step"
    )
    checkpoint_steps: Annotated[int, WholeNumber(1, 100_000)] = Field(
        50, description="a job that is started again goes on from the last multiple of so many steps"
    )
    collective_timeout_ns: Annotated[int, Time(10**6, 3600 * 10**9)] = Field(
        2 * 10**9,
        alias="collective_timeout",
        description="what a library's watchdog would wait for a collective before it ends the job; "
        "computed from the run, nothing is ended",
    )
    restart_ns: Annotated[int, Time(high=3600 * 10**9)] = Field(
        10 * 10**9, alias="restart", description="how long the job would take to be started again"
    )

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.heads:
            raise wrong(f"is not a multiple of the {self.heads} heads", "width")
        return self


class Spray(WorkloadModel):
    """A stream of WRITEs with immediate data at a constant rate, which one NIC sprays over all paths."""

    kind: Literal["spray"]
    src: Src = AUTO
    dst: Dst = AUTO
    message_bytes: Annotated[int, Size(OVERHEAD_BYTES + 1, MAX_MESSAGE_BYTES)] = Field(
        16384, description="size of a message"
    )
    payload_bytes: Annotated[int, WholeNumber(256, 4096)] = Field(
        4096, description="payload of a packet, at most"
    )
    burst: Annotated[int, WholeNumber(0, 64)] = Field(
        0, description="packets that the NIC sends at a time, at the rate's pace; 0: whole messages"
    )
    rate_bps: Annotated[int, Rate(10**5, 10**12)] = Field(
        150_000_000, alias="rate", description="rate of payload"
    )
    busy: Annotated[float, Number(0, 1)] = Field(
        0.0,
        description="lower the rate, in the warm-up and after each trial, until no endpoint uses a larger "
        "share of its CPU; 0: never",
    )
    duration_ns: Annotated[int, Time(high=WEEK_NS)] = Field(
        0, alias="duration", description="how long it sends, after the warm-up; 0: until the faults are over"
    )

    @model_validator(mode="after")
    def _busy_needs_a_burst(self) -> Self:
        if self.busy and not self.burst:
            raise wrong("needs a burst: whole messages are not paced by the NIC", "busy")
        return self


class Mesh(WorkloadModel):
    """Streams in both directions between all pairs of some hosts. Every byte is checked."""

    kind: Literal["mesh"]
    hosts: Annotated[int, WholeNumber(2, 64)] = Field(
        4, description="how many hosts take part, spread over the racks"
    )
    qps: Annotated[int, WholeNumber(1, 64)] = Field(2, description="queue pairs of each pair of hosts")
    rate_bps: Annotated[int, Rate(10**5, 10**12)] = Field(
        80_000_000, alias="rate", description="rate of payload, all streams together"
    )
    message_bytes: Annotated[int, Size(OVERHEAD_BYTES + 1, MAX_MESSAGE_BYTES)] = Field(
        1 << 16, description="size of a message, at most; sizes start at 0"
    )
    payload_bytes: Annotated[int, WholeNumber(256, 4096)] = Field(
        4096, description="payload of a packet, at most"
    )
    duration_ns: Annotated[int, Time(10**9, WEEK_NS)] = Field(
        60 * 10**9, alias="duration", description="how long it sends, after the warm-up"
    )


Workload = Annotated[
    Stream
    | Bidirectional
    | Join
    | RequestResponse
    | Permutation
    | Incast
    | AllReduce
    | AllGather
    | AllToAll
    | Training
    | Transformer
    | TraceReplay
    | Llm
    | Ddp
    | Matrix
    | RecordedProgram
    | RandomArrivals
    | OneCollective
    | Tenants
    | Spray
    | Mesh
    | Program,
    Field(discriminator="kind"),
]
KINDS: dict[str, type[YamlModel]] = {
    "stream": Stream,
    "bidirectional": Bidirectional,
    "join": Join,
    "request-response": RequestResponse,
    "permutation": Permutation,
    "incast": Incast,
    "all-reduce": AllReduce,
    "all-gather": AllGather,
    "all-to-all": AllToAll,
    "training": Training,
    "transformer": Transformer,
    "trace": TraceReplay,
    "llm": Llm,
    "ddp": Ddp,
    "matrix": Matrix,
    "recorded": RecordedProgram,
    "arrivals": RandomArrivals,
    "collective": OneCollective,
    "tenants": Tenants,
    "spray": Spray,
    "mesh": Mesh,
    "program": Program,
}
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all")
AGENT_KINDS = ("spray", "mesh")
MRC_KINDS = (*AGENT_KINDS, "program")
"""Workloads that only the transport MRC can carry."""
