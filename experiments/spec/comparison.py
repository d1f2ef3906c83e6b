"""A scenario of the general form: transports compared under one workload and one schedule of faults.

What tells it from a recovery scenario (experiments.spec.scenario) is its ``transports``. Every mistake is one
line that names the file, the line and the key, before anything is touched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from experiments.figures.listing import require_figure
from experiments.run.link_meter import metered
from experiments.spec.fault_schedule import FAULT_KEYS, FaultSpec, check_places
from experiments.spec.keys import Key, keys_schema, read_keys
from experiments.spec.overlay import merge, parse_overrides
from experiments.spec.scenario import SCENARIOS, TARGETS, Target
from experiments.spec.transports import NAMED, ROUTINGS, Transport
from experiments.spec.workloads import WORKLOADS
from hosts.collectives.transports import WITH_NIC, check_options
from linux.errors import InputError
from testbed.frr.plan import Timers
from topologies import Fabric, build_fabric, load_fabric
from topologies.shipped import TOPOLOGIES
from topologies.yamlfile import Value, YamlMap, parse_yaml

TOP_KEYS = (
    Key("name", "text", "of the scenario, and of its results' directory"),
    Key("description", "text", "what it shows, in a line", ""),
    Key("claim", "text", "the statement under test, in a line", ""),
    Key("figure", "text", "the module of experiments.figures that judges the claim", ""),
    Key("target", "choice", "what the switches run on", "auto", choices=TARGETS),
    Key("repetitions", "int", "of each transport, each on a fabric of its own", 3, low=1, high=10_000),
    Key("warmup", "time", "after the workload starts, before anything counts", 500_000_000),
    Key("limit", "time", "the longest that one repetition may take", 120_000_000_000, low=10**9),
    Key("seed", "int", "of all that is random: places, paths, bytes", 1),
    Key(
        "propagation",
        "time",
        "what longer wires would add one way between any two NICs: each holds back what it receives",
        0,
        high=10**9,
    ),
)
MEASURE_KEYS = (
    Key("series", "time", "width of the bins of the delivered bytes", 1_000_000, low=100_000),
    Key(
        "capture",
        "bool",
        "tcpdump at every host that takes part, into captures/<transport>-<repetition>/<host>.pcap",
        False,
    ),
    Key("links", "text", "a pattern of T0-T1 links whose bytes are counted in bins of 100 ms", ""),
)
TRANSPORT_KEYS = (
    Key("use", "text", "the transport's name, where it goes by another here", ""),
    Key("routing", "choice", "how the fabric forwards", "", choices=ROUTINGS),
    Key(
        "detection",
        "time",
        "after how long what is dead is withdrawn: by the controller (routing ecmp), by BGP or BFD (frr)",
        -1,
    ),
    Key("loss", "number", "share of frames lost on the way into every NIC, throughout", 0.0, high=0.9),
    Key("one_plane", "bool", "the same bandwidth in one plane", False),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """An experiment, complete: nothing is left to default once this exists."""

    name: str
    description: str
    claim: str
    figure: str
    topology: str
    """Name, file, or the YAML text of the fabric, whose name is then ``topology_name``."""
    topology_where: str
    target: Target
    transports: tuple[Transport, ...]
    workload: str
    workload_params: Mapping[str, Any]
    faults: tuple[FaultSpec, ...]
    series_ns: int
    capture: bool
    links: str
    repetitions: int
    warmup_ns: int
    limit_ns: int
    seed: int
    propagation_ns: int

    def to_dict(self) -> dict[str, Any]:
        """As it goes into result.json."""
        out = asdict(self)
        out["workload"] = {"kind": out.pop("workload"), **out.pop("workload_params")}
        return out

    def fabric(self) -> Fabric:
        """The fabric as the scenario has it, before a transport wants one plane. Raises InputError."""
        if self.topology_where:
            return build_fabric(self.topology, self.topology_where)
        return load_fabric(self.topology)

    def check_against(self, fabric: Fabric) -> None:
        """Raises InputError where the scenario names what the fabric lacks."""
        names = [host.name for host in fabric.hosts]
        for key in ("src", "dst"):
            name = self.workload_params.get(key, "auto")
            if name not in ("auto", *names):
                raise InputError(
                    f"workload.{key}: {fabric.name} has no host '{name}' (it has {names[0]} to {names[-1]})",
                    where=f"scenario {self.name}",
                )
        self._check_ranks(len(names))
        for transport in self.transports:
            try:
                check_options(transport.kind, fabric, transport.channel_options)
            except ValueError as error:
                where = f"scenario {self.name}"
                raise InputError(f"transports.{transport.name}.options: {error}", where=where) from None
        check_places(self.faults, fabric, f"scenario {self.name}")
        metered(fabric, self.links)

    def _check_ranks(self, hosts: int) -> None:
        ranks = self.workload_params.get("ranks", 0)
        each = self.workload_params.get("ranks_per_host", 1)
        where = f"scenario {self.name}"
        if ranks == 1 or ranks > hosts * each:
            room = f"{hosts} hosts" if each == 1 else f"{hosts} hosts with room for {each} each"
            raise InputError(
                f"workload.ranks: {ranks} of {room}: 2 to {hosts * each}, or 0 for all", where=where
            )
        kernels = [t.name for t in self.transports if t.kind not in WITH_NIC]
        if each > 1 and kernels:
            raise InputError(
                f"workload.ranks_per_host: only one rank has room on a kernel's NIC, as that of {kernels[0]}",
                where=where,
            )


def is_comparison(name_or_file: str) -> bool:
    """Whether a scenario is of the general form. Raises InputError on what is none."""
    text, where = SCENARIOS.text(name_or_file)
    return "transports" in parse_yaml(text, where)


def load_comparison(
    name_or_file: str,
    *,
    topology: str | None = None,
    target: str | None = None,
    repetitions: int | None = None,
    seed: int | None = None,
    settings: Sequence[str] = (),
) -> Comparison:
    """The scenario of a shipped name or of a file, with the command line's overrides on top.

    Raises InputError.
    """
    text, where = SCENARIOS.text(name_or_file)
    overrides = parse_overrides(
        settings, topology=topology, target=target, repetitions=repetitions, seed=seed
    )
    return parse_comparison(text, where, overrides)


def parse_comparison(text: str, where: str, overrides: Sequence[YamlMap] = ()) -> Comparison:
    """The scenario of a YAML text; ``overrides`` are laid over it, the last one on top. Raises InputError."""
    doc = parse_yaml(text, where)
    for override in overrides:
        doc = merge(doc, override)
    also = ("topology", "transports", "workload", "faults", "measure")
    top = read_keys(doc, TOP_KEYS, "a scenario", also)
    if top["figure"]:
        try:
            require_figure(top["figure"])
        except InputError as error:
            raise doc["figure"].error(str(error)) from None
    kind, params = _workload(doc)
    transports = _transports(doc.require("transports", "a scenario"))
    kernels = [t.name for t in transports if t.kind not in WITH_NIC]
    if top["propagation_ns"] and kernels:
        raise doc["propagation"].error(
            f"propagation: the NIC of {kernels[0]} is the kernel's, which has none"
        )
    topology, topology_where = _topology(doc.require("topology", "a scenario"))
    measure = read_keys(_part(doc, "measure"), MEASURE_KEYS, "measure", prefix="measure.")
    return Comparison(
        name=top["name"],
        description=top["description"],
        claim=top["claim"],
        figure=top["figure"],
        topology=topology,
        topology_where=topology_where,
        target=cast(Target, top["target"]),
        transports=transports,
        workload=kind,
        workload_params=params,
        faults=tuple(_faults(doc)),
        series_ns=measure["series_ns"],
        capture=measure["capture"],
        links=measure["links"],
        repetitions=top["repetitions"],
        warmup_ns=top["warmup_ns"],
        limit_ns=top["limit_ns"],
        seed=top["seed"],
        propagation_ns=top["propagation_ns"],
    )


def _part(doc: YamlMap, key: str) -> YamlMap:
    return doc[key].as_map(key) if key in doc else YamlMap({}, doc.where, doc.line)


def _topology(value: Value) -> tuple[str, str]:
    """A name or a file, or a whole topology in place: then its text and where it stands."""
    if not isinstance(value.data, YamlMap):
        name = value.as_str("topology")
        try:
            TOPOLOGIES.text(name)
        except InputError as error:
            raise value.error(f"topology: {error}") from None
        return name, ""
    place = f"{value.where}:{value.line}: topology" if value.line else f"{value.where}: topology"
    text = json.dumps(value.plain())
    build_fabric(text, place)
    return text, place


def _workload(doc: YamlMap) -> tuple[str, dict[str, Any]]:
    part = doc.require("workload", "a scenario").as_map("workload")
    kind_at = part.require("kind", "workload")
    kind = kind_at.as_str("workload.kind")
    if kind not in WORKLOADS:
        raise kind_at.error(f"workload.kind must be {' or '.join(WORKLOADS)}, not '{kind}'")
    return kind, read_keys(part, WORKLOADS[kind], f"workload {kind}", ("kind",), "workload.")


def _transports(value: Value) -> tuple[Transport, ...]:
    """A list of names, or a mapping of names to what differs."""
    if isinstance(value.data, list):
        nothing = YamlMap({}, value.where, value.line)
        entries = {item.as_str("a transport"): Value(nothing, item.where, item.line) for item in value.data}
    else:
        entries = dict(value.as_map("transports").items())
    if not entries:
        raise value.error("transports is empty: name one at least")
    return tuple(_transport(name, entry) for name, entry in entries.items())


def _transport(name: str, value: Value) -> Transport:
    what = f"transports.{name}"
    part = value.as_map(what) if value.data is not None else YamlMap({}, value.where, value.line)
    chosen = read_keys(part, TRANSPORT_KEYS, what, ("options",), f"{what}.")
    used = chosen["use"] or name
    if used not in NAMED:
        raise value.error(f"no transport '{used}': there are {', '.join(NAMED)} ('use' names one by another)")
    base = NAMED[used]
    options: dict[str, Any] = {}
    if "options" in part:
        options = {key: item.plain() for key, item in part["options"].as_map(f"{what}.options").items()}
    detection = chosen["detection_ns"]
    routing = chosen["routing"] or base.routing
    if detection >= 0 and routing == "srv6":
        raise part["detection"].error(f"{what}.detection is for routing ecmp and frr: nothing routes in srv6")
    if detection >= 0 and routing == "frr":
        try:
            Timers.detecting_in(detection)
        except ValueError as error:
            raise part["detection"].error(f"{what}.detection: {error}") from None
    return Transport(
        name=name,
        kind=base.kind,
        routing=routing,
        meaning=base.meaning,
        options={**base.options, **options},
        one_plane=chosen["one_plane"] if "one_plane" in part else base.one_plane,
        loss=chosen["loss"],
        detection_ns=detection if detection >= 0 else base.detection_ns,
    )


def _faults(doc: YamlMap) -> list[FaultSpec]:
    if "faults" not in doc:
        return []
    found = []
    for number, item in enumerate(doc["faults"].as_list("faults")):
        what = f"faults[{number}]"
        found.append(FaultSpec.of(item.as_map(what), what))
    return found


def scenario_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of this form, from the tables that read it."""
    transport = keys_schema(TRANSPORT_KEYS, {"options": {"type": "object"}})
    workloads = [
        {**keys_schema(keys, {"kind": {"const": kind}}), "required": ["kind"]}
        for kind, keys in WORKLOADS.items()
    ]
    fault = keys_schema(FAULT_KEYS, WHERE_SCHEMA)
    fault["required"] = ["where", *fault["required"]]
    parts = {
        "topology": {
            "description": "a shipped name, a file, or a whole topology (docs/topologies.md)",
            "type": ["string", "object"],
        },
        "transports": {
            "description": "names (of " + ", ".join(NAMED) + "), or names with what differs",
            "anyOf": [
                {"type": "array", "items": {"enum": list(NAMED)}, "minItems": 1},
                {
                    "type": "object",
                    "additionalProperties": {"anyOf": [{"type": "null"}, transport]},
                    "minProperties": 1,
                },
            ],
        },
        "workload": {"oneOf": workloads},
        "faults": {"type": "array", "items": fault},
        "measure": keys_schema(MEASURE_KEYS),
    }
    schema = keys_schema(TOP_KEYS, parts)
    schema["required"] += ["topology", "transports", "workload"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "mrclab.scenario/1",
        "title": "A scenario of mrclab that compares transports",
        **schema,
    }


WHERE_SCHEMA = {
    "where": {
        "description": "a name or a pattern with * ? [], or a list of them: docs/experiments.md",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
    }
}


def schema_path() -> Path:
    """Where the published schema lies in a checkout."""
    return Path(__file__).with_name("schema") / "scenario.schema.json"


def main() -> None:
    """Writes the published schema: ``python -m experiments.spec.comparison``."""
    schema_path().write_text(json.dumps(scenario_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
