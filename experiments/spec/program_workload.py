"""The workload `program`: programs on hosts, their expected exit codes, and metrics from their output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from mrclab.experiments.spec.graph_workloads import WorkloadModel
from mrclab.topologies.yaml_model import WholeNumber, YamlModel, wrong

MOST_PROGRAMS = 256
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def _words(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise wrong(f"'{value}' is no command: {error}") from None
    return tuple(value) if isinstance(value, list) else value


_WORDS_FORM = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
Words = Annotated[
    tuple[str, ...],
    BeforeValidator(_words),
    Field(min_length=1, max_length=1000),
    WithJsonSchema(_WORDS_FORM),
]
Tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)


class ProgramMetric(YamlModel):
    """A metric whose values are found in the output of a program."""

    pattern: str = Field(
        max_length=500,
        description="a regular expression of Python with one group, a number; each match is a value",
    )
    unit: str = Field("", max_length=20, description="the unit of the values, such as MB/s")

    @field_validator("pattern")
    @classmethod
    def _has_a_group(cls, value: str) -> str:
        try:
            groups = re.compile(value).groups
        except re.error as error:
            raise wrong(f"'{value}' is no regular expression: {error}") from None
        if groups != 1:
            raise wrong(f"'{value}' has {groups} groups: put the number, and nothing else, in brackets")
        return value


class OneProgram(YamlModel):
    """One program on one host, an item of ``programs``."""

    host: str = Field(description="where it runs")
    run: Words = Field(description="the program with its arguments: a line, or a list of words; no shell")
    exit_code: Annotated[int, WholeNumber(0, 255)] = Field(0, description="the exit code of its success")
    listens: Annotated[int, WholeNumber(0, 65535)] = Field(
        0, description="a TCP port: programs further down start once it listens there; 0: at once"
    )
    user: str = Field("", description="the user that runs it, by name or number; if none is given, root")
    metrics: Annotated[dict[str, ProgramMetric], Field(default_factory=dict, description="by name")]

    @field_validator("metrics")
    @classmethod
    def _names(cls, value: dict[str, ProgramMetric]) -> dict[str, ProgramMetric]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise wrong(f"'{name}' is no name: small letters, digits and _, a letter first")
        return value


class Program(WorkloadModel):
    """Programs that were not made for mrclab, such as ib_write_bw. They use the NICs of their hosts."""

    kind: Literal["program"]
    programs: Annotated[
        tuple[OneProgram, ...],
        Tuple,
        Field(
            min_length=1,
            max_length=MOST_PROGRAMS,
            description="the programs, in the order of their start",
        ),
    ]
    senders: Annotated[tuple[str, ...], Tuple] = Field(
        (), description="the hosts that send data; if none is given, all hosts of programs"
    )

    @model_validator(mode="after")
    def _senders_run_programs(self) -> Self:
        hosts = [program.host for program in self.programs]
        for name in self.senders:
            if name not in hosts:
                raise wrong(f"{name} sends, but has no program", "senders")
        units: dict[str, str] = {}
        for number, program in enumerate(self.programs):
            for name, metric in program.metrics.items():
                if units.setdefault(name, metric.unit) != metric.unit:
                    raise wrong(f"{name} has another unit elsewhere", "programs", number, "metrics", name)
        return self


def words_of(program: Program) -> str:
    """Return the hosts and commands of the programs in one line of text."""
    return ", ".join(f"{each.host}: {shlex.join(each.run)}" for each in program.programs)


def program_hosts(params: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Return the hosts of the programs, and all pairs (sender, receiver) as indices of these hosts."""
    hosts = tuple(dict.fromkeys(str(program["host"]) for program in params["programs"]))
    senders = params["senders"] or hosts
    pairs = [(a, b) for a in range(len(hosts)) for b in range(len(hosts)) if a != b and hosts[a] in senders]
    return hosts, tuple(pairs)


def units_of(workload: Mapping[str, Any]) -> dict[str, str]:
    """Return the unit of each metric of the workload's programs. Return {} for other workloads."""
    return {
        name: str(metric["unit"])
        for program in workload.get("programs", ())
        for name, metric in program["metrics"].items()
    }
