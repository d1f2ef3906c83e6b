"""The entries of a scenario's ``faults``. There are four forms: timed, in sequence, random, and drains.

``mrclab.experiments.spec.fault_schedule`` makes a schedule from the entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from mrclab.faults.kinds import ALL_KINDS, PARAMETERS, Fault
from mrclab.topologies.yaml_model import Number, Time, WholeNumber, YamlModel, wrong

RANDOM, BUSIEST, DRAIN = "random", "busiest", "drain"
BUSIEST_NS = 200_000_000
"""The time, ns, before the measurement at which live targets begin to search for the busiest link."""
AnyTime = Annotated[int, Time()]


def _known(name: str) -> str:
    if name not in ALL_KINDS:
        *names, last = ALL_KINDS
        raise ValueError(f"must be {', '.join(names)} or {last}, not '{name}'")
    return name


Kind = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(ALL_KINDS)})]


def repeats(kind: str) -> bool:
    """Return True if this kind of fault (such as a flap) starts and ends once in every period."""
    return ALL_KINDS[kind].phases is not None and "period_ns" in ALL_KINDS[kind].takes


def boots_again(kind: str) -> bool:
    """Return True if this kind of fault (such as the reboot of a switch) ends by itself after some time."""
    return ALL_KINDS[kind].phases is not None and not repeats(kind)


def _as_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value if isinstance(value, tuple) else (value,)


_WHERE = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
}


class _PlacedFault(YamlModel):
    """The keys that timed faults and faults in sequence have in common: what breaks, where, and how."""

    kind: Kind = Field(description="what breaks (docs/faults.md)")
    where: Annotated[
        tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1), WithJsonSchema(_WHERE)
    ] = Field(
        description="a name or a pattern with * ? [], or a list of them; random: of the links that the "
        "traffic can take; busiest: the link that carries most at the end of the warm-up"
    )
    direction: Literal["both", "up", "down"] = Field("both", description="up is away from the hosts")
    ratio: Annotated[float, Number(0, 1)] = Field(
        1.0, description="share of frames lost or corrupted, or of the rate that is left"
    )
    delay_ns: AnyTime = Field(1_000_000, alias="delay", description="added to a link, each way (kind delay)")
    period_ns: Annotated[int, Time(10_000_000)] = Field(
        10**9,
        alias="period",
        description="from the start of one cycle to the next (flap, failing-optic)",
    )
    down_ns: AnyTime = Field(
        500_000_000, alias="down", description="time that it is down in each period (flap, failing-optic)"
    )
    of: Literal["blackhole", "carrier"] = Field("blackhole", description="what a flap does each time")

    @model_validator(mode="after")
    def _takes_only_its_options(self) -> Self:
        takes = () if boots_again(self.kind) else ALL_KINDS[self.kind].takes
        for name, parameter in PARAMETERS.items():
            given = getattr(self, name) != type(self).model_fields[name].default
            if given and name not in takes:
                raise wrong(f"a {self.kind} does not take it", parameter.key)
        if self.delay_ns <= 0:
            raise wrong("must be longer than 0", "delay")
        if self.ratio <= 0:
            raise wrong("must be above 0", "ratio")
        if self.down_ns >= self.period_ns:
            raise wrong("must be longer than down", "period")
        return self

    def fault(self, where: str = "") -> Fault:
        """Return this entry's fault at the place ``where``."""
        return Fault(self.kind, where, **{name: getattr(self, name) for name in PARAMETERS})


class TimedFault(_PlacedFault):
    """Faults at given times of the measurement, once or repeatedly."""

    pick: Annotated[int, WholeNumber(0, 100_000)] = Field(
        0, description="how many of the places to draw each time, by seed; 0: all"
    )
    at_ns: AnyTime = Field(0, alias="at", description="after the measurement starts")
    duration_ns: AnyTime = Field(0, alias="duration", description="how long it stays; 0: to the end")
    every_ns: AnyTime = Field(0, alias="every", description="how long from one time to the next; 0: once")
    count: Annotated[int, WholeNumber(0, 100_000)] = Field(
        0, description="how many times at most; 0: as long as the workload goes on"
    )
    over: Literal["any", "planes", "one-plane"] = Field(
        "any",
        description="which transports meet it: any, those over all planes, or those in one plane, "
        "where the same place may be another share of the fabric",
    )

    @model_validator(mode="after")
    def _times_fit(self) -> Self:
        if self.every_ns and self.duration_ns >= self.every_ns:
            raise wrong("must be longer than its duration", "every")
        if boots_again(self.kind) and not self.duration_ns:
            raise wrong(f"a {self.kind} needs a duration: how long the switch is away", "kind")
        if repeats(self.kind) and (not self.duration_ns or self.every_ns):
            raise wrong(f"a {self.kind} needs a duration, and has a period instead of every", "kind")
        return self


class SequentialFaults(_PlacedFault):
    """Faults one after another. The next fault begins after all paths are in use again."""

    trials: Annotated[int, WholeNumber(1, 100_000)] = Field(description="how many faults")
    hold_ns: Annotated[int, Time(1_000)] = Field(
        100_000_000, alias="hold", description="how long each fault stays"
    )
    settle_ns: AnyTime = Field(
        150_000_000, alias="settle", description="after all paths are back, before the next fault"
    )

    @model_validator(mode="after")
    def _ends_by_itself(self) -> Self:
        if ALL_KINDS[self.kind].phases is not None:
            raise wrong(f"a {self.kind} has times of its own: make it with 'at'", "kind")
        return self


class RandomFaults(YamlModel):
    """Random faults of several kinds on links and NIC ports, during the whole run."""

    kind: Literal["random"]
    every_ns: Annotated[int, Time(10**3)] = Field(
        250_000_000, alias="every", description="mean time from one fault to the next"
    )
    shortest_ns: Annotated[int, Time(10**3)] = Field(
        20_000_000, alias="shortest", description="the shortest time that a fault lasts"
    )
    longest_ns: Annotated[int, Time(10**3)] = Field(
        3 * 10**9, alias="longest", description="the longest time that a fault lasts"
    )
    at_once: Annotated[int, WholeNumber(1, 1000)] = Field(
        5, description="how many faults are active at a time, at most"
    )
    cut_off_ns: AnyTime = Field(
        300_000_000,
        alias="cut_off",
        description="how long two hosts may be without any working path, at most",
    )

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.shortest_ns > self.longest_ns:
            raise wrong("is longer than longest", "shortest")
        return self


class Drain(YamlModel):
    """Maintenance: for a time, hosts avoid some switches or links, and nothing breaks."""

    kind: Literal["drain"]
    where: Annotated[
        tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1), WithJsonSchema(_WHERE)
    ] = Field(description="a switch or link, or a pattern with * ? [], or a list of them")
    at_ns: AnyTime = Field(0, alias="at", description="after the measurement starts")
    duration_ns: AnyTime = Field(0, alias="duration", description="how long hosts avoid it; 0: to the end")


def _form(value: Any) -> str:
    if isinstance(value, RandomFaults | SequentialFaults | TimedFault | Drain):
        names = {RandomFaults: "random", SequentialFaults: "sequence", TimedFault: "timed", Drain: DRAIN}
        return names[type(value)]
    if isinstance(value, Mapping) and value.get("kind") in (RANDOM, DRAIN):
        return str(value["kind"])
    return "sequence" if isinstance(value, Mapping) and "trials" in value else "timed"


FaultSpec = Annotated[
    Annotated[TimedFault, Tag("timed")]
    | Annotated[SequentialFaults, Tag("sequence")]
    | Annotated[RandomFaults, Tag("random")]
    | Annotated[Drain, Tag("drain")],
    Discriminator(_form),
]
FORMS: dict[str, type[YamlModel]] = {
    "timed": TimedFault,
    "sequence": SequentialFaults,
    "random": RandomFaults,
    "drain": Drain,
}
