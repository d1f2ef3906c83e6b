"""Check what viewers of the page request: traffic and faults. This module does no input or output."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mrclab.experiments.result.file import one_line
from mrclab.faults.kinds import KINDS, Fault
from mrclab.linux.errors import InputError
from mrclab.live.describe import LOOKS, pairs_of
from mrclab.topologies import Fabric

Pattern = Literal["stream", "permutation", "incast", "all-reduce"]
MOST_RANKS = 8
"""The largest number of ranks of an all-reduce. All ranks are processes that share the CPUs."""
MIN_RATE_BPS, MAX_RATE_BPS = 100_000, 1_000_000_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrafficPlan(_Strict):
    """The traffic of a page. All chosen transports send the same traffic at the same time.

    ``rate_bps`` limits the payload rate of each flow; it has no effect on an all-reduce. ``message_bytes`` is
    the length of a message, or of the buffer that an all-reduce sums.
    """

    transports: Annotated[tuple[str, ...], Field(min_length=1, max_length=4)] = ("mrc", "rocev2")
    pattern: Pattern = "stream"
    rate_bps: Annotated[int, Field(ge=MIN_RATE_BPS, le=MAX_RATE_BPS)] = 60_000_000
    message_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] = 32768
    payload_bytes: Literal[1024, 2048, 4096] = 2048
    seed: int = 1

    @field_validator("transports")
    @classmethod
    def _on_the_page(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in LOOKS:
                raise ValueError(f"no transport '{name}': choose {', '.join(LOOKS)}")
        return names

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.transports)) < len(self.transports):
            raise ValueError("each transport once")
        return self

    def check(self, fabric: Fabric) -> None:
        """Raise InputError if the fabric has too many hosts for the pattern."""
        if self.pattern == "all-reduce" and len(fabric.hosts) > MOST_RANKS:
            raise InputError(
                f"an all-reduce here has at most {MOST_RANKS} ranks, and {fabric.name} {len(fabric.hosts)}: "
                "take 'lab' or 'tiny'"
            )

    def pairs(self, fabric: Fabric) -> tuple[tuple[str, str], ...]:
        """Return (source, destination) of each flow of a transport.

        For an all-reduce, return the flows of its ring. The connections for barriers are left out.
        """
        return pairs_of(fabric, self.pattern, self.seed)


def usual_plan(target: str) -> TrafficPlan:
    """Return the traffic with which a new page starts on this target.

    BMv2 needs some 40 times as long as the ebpf target to forward a packet. So on BMv2 the page sends fewer,
    longer packets.
    """
    if target == "bmv2":
        return TrafficPlan(rate_bps=5_000_000, message_bytes=4096, payload_bytes=4096)
    return TrafficPlan()


class FaultRequest(_Strict):
    """A viewer's request for a fault. It has the fields of `mrclab.faults.kinds.Fault`."""

    kind: str
    where: str
    direction: Literal["both", "up", "down"] | None = None
    ratio: float | None = None
    delay_ns: int | None = None
    period_ns: int | None = None
    down_ns: int | None = None
    of: Literal["blackhole", "carrier"] | None = None

    def fault(self) -> Fault:
        """Return the fault, with defaults for missing values."""
        given = {k: v for k, v in self.model_dump().items() if v is not None}
        return Fault(**given)


def traffic_plan(data: object) -> TrafficPlan:
    """Return the plan in a request. If the plan is not valid, raise InputError with a message of one line."""
    try:
        return TrafficPlan.model_validate(data)
    except ValidationError as error:
        raise InputError(one_line(error)) from None


def fault_request(data: object) -> Fault:
    """Return the fault in a request. If the fault is not valid, raise InputError with one line of text."""
    try:
        fault = FaultRequest.model_validate(data).fault()
    except ValidationError as error:
        raise InputError(one_line(error)) from None
    if fault.kind not in KINDS:
        raise InputError(f"no fault kind '{fault.kind}': choose {', '.join(KINDS)}")
    return fault
