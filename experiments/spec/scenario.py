"""What an experiment does, read from short YAML: workload, fault, times, trials.

A scenario may differ by topology (``topologies: {wide: {hold: 400 ms}}``) and by the target it runs on
(``targets: {bmv2: {workload: {rate: 20 Mbit/s}}}``), and the command line may set any key
(``--set workload.rate="50 Mbit/s"``). Every mistake is one line that names the file, the line and the
key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from controller.fault_kinds import DIRECTIONS, Direction
from experiments.spec.overlay import merge, parse_overrides
from hosts.streams.messages import OVERHEAD_BYTES
from hosts.streams.stream import MAX_MESSAGE_BYTES
from linux.errors import InputError
from switches.target import target_name
from topologies import Fabric
from topologies.shipped import Shipped
from topologies.yamlfile import Value, YamlMap, parse_yaml

Target = Literal["auto", "ebpf", "bmv2"]

TARGETS: tuple[Target, ...] = ("auto", "ebpf", "bmv2")
BLACKHOLE, SWITCH_DEATH = "blackhole", "switch-death"
FAULT_KINDS = (BLACKHOLE, SWITCH_DEATH)
AUTO, RANDOM = "auto", "random"

_TOP = (
    "name",
    "description",
    "topology",
    "target",
    "workload",
    "fault",
    "warmup",
    "hold",
    "settle",
    "trials",
    "seed",
)
_VARIANTS = {"topologies": "topology", "targets": "target"}
_WORKLOAD = ("src", "dst", "message_bytes", "payload_bytes", "burst", "rate", "busy", "window", "spare_evs")
_FAULT = ("kind", "where", "direction")
_MAX_TIME_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Workload:
    """A steady, paced stream of RDMA WRITEs with immediate data from one host to another.

    ``rate_bps`` counts payload, ``window`` is in packets, ``spare_evs`` are held back in each plane. With a
    ``burst`` the NIC paces so many packets at a time, without one (0) whole messages are posted at that pace.
    ``busy`` (0 to 1) has the rate lowered in the warm-up until neither endpoint takes more of its CPU than
    that; 0 leaves it as it is.
    """

    src: str = AUTO
    dst: str = AUTO
    message_bytes: int = 16384
    payload_bytes: int = 4096
    burst: int = 0
    rate_bps: int = 150_000_000
    busy: float = 0.0
    window: int = 256
    spare_evs: int = 0


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What each trial breaks.

    A ``blackhole`` drops what a link carries; ``where`` is that link's name, or ``random``: seeded, of the
    links on the way. A ``switch-death`` ends a switch's process (target bmv2 only) and starts it again
    when the hold is over; ``where`` is that switch's name, or ``random``: of the T1s on the way.
    """

    kind: str = "blackhole"
    where: str = RANDOM
    direction: Direction = "both"


@dataclass(frozen=True, slots=True)
class Scenario:
    """An experiment, complete: nothing is left to default once this exists."""

    name: str
    description: str
    topology: str
    target: Target
    workload: Workload
    fault: FaultPlan
    warmup_ns: int
    hold_ns: int
    settle_ns: int
    trials: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """As it goes into result.json."""
        return asdict(self)

    def endpoints(self, fabric: Fabric) -> tuple[str, str]:
        """The names of the sending and the receiving host, ``auto`` resolved.

        Raises InputError on a host that the fabric does not have and on two in one rack.
        """
        first, last = fabric.far_ends()
        src = self._host(fabric, "src", self.workload.src, first)
        dst = self._host(fabric, "dst", self.workload.dst, last)
        if fabric.host(src).rack == fabric.host(dst).rack:
            raise InputError(
                f"{src} and {dst} are in one rack of {fabric.name}, so no T0-T1 link lies between them",
                where=f"scenario {self.name}",
            )
        return src, dst

    def _host(self, fabric: Fabric, key: str, name: str, auto: str) -> str:
        names = [host.name for host in fabric.hosts]
        if name == AUTO:
            return auto
        if name not in names:
            raise InputError(
                f"workload.{key}: {fabric.name} has no host '{name}' (it has {names[0]} to {names[-1]})",
                where=f"scenario {self.name}",
            )
        return name

    def check_against(self, fabric: Fabric) -> None:
        """Raises InputError where the scenario names a host or a link that the fabric lacks."""
        src, dst = self.endpoints(fabric)
        if self.fault.kind == SWITCH_DEATH:
            on_path = {node for path in fabric.paths(src, dst) for node in path.nodes[1:-1]}
        else:
            on_path = {link for path in fabric.paths(src, dst) for link in path.links}
        if self.fault.where != RANDOM and self.fault.where not in on_path:
            raise InputError(
                f"fault.where: '{self.fault.where}' is on no path from {src} to {dst} in {fabric.name}",
                where=f"scenario {self.name}",
            )


def ends_of(workload: Mapping[str, Any], fabric: Fabric) -> tuple[str, str]:
    """The sending and the receiving host of a recorded workload, ``auto`` resolved."""
    first, last = fabric.far_ends()
    src, dst = workload["src"], workload["dst"]
    return first if src == AUTO else src, last if dst == AUTO else dst


SCENARIOS = Shipped("scenario", "experiments", "scenarios")


def shipped_scenarios() -> tuple[str, ...]:
    """The names of the scenarios that come with mrclab."""
    return SCENARIOS.names()


def load_scenario(
    name_or_file: str,
    *,
    topology: str | None = None,
    target: str | None = None,
    trials: int | None = None,
    seed: int | None = None,
    settings: Sequence[str] = (),
) -> Scenario:
    """The scenario of a shipped name or of a YAML file, with the command line's overrides on top.

    ``settings`` are the KEY=VALUE of ``--set``. What is asked for directly (``topology`` to ``seed``) wins
    over them, they win over the part for the target, that over the part for the topology, and that over the
    rest of the file. Raises InputError.
    """
    text, where = SCENARIOS.text(name_or_file)
    overrides = parse_overrides(settings, topology=topology, target=target, trials=trials, seed=seed)
    return parse_scenario(text, where, overrides)


def parse_scenario(text: str, where: str, overrides: Sequence[YamlMap] = ()) -> Scenario:
    """The scenario of a YAML text; ``overrides`` are laid over it, the last one on top. Raises InputError."""
    doc = parse_yaml(text, where)
    base = YamlMap({key: value for key, value in doc.items() if key not in _VARIANTS}, where, doc.line)
    _known_keys(base)
    topology = base.require("topology", "a scenario")
    target = base.get("target", Value(AUTO, where, None))
    for override in overrides:
        _known_keys(override)
        topology = override.get("topology", topology)
        target = override.get("target", target)
    base = _vary(doc, base, "topologies", (topology.data, Path(str(topology.data)).stem))
    if "targets" in doc:
        _known_targets(doc["targets"])
        base = _vary(doc, base, "targets", (target_name(_choice(target, "target", TARGETS)),))
    for override in overrides:
        base = merge(base, override)
    return _scenario(base)


def _vary(doc: YamlMap, base: YamlMap, variants: str, chosen: Sequence[object]) -> YamlMap:
    """Lays the part for what was chosen over a scenario; checks the other parts, too."""
    if variants not in doc:
        return base
    key = _VARIANTS[variants]
    for name, value in doc[variants].as_map(variants).items():
        part = value.as_map(f"{variants}.{name}")
        _known_keys(part)
        if key in part:
            raise part[key].error(f"{variants} cannot choose another {key}")
        if name in chosen:
            base = merge(base, part)
    return base


def _known_targets(value: Value) -> None:
    value.as_map("targets").only([name for name in TARGETS if name != AUTO], "targets")


def _known_keys(part: YamlMap) -> None:
    part.only(_TOP, "a scenario")
    for key, allowed in (("workload", _WORKLOAD), ("fault", _FAULT)):
        if key in part:
            part[key].as_map(key).only(allowed, key)


def _choice(value: Value, what: str, allowed: Sequence[str]) -> str:
    word = value.as_str(what)
    if word not in allowed:
        raise value.error(f"{what} must be {' or '.join(allowed)}, not '{word}'")
    return word


def _time(doc: YamlMap, key: str, default_ns: int, *, low_ns: int) -> int:
    if key not in doc:
        return default_ns
    time_ns = doc[key].as_time_ns(key)
    if not low_ns <= time_ns <= _MAX_TIME_NS:
        raise doc[key].error(f"{key} must be from {low_ns / 1e6:g} ms to 1 hour, not '{doc[key].data}'")
    return time_ns


def _scenario(doc: YamlMap) -> Scenario:
    name = doc.require("name", "a scenario").as_str("name")
    description = doc["description"].as_str("description") if "description" in doc else ""
    target = _choice(doc["target"], "target", TARGETS) if "target" in doc else AUTO
    return Scenario(
        name=name,
        description=description,
        topology=doc.require("topology", "a scenario").as_str("topology"),
        target=cast(Target, target),
        workload=_workload(doc),
        fault=_fault(doc),
        warmup_ns=_time(doc, "warmup", 500_000_000, low_ns=0),
        hold_ns=_time(doc, "hold", 100_000_000, low_ns=1_000_000),
        settle_ns=_time(doc, "settle", 150_000_000, low_ns=0),
        trials=doc["trials"].as_int("trials", low=1, high=100_000) if "trials" in doc else 20,
        seed=doc["seed"].as_int("seed", low=0, high=2**63 - 1) if "seed" in doc else 1,
    )


def _workload(doc: YamlMap) -> Workload:
    base = Workload()
    if "workload" not in doc:
        return base
    part = doc["workload"].as_map("workload")

    def whole(key: str, default: int, low: int, high: int) -> int:
        return part[key].as_int(f"workload.{key}", low=low, high=high) if key in part else default

    def text(key: str, default: str) -> str:
        return part[key].as_str(f"workload.{key}") if key in part else default

    rate = base.rate_bps
    if "rate" in part:
        rate = part["rate"].as_rate_bps("workload.rate")
        if not 10**5 <= rate <= 10**11:
            raise part["rate"].error("workload.rate must be from 100 kbit/s to 100 Gbit/s")
    busy = part["busy"].as_number("workload.busy", low=0, high=1) if "busy" in part else base.busy
    burst = whole("burst", base.burst, 0, 64)
    if busy and not burst:
        raise part.get("burst", part["busy"]).error(
            "workload.busy needs a burst: whole messages are not paced by the NIC"
        )
    return Workload(
        burst=burst,
        busy=busy,
        src=text("src", base.src),
        dst=text("dst", base.dst),
        message_bytes=whole("message_bytes", base.message_bytes, OVERHEAD_BYTES + 1, MAX_MESSAGE_BYTES),
        payload_bytes=whole("payload_bytes", base.payload_bytes, 256, 4096),
        rate_bps=rate,
        window=whole("window", base.window, 1, 4096),
        spare_evs=whole("spare_evs", base.spare_evs, 0, 255),
    )


def _fault(doc: YamlMap) -> FaultPlan:
    base = FaultPlan()
    if "fault" not in doc:
        return base
    part = doc["fault"].as_map("fault")
    direction: str = base.direction
    if "direction" in part:
        direction = _choice(part["direction"], "fault.direction", DIRECTIONS)
    return FaultPlan(
        kind=_choice(part["kind"], "fault.kind", FAULT_KINDS) if "kind" in part else base.kind,
        where=part["where"].as_str("fault.where") if "where" in part else base.where,
        direction=cast(Direction, direction),
    )
