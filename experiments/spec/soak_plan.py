"""What a soak does, read from short YAML, and the random faults that follow from its seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from experiments.spec.fault_schedule import PlannedFault
from experiments.spec.keys import Key, read_keys
from experiments.spec.overlay import merge, parse_overrides
from hosts.streams.messages import OVERHEAD_BYTES
from hosts.streams.stream import MAX_MESSAGE_BYTES, StreamPlan
from linux.errors import InputError
from topologies import Fabric
from topologies.shipped import Shipped
from topologies.yamlfile import YamlMap, parse_yaml

TARGETS = ("auto", "ebpf", "bmv2")
MAX_DURATION_NS = 7 * 24 * 3600 * 10**9
MIN_STREAM_BPS = 10_000

KEYS = (
    Key("name", "text", "what it is called"),
    Key("description", "text", "what it shows, in a line", ""),
    Key("topology", "text", "the fabric: a shipped name or a file"),
    Key("target", "choice", "what forwards", "auto", choices=TARGETS),
    Key("hosts", "int", "how many hosts take part, spread over the racks", 4, low=2, high=64),
    Key("qps", "int", "queue pairs of each pair of hosts", 2, low=1, high=64),
    Key("rate", "rate", "of payload, all streams together", 80_000_000, low=10**5, high=10**11),
    Key("message_bytes", "size", "length of a message at most", 1 << 16, low=64, high=MAX_MESSAGE_BYTES),
    Key("payload_bytes", "int", "of a packet at most", 4096, low=256, high=4096),
    Key("seed", "int", "of messages and faults", 1, high=2**63 - 1),
)
FAULT_KEYS = (
    Key("every", "time", "from one fault to the next, in the mean", 250_000_000, low=10**6),
    Key("shortest", "time", "that a fault lasts at least", 20_000_000, low=10**6),
    Key("longest", "time", "that a fault lasts at most", 3_000_000_000, low=10**6),
    Key("at_once", "int", "how many faults at most", 5, low=1, high=1000),
    Key("cut_off", "time", "how long hosts may be without any whole path, at most", 300_000_000),
)

# Kind of fault, how often, and the ratios it may have.
KINDS: tuple[tuple[str, int, tuple[float, ...]], ...] = (
    ("blackhole", 4, ()),
    ("loss", 3, (0.001, 0.01, 0.1, 0.5)),
    ("corruption", 2, (0.001, 0.01, 0.1)),
    ("rate", 2, (0.005, 0.05, 0.3)),
    ("port-down", 2, ()),
)
CUTTING = ("blackhole", "port-down")


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """When faults come and how long they stay; see the keys."""

    every_ns: int
    shortest_ns: int
    longest_ns: int
    at_once: int
    cut_off_ns: int


@dataclass(frozen=True, slots=True)
class Stream:
    """One direction of one queue pair: ``src`` writes to ``dst``. ``qps`` are its numbers at both ends."""

    src: str
    dst: str
    qps: tuple[int, int]
    plan: StreamPlan

    @property
    def name(self) -> str:
        """Such as ``h0>h4 qp 2``."""
        return f"{self.src}>{self.dst} qp {self.qps[0]}"


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """A soak, complete: nothing is left to default once this exists."""

    name: str
    description: str
    topology: str
    target: str
    hosts: int
    qps: int
    rate_bps: int
    message_bytes: int
    payload_bytes: int
    seed: int
    duration_ns: int
    faults: RandomFaults

    def to_dict(self) -> dict[str, Any]:
        """As it goes into result.json."""
        return asdict(self)

    def host_names(self, fabric: Fabric) -> list[str]:
        """The hosts that take part: of each rack in turn. Raises InputError where there are too few."""
        if len(fabric.hosts) < self.hosts:
            raise InputError(f"hosts: {fabric.name} has {len(fabric.hosts)} hosts, not {self.hosts}")
        order = sorted(fabric.hosts, key=lambda h: (_place_in_rack(fabric, h.name), h.rack))
        return [host.name for host in order[: self.hosts]]

    def streams(self, fabric: Fabric) -> list[Stream]:
        """Both directions of all queue pairs. A host numbers its queue pairs in this order.

        Raises InputError where the rate is too low for so many.
        """
        names = self.host_names(fabric)
        count = len(names) * (len(names) - 1) * self.qps
        rate = self.rate_bps // count
        if rate < MIN_STREAM_BPS:
            raise InputError(f"rate: {self.rate_bps} bit/s are too few for {count} streams")
        used = dict.fromkeys(names, 0)
        seeds = random.Random(self.seed)
        found = []
        for a, b in combinations(names, 2):
            for _ in range(self.qps):
                for src, dst in ((a, b), (b, a)):
                    plan = StreamPlan(self.message_bytes, rate, seeds.getrandbits(62), mixed=True)
                    found.append(Stream(src, dst, (used[src], used[dst]), plan))
                used[a] += 1
                used[b] += 1
        return found


def _place_in_rack(fabric: Fabric, name: str) -> int:
    rack = fabric.host(name).rack
    return [host.name for host in fabric.hosts if host.rack == rack].index(name)


SOAKS = Shipped("soak", "experiments", "soaks")


def load_soak(name_or_file: str, settings: Sequence[str] = (), **options: str | int | None) -> SoakPlan:
    """The soak of a shipped name or of a YAML file; ``options`` win over ``settings``, those over the file.

    Raises InputError.
    """
    text, where = SOAKS.text(name_or_file)
    doc = parse_yaml(text, where)
    for override in parse_overrides(settings, **options):
        doc = merge(doc, override)
    return _plan(doc)


def _plan(doc: YamlMap) -> SoakPlan:
    found = read_keys(doc, KEYS, "a soak", ("duration", "faults"))
    duration = doc.require("duration", "a soak")
    duration_ns = duration.as_time_ns("duration")
    if not 10**9 <= duration_ns <= MAX_DURATION_NS:
        raise duration.error(f"duration must be from 1 s to 168 h, not '{duration.data}'")
    empty = YamlMap({}, doc.where, doc.line)
    part = doc["faults"].as_map("faults") if "faults" in doc else empty
    faults = RandomFaults(**read_keys(part, FAULT_KEYS, "faults", prefix="faults."))
    if faults.shortest_ns > faults.longest_ns:
        raise part.error("faults.shortest is longer than faults.longest")
    if found["message_bytes"] <= OVERHEAD_BYTES:
        raise doc["message_bytes"].error(f"message_bytes must be more than {OVERHEAD_BYTES}")
    return SoakPlan(**found, duration_ns=duration_ns, faults=faults)


def random_faults(
    fabric: Fabric, hosts: Sequence[str], faults: RandomFaults, seed: int, length_ns: int
) -> Iterator[PlannedFault]:
    """All faults, in order of time; the last one is mended at ``length_ns``. Equal seeds give equal faults.

    They strike links that lie between these hosts, and the hosts' own ports. One that would leave two of the
    hosts without any whole path is kept as short as the plan says, counted from when the others began.
    """
    chooser = random.Random(seed)
    paths = [[set(p.links) for p in fabric.paths(a, b)] for a, b in combinations(hosts, 2)]
    links = sorted(set().union(*(links for pair in paths for links in pair)))
    ports = [port.ifname for host in hosts for port in fabric.host(host).ports]
    link_of = {port.ifname: f"{host}:{port.t0}" for host in hosts for port in fabric.host(host).ports}
    active: list[PlannedFault] = []
    now = 0
    while True:
        now += max(1, round(chooser.expovariate(1 / faults.every_ns)))
        (kind, _, ratios) = chooser.choices(KINDS, [weight for _, weight, _ in KINDS])[0]
        direction = "both" if kind == "port-down" else chooser.choice(("both", "both", "up", "down"))
        place = chooser.choice(ports if kind == "port-down" else links)
        ratio = chooser.choice(ratios) if ratios else None
        lasts = round(faults.shortest_ns * (faults.longest_ns / faults.shortest_ns) ** chooser.random())
        if now + faults.shortest_ns >= length_ns:
            return
        active = [fault for fault in active if fault.until_ns is not None and fault.until_ns > now]
        taken = {link_of.get(fault.place, fault.place) for fault in active}
        if len(active) >= faults.at_once or link_of.get(place, place) in taken:
            continue
        until = min(now + lasts, length_ns)
        if kind in CUTTING:
            cut = {link_of.get(f.place, f.place) for f in active if f.kind in CUTTING}
            cut.add(link_of.get(place, place))
            if any(all(links & cut for links in pair) for pair in paths):
                until = min(until, now + faults.cut_off_ns)
                if until <= now:
                    continue
        planned = PlannedFault(kind, place, now, until, direction, {} if ratio is None else {"ratio": ratio})
        active.append(planned)
        yield planned
