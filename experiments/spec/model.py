"""The model of a scenario: its keys and their checks. It gives the JSON schema and the tables of keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from mrclab.controller.queues import ETHERNET_HEADER
from mrclab.experiments.spec.claim import parse_expectation, require_figure
from mrclab.experiments.spec.fault_schedule import check_makeable, check_places
from mrclab.experiments.spec.faults import (
    BUSIEST,
    BUSIEST_NS,
    Drain,
    FaultSpec,
    RandomFaults,
    SequentialFaults,
    TimedFault,
)
from mrclab.experiments.spec.placement import Placement, metered, place
from mrclab.experiments.spec.profiles import ProfileChange
from mrclab.experiments.spec.transports import TransportEntry, require_simulated
from mrclab.experiments.spec.workloads import MRC_KINDS, Workload
from mrclab.hosts.collectives.verbs_channel import check_options
from mrclab.hosts.transports.table import Transport
from mrclab.linux.errors import InputError
from mrclab.p4src.targets import target_name
from mrclab.simulator.lossless import LEAST_FRAMES
from mrclab.topologies import Fabric, build_fabric, load_fabric
from mrclab.topologies.file import Classes, switch_map
from mrclab.topologies.model import STRUCTURED_MEND, require_live, require_two_tiers
from mrclab.topologies.shipped import TOPOLOGIES
from mrclab.topologies.yaml_model import Number, Time, WholeNumber, YamlModel, wrong

Target = Literal["auto", "ebpf", "bmv2", "sim"]
TARGETS: tuple[Target, ...] = ("auto", "ebpf", "bmv2", "sim")
SIMULATED: Target = "sim"
"""The name of the target that runs in the simulator, in virtual time."""


class Measure(YamlModel):
    """Optional measurements: time series, captures, queues and link loads."""

    series_ns: Annotated[int, Time(1_000)] = Field(
        1_000_000, alias="series", description="width of the bins of the delivered bytes"
    )
    capture: bool = Field(
        False,
        description="keep the captures of every host that takes part: "
        "<transport>-<repetition>/captures/<host>.pcap",
    )
    queues: bool = Field(
        False,
        description="read the queues of all ports in each bin of `series`, for a heat map (target sim only)",
    )
    links: str = Field("", description="a pattern of T0-T1 links whose bytes are counted in bins of 100 ms")


class Virtual(YamlModel):
    """Properties of hosts and links in virtual time (target sim) that the topology does not have."""

    processing_ns: Annotated[int, Time(high=10**9)] = Field(
        200,
        alias="processing",
        description="from a frame's arrival at an idle host to its answer; a host that sends meanwhile "
        "answers with that",
    )
    links: Literal["wires", "buckets"] = Field(
        "wires",
        description="wires send frame after frame; buckets are the token buckets of live targets, which let "
        "a frame onto an idle link at once",
    )


USUAL_VIRTUAL = Virtual.model_validate({})
"""The properties of hosts and links if a scenario does not set ``virtual``."""


def _as_lines(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _as_tuple(value)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _entries(value: Any) -> Any:
    """Return the value of ``transports`` as a mapping from names to entries.

    A list of names becomes a mapping with empty entries. Names with the entry `false` are removed.
    """
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {name: {} for name in value}
    if isinstance(value, Mapping):
        return {name: {} if entry is None else entry for name, entry in value.items() if entry is not False}
    return value


NO_DIRECTORY = (
    "must be the name of a directory: at most 100 letters, digits and the like, no '/', no '.' first"
)


def _is_directory_name(name: str) -> bool:
    """Return True if results can be in a directory of this name, and nowhere else."""
    within = 0 < len(name.encode(errors="replace")) <= 100 and name.isprintable()
    return within and not name.startswith(".") and not set(name) & set("/\\")


class Scenario(YamlModel):
    """A complete experiment: every key has a value, given by the file or by default."""

    what: ClassVar[str] = "a scenario"

    name: str = Field(description="name of the scenario, and of its results' directory")
    description: str = Field("", description="what it shows, in one line")
    claim: str = Field("", description="the statement under test, in one line")
    figure: str = Field(
        "",
        description="the judge of the claim: a name in mrclab.experiments.figures, or module:judge",
    )
    expect: Annotated[tuple[str, ...], BeforeValidator(_as_lines)] = Field(
        (), description="what the result is to show, in one line or a list of lines; see below"
    )
    topology: str | dict[str, Any] = Field(
        description="a shipped name, a file, or a whole topology (docs/topologies.md)"
    )
    classes: Classes = Field(
        default_factory=dict,
        description="traffic classes (data, trimmable, high, control) by DSCP, on top of the topology's: "
        "{8: high} sends retransmissions ahead of data",
    )
    target: Target = Field("auto", description="what the switches run on")
    program: str = Field(
        "",
        description="a switch program of one's own, FILE.p4 or FILE.json, from the current directory "
        "(docs/your-own.md)",
    )
    entries: Annotated[dict[str, TransportEntry], BeforeValidator(_entries), Field(min_length=1)] = Field(
        default_factory=lambda: {"mrc": TransportEntry.model_validate({})},
        alias="transports",
        description="names, or names with the keys that differ (docs/transports.md)",
    )
    workload: Workload = Field(description="what is sent, by its `kind`; see below")
    faults: Annotated[tuple[FaultSpec, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="what breaks, in any mixture of the four forms"
    )
    profiles: Annotated[tuple[ProfileChange, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="changes of the NICs' EV profiles while a spray runs; see below"
    )
    measure: Measure = Field(
        default_factory=lambda: Measure.model_validate({}), description="what is measured; see below"
    )
    repetitions: Annotated[int, WholeNumber(1, 10_000)] = Field(
        6, description="runs of each transport, one after another, each on a fabric of its own"
    )
    warmup_ns: Annotated[int, Time()] = Field(
        500_000_000,
        alias="warmup",
        description="after the workload starts, before anything counts; "
        "on a live target at least 400 ms where a fault is at the busiest link",
    )
    limit_ns: Annotated[int, Time(10**6)] = Field(
        120 * 10**9,
        alias="limit",
        description="the longest that one repetition of rank processes may take (not spray and mesh)",
    )
    seed: Annotated[int, WholeNumber(0)] = Field(
        1, description="seed of all that is random: places, paths, bytes"
    )
    propagation_ns: Annotated[int, Time(high=10**9)] = Field(
        0,
        alias="propagation",
        description="delay that longer wires would add one way between any two NICs: "
        "each NIC delays what it receives",
    )

    slower: Annotated[float, Number(1, 16)] = Field(
        1.0,
        description="slow motion: how many times slower all of this runs, rates divided and times multiplied "
        "by it; a live run of rank processes raises it itself if the CPUs are too slow",
    )
    rehearse: bool = Field(
        True,
        description="before a live run of rank processes, rehearse each transport to find the speed that the "
        "CPUs can carry; this takes some seconds for each",
    )

    virtual: Virtual = Field(
        default_factory=lambda: USUAL_VIRTUAL,
        description="what hosts and links are like in virtual time (target sim only); see below",
    )

    @field_validator("name")
    @classmethod
    def _names_a_directory(cls, value: str) -> str:
        if not _is_directory_name(value):
            raise wrong(NO_DIRECTORY)
        return value

    @field_validator("entries")
    @classmethod
    def _name_directories(cls, value: dict[str, TransportEntry]) -> dict[str, TransportEntry]:
        for name in value:
            if not _is_directory_name(name):
                raise wrong(NO_DIRECTORY, name)
        return value

    @field_validator("topology")
    @classmethod
    def _topology_exists(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        try:
            if isinstance(value, str):
                TOPOLOGIES.text(value)
            else:
                build_fabric(json.dumps(value, ensure_ascii=False), "topology")
        except InputError as error:
            raise wrong(f"{re.sub(r'^topology(:[0-9]+)?: ', '', str(error))}") from None
        return value

    @field_validator("figure")
    @classmethod
    def _figure_exists(cls, value: str) -> str:
        try:
            if value:
                require_figure(value)
        except InputError as error:
            raise wrong(f"{str(error).removeprefix('figure: ')}") from None
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, entry in self.entries.items():
            try:
                transport = entry.transport(name)
            except ValueError as error:
                raise wrong(f"{error}", "transports", name) from None
            self._check_transport(transport)
            if not transport.faults and self.sequences:
                raise wrong("faults in sequence set the length of a run: all meet them", "transports", name)
        for line in self.expect:
            try:
                parse_expectation(line, self.entries)
            except ValueError as error:
                raise wrong(f"{error}", "expect") from None
        lasts_ns = self.workload.lasts_ns
        for number, change in enumerate(self.profiles):
            if self.workload.kind != "spray":
                raise wrong("profiles are changed under a spray", "profiles", number)
            if lasts_ns is not None and change.at_ns >= lasts_ns:
                raise wrong("the workload is over by then", "profiles", number, "at")
        for number, fault in enumerate(self.faults):
            if isinstance(fault, TimedFault | Drain) and lasts_ns is not None and fault.at_ns >= lasts_ns:
                raise wrong(
                    f"the workload is over by then: it lasts {lasts_ns / 1e9:g} s",
                    *("faults", number, "at"),
                )
            if isinstance(fault, Drain) and self.workload.kind in MRC_KINDS:
                raise wrong("a drain is for workloads of ranks", "faults", number)
            if isinstance(fault, RandomFaults) and lasts_ns is None:
                raise wrong(
                    "random faults go on for ever: give the workload a duration",
                    *("faults", number),
                )
        return self

    def _check_transport(self, transport: Transport) -> None:
        kernel = not transport.core.has_nic
        if self.propagation_ns and kernel:
            raise wrong(f"the NIC of {transport.name} is the kernel's, which has none", "propagation")
        if self.workload.kind not in MRC_KINDS:
            return
        if transport.kind != "mrc" or transport.routing == "frr":
            raise wrong(
                f"a {self.workload.kind} is sent by MRC only",
                *("transports", transport.name),
            )
        if self.propagation_ns:
            raise wrong(f"a {self.workload.kind} has none", "propagation")

    @cached_property
    def transports(self) -> tuple[Transport, ...]:
        """Return the transports in the order of the scenario's file."""
        return tuple(entry.transport(name) for name, entry in self.entries.items())

    @property
    def live_warmup_ns(self) -> int:
        """The warm-up on a live target, ns. It includes the search for the busiest link, if needed."""
        wanted = any(isinstance(fault, TimedFault) and BUSIEST in fault.where for fault in self.faults)
        return max(self.warmup_ns, 2 * BUSIEST_NS) if wanted else self.warmup_ns

    @property
    def sequences(self) -> tuple[SequentialFaults, ...]:
        """Return the entries of ``faults`` whose faults happen one after another."""
        return tuple(fault for fault in self.faults if isinstance(fault, SequentialFaults))

    @property
    def steps(self) -> int:
        """Return the number of steps of a run: all trials, or all repetitions if there are no trials."""
        each = sum(entry.trials for entry in self.sequences) or 1
        return each * self.repetitions * len(self.transports)

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario in JSON types, for result.json."""
        out = self.model_dump(mode="json", exclude={"entries"})
        out["transports"] = [transport.to_dict() for transport in self.transports]
        # Leave out the default values of newer keys, so that the result has the same form as older results.
        if not self.expect:
            del out["expect"]
        if self.virtual == USUAL_VIRTUAL:
            del out["virtual"]
        if self.slower == 1:
            del out["slower"]
        if self.rehearse:
            del out["rehearse"]
        if not self.profiles:
            del out["profiles"]
        return out

    def fabric(self) -> Fabric:
        """Return the scenario's fabric with all of its planes. Raise InputError if the topology is wrong."""
        if isinstance(self.topology, str):
            fabric = load_fabric(self.topology)
        else:
            where = f"scenario {self.name}: topology"
            fabric = build_fabric(json.dumps(self.topology, ensure_ascii=False), where)
        if not self.classes:
            return fabric
        classes = {**dict(fabric.classes), **dict(switch_map(self.classes))}
        return replace(fabric, classes=tuple(sorted(classes.items())))

    def placement(self, fabric: Fabric, seed: int) -> Placement:
        """Return the placement of the workload's ranks. Raise InputError if the fabric is too small."""
        try:
            return place(self.workload.kind, self.workload.params, fabric, seed)
        except InputError as error:
            raise InputError(f"{error}", where=f"scenario {self.name}") from None

    def check_against(self, fabric: Fabric) -> None:
        """Raise InputError if the scenario does not fit the fabric, for instance if a host is unknown."""
        where = f"scenario {self.name}"
        if self.target == SIMULATED:
            require_simulated(self.workload.kind, self.transports)
            if any(transport.routing == "structured" for transport in self.transports):
                require_two_tiers(fabric, STRUCTURED_MEND)
            if self.program:
                raise InputError("--program: virtual time has no switch program: leave it out", where=where)
        else:
            require_live(fabric)
        if self.target != SIMULATED and self.virtual != USUAL_VIRTUAL:
            raise InputError(
                "virtual: only --target sim has that; for both, write it under targets: sim", where=where
            )
        names = [host.name for host in fabric.hosts]
        if len(names) < 2:
            raise InputError(f"the topology {fabric.name} has one host, but traffic needs two", where=where)
        params = self.workload.params
        for key in ("src", "dst"):
            name = params.get(key, "auto")
            if name not in ("auto", *names):
                raise InputError(
                    f"workload.{key}: {fabric.name} has no host '{name}' (it has {names[0]} to {names[-1]})",
                    where=where,
                )
        self._check_ranks(len(names), params)
        for transport in self.transports:
            if transport.lossless and self.virtual.links == "buckets":
                raise InputError(
                    f"virtual.links: {transport.name} has lossless links, which are wires", where=where
                )
            if transport.lossless and transport.buffer_bytes:
                frame = max(link.profile.mtu_bytes for link in fabric.links) + ETHERNET_HEADER
                if transport.buffer_bytes < LEAST_FRAMES * frame:
                    raise InputError(
                        f"transports.{transport.name}.buffer: {transport.buffer_bytes} bytes are less than "
                        f"{LEAST_FRAMES} frames of this fabric: give at least {LEAST_FRAMES * frame} bytes",
                        where=where,
                    )
            if transport.only_simulated and self.target != SIMULATED:
                raise InputError(
                    f"transports.{transport.name}: only --target sim has {transport.only_simulated}: "
                    "add that, or leave it out",
                    where=where,
                )
            try:
                check_options(transport.kind, fabric, transport.channel_options)
            except ValueError as error:
                raise InputError(f"transports.{transport.name}.options: {error}", where=where) from None
        check_places(self.faults, fabric, where)
        check_makeable(self.faults, self.transports, fabric, target_name(self.target), where)
        used = self.placement(fabric, self.seed).links_used(fabric)
        check_places(self.sequences, fabric, where, tuple(used))
        metered(fabric, self.measure.links)

    def _check_ranks(self, hosts: int, params: Mapping[str, Any]) -> None:
        ranks, each = params.get("ranks", 0), params.get("ranks_per_host", 1)
        where = f"scenario {self.name}"
        if ranks == 1 or ranks > hosts * each:
            places = f"{hosts} hosts" if each == 1 else f"{hosts} hosts with {each} ranks each"
            raise InputError(
                f"workload.ranks: {ranks} of {places}: 2 to {hosts * each}, or 0 for all", where=where
            )
        kernels = [t.name for t in self.transports if not t.core.has_nic]
        if each > 1 and kernels:
            raise InputError(
                f"workload.ranks_per_host: a kernel's NIC takes one rank only, as that of {kernels[0]}",
                where=where,
            )
