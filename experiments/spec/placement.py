"""Assign the ranks and streams of a workload to hosts, and find the links that their traffic can take."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Any

from mrclab.experiments.spec.graph_workloads import GRAPH_KINDS, GRAPHS
from mrclab.experiments.spec.program_workload import program_hosts
from mrclab.experiments.spec.workloads import COLLECTIVES, Mesh
from mrclab.hosts.streams.stream import MIN_SLOTS, REGION_BYTES, StreamPlan
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a workload. ``hosts`` has the host of each rank. ``job`` is the kind of job."""

    hosts: tuple[str, ...]
    job: str
    params: Mapping[str, Any]
    pairs: tuple[tuple[int, int], ...]
    """Pairs of ranks (sender, receiver)."""
    length_ns: int | None
    """The length of the measurement, ns. None: the measurement ends when the job is done."""

    def links_used(self, fabric: Fabric) -> frozenset[str]:
        """Return all links on the paths between the hosts of the sender-receiver pairs."""
        used: set[str] = set()
        for a, b in {(self.hosts[a], self.hosts[b]) for a, b in self.pairs}:
            for path in fabric.paths(a, b) if a != b else ():
                used.update(path.links)
        return frozenset(used)

    def ranks_by_host(self) -> dict[str, list[int]]:
        """Return the ranks of each participating host, in order."""
        found: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            found.setdefault(host, []).append(rank)
        return found


def place(kind: str, params: Mapping[str, Any], fabric: Fabric, seed: int) -> Placement:
    """Place a workload on a fabric. Raise InputError if the fabric is too small for the workload."""
    hosts: tuple[str, ...]
    if kind == "spray":
        hosts = _ends(params, fabric)
        if len({fabric.host(name).rack for name in hosts}) == 1:
            raise InputError(
                f"{hosts[0]} and {hosts[1]} are in one rack of {fabric.name}, "
                "so no T0-T1 link lies between them"
            )
        return Placement(hosts, kind, params, ((0, 1),), params["duration_ns"] or None)
    if kind == "mesh":
        if len(fabric.hosts) < params["hosts"]:
            raise InputError(
                f"workload.hosts: {fabric.name} has {len(fabric.hosts)} hosts, not {params['hosts']}"
            )
        hosts = in_turns(fabric)[: params["hosts"]]
        return Placement(hosts, kind, params, _all_pairs(hosts), params["duration_ns"])
    if kind in (*COLLECTIVES, "training", "transformer"):
        # The ranks of one host have consecutive numbers, so a ring over all ranks enters each host only once.
        each = params.get("ranks_per_host", 1)
        seats = tuple(host for host in in_turns(fabric) for _ in range(each))
        hosts = seats[: params["ranks"] or None]
        pairs = _all_pairs(hosts)
        rest = {key: value for key, value in params.items() if key not in ("ranks", "ranks_per_host")}
        return Placement(hosts, kind, rest, pairs, None)
    if kind == "program":
        return _programs(params, fabric)
    if kind in GRAPHS:
        return _graph(kind, params, fabric, seed)
    if kind == "request-response":
        hosts = _ends(params, fabric)
        rest = {key: params[key] for key in ("message_bytes", "response_bytes", "duration_ns")}
        return Placement(hosts, kind, {**rest, "seed": seed}, ((0, 1), (1, 0)), params["duration_ns"])
    from mrclab.hosts.collectives.message_jobs import (
        Flow,  # imported only here, because its module imports numpy, which is slow
    )

    hosts, pairs = _flows(kind, params, fabric, seed)
    second, every_ns = kind == "join", params.get("join_every_ns", 0)  # older results lack this key
    flows = [
        asdict(
            Flow(
                src=a,
                dst=b,
                message_bytes=params["message_bytes"],
                depth=params["depth"],
                rate_bps=params["second_rate_bps"] if second and number else params["rate_bps"],
                duration_ns=params["duration_ns"],
                seed=seed + number,
                after_ns=params["second_at_ns"] if second and number else every_ns * number or None,
            )
        )
        for number, (a, b) in enumerate(pairs)
    ]
    return Placement(hosts, "flows", {"flows": flows}, pairs, params["duration_ns"])


def _programs(params: Mapping[str, Any], fabric: Fabric) -> Placement:
    """Place programs on their hosts. Raise InputError if a program names a host that the fabric lacks."""
    hosts, pairs = program_hosts(params)
    known = [host.name for host in fabric.hosts]
    for name in hosts:
        if name not in known:
            raise InputError(
                f"workload.programs: {fabric.name} has no host '{name}' (it has {known[0]} to {known[-1]})"
            )
    return Placement(hosts, "program", params, pairs, None)


def _graph(kind: str, params: Mapping[str, Any], fabric: Fabric, seed: int) -> Placement:
    """Place the ranks of a graph. Raise InputError if the fabric has too few hosts."""
    from mrclab.hosts.workloads.player import plan_of  # imported here: numpy loads slowly

    each = params["ranks_per_host"]
    job = {
        "source": GRAPH_KINDS[kind].model_construct(kind=kind, **params).source(fabric, seed),
        "algorithms": params["algorithms"],
        "local": each if params["placement"] == "packed" else 1,
        "steps": params["steps"],
        "warmup_steps": params["warmup_steps"],
    }
    plan = plan_of(job)
    size = plan.graph.graph.size
    names = in_turns(fabric) if params["placement"] == "spread" else tuple(h.name for h in fabric.hosts)
    seats = tuple(host for host in names for _ in range(each))
    if size > len(seats):
        raise InputError(
            f"workload: {size} ranks, {len(seats)} places on {fabric.name}: "
            f"take a larger topology, or ranks_per_host: {-(-size // len(names))}"
        )
    return Placement(seats[:size], "graph", job, plan.pairs(), None)


def _all_pairs(hosts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a in range(len(hosts)) for b in range(len(hosts)) if a != b)


def in_turns(fabric: Fabric) -> tuple[str, ...]:
    """Return all hosts: the first host of every rack, then the second host of every rack, and so on."""
    racks: dict[int, list[str]] = {}
    for host in fabric.hosts:
        racks.setdefault(host.rack, []).append(host.name)
    longest = max(len(names) for names in racks.values())
    return tuple(names[i] for i in range(longest) for names in racks.values() if i < len(names))


def _ends(params: Mapping[str, Any], fabric: Fabric) -> tuple[str, str]:
    first = min(host.rack for host in fabric.hosts)
    last = max(host.rack for host in fabric.hosts)
    src = params["src"] if params["src"] != AUTO else _first_of(fabric, first, ())
    dst = params["dst"] if params["dst"] != AUTO else _first_of(fabric, last, (src,))
    if src == dst:
        raise InputError(f"workload.src and workload.dst are both {src}")
    return src, dst


def _first_of(fabric: Fabric, rack: int, but: tuple[str, ...]) -> str:
    return next(host.name for host in fabric.hosts if host.rack == rack and host.name not in but)


def _flows(
    kind: str, params: Mapping[str, Any], fabric: Fabric, seed: int
) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    if kind == "stream":
        return _ends(params, fabric), ((0, 1),)
    if kind == "bidirectional":
        return _ends(params, fabric), ((0, 1), (1, 0))
    if kind == "join":
        return _join(params, fabric), ((0, 1), (2, 3))
    if kind == "permutation":
        hosts = in_turns(fabric)[: params["ranks"] or None]
        if params.get("one_way", False):  # older results lack this key
            return hosts, tuple(_one_way(hosts, fabric, seed))
        return hosts, tuple(_derangement(len(hosts), fabric, hosts, seed))
    return _incast(params, fabric)


def _join(params: Mapping[str, Any], fabric: Fabric) -> tuple[str, ...]:
    """Return four hosts: source and destination of the first flow, then of the second flow."""
    first = _ends(params, fabric)
    names = [host.name for host in fabric.hosts]
    for key in ("second_src", "second_dst"):
        if params[key] not in names:
            raise InputError(f"workload.{key}: {fabric.name} has no host '{params[key]}'")
    hosts = (*first, params["second_src"], params["second_dst"])
    if len(set(hosts)) < len(hosts):
        raise InputError(f"workload: two flows have four ends, not {', '.join(hosts)}")
    return hosts


def _one_way(hosts: tuple[str, ...], fabric: Fabric, seed: int) -> list[tuple[int, int]]:
    """Sort hosts by rack. Return a flow from each host of the first half to a random host of the second."""
    order = sorted(range(len(hosts)), key=lambda place: (fabric.host(hosts[place]).rack, place))
    half = len(order) // 2
    receivers = random.Random(seed).sample(order[len(order) - half :], half)
    return list(zip(order[:half], receivers, strict=True))


def _derangement(size: int, fabric: Fabric, hosts: tuple[str, ...], seed: int) -> list[tuple[int, int]]:
    """Return random flows: each host sends to one other host, if possible in another rack."""
    chooser = random.Random(seed)
    best: list[int] = []
    fewest = size + 1
    for _ in range(1000):
        order = chooser.sample(range(size), size)
        same = sum(1 for i, j in enumerate(order) if fabric.host(hosts[i]).rack == fabric.host(hosts[j]).rack)
        if any(i == j for i, j in enumerate(order)):
            same += size
        if same < fewest:
            best, fewest = order, same
        if fewest == 0:
            break
    if any(i == j for i, j in enumerate(best)):  # no random order was good: send to the next host instead
        best = [(i + 1) % size for i in range(size)]
    return list(enumerate(best))


def _incast(params: Mapping[str, Any], fabric: Fabric) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    names = in_turns(fabric)
    dst = params["dst"] if params["dst"] != AUTO else _first_of(fabric, max(h.rack for h in fabric.hosts), ())
    rack = fabric.host(dst).rack
    others = [name for name in names if name != dst]
    # Senders in other racks come first in the list, because the paper's incast crosses the T1s.
    others.sort(key=lambda name: fabric.host(name).rack == rack)
    victim_to = next((name for name in others if fabric.host(name).rack == rack), None)
    if params["victim"]:
        if victim_to is None:
            raise InputError(f"workload.victim: {dst} is alone in its rack, so there is nobody to send to")
        others.remove(victim_to)
        if len(others) < 2:
            raise InputError(f"workload.victim: {fabric.name} has too few hosts for one more flow")
        # The victim flow starts in another rack, if possible, so that it shares links with the incast.
        far = [name for name in others if fabric.host(name).rack != rack]
        victim_from = (far or others)[-1]
        others.remove(victim_from)
    count = params["senders"] or len(others)
    if count > len(others):
        raise InputError(f"workload.senders: {count} of {len(others)} hosts that can send to {dst}")
    hosts = [dst, *others[:count]]
    pairs = [(i, 0) for i in range(1, len(hosts))]
    if params["victim"] and victim_to is not None:
        hosts += [victim_from, victim_to]
        pairs.append((len(hosts) - 2, len(hosts) - 1))
    return tuple(hosts), tuple(pairs)


def metered(fabric: Fabric, pattern: str) -> tuple[str, ...]:
    """Return the T0-T1 links whose names match ``pattern``, or no links if ``pattern`` is empty.

    Raise InputError if no name matches.
    """
    if not pattern:
        return ()
    fabric_links = [link.name for link in fabric.links if link.kind == "fabric"]
    found = tuple(name for name in fabric_links if fnmatchcase(name, pattern))
    if not found:
        raise InputError(
            f"measure.links: '{pattern}' matches none of {fabric.name}, as {fabric_links[0]} would"
        )
    return found


MIN_STREAM_BPS = 10_000


@dataclass(frozen=True, slots=True)
class MeshStream:
    """One direction of one queue pair: ``src`` writes to ``dst``. ``qps`` are the QP numbers at both ends."""

    src: str
    dst: str
    qps: tuple[int, int]
    plan: StreamPlan

    @property
    def name(self) -> str:
        """Return a name such as ``h0>h4 qp 2``."""
        return f"{self.src}>{self.dst} qp {self.qps[0]}"


def mesh_streams(mesh: Mesh, hosts: Sequence[str], seed: int) -> list[MeshStream]:
    """Return the streams of all queue pairs, in both directions. Each host numbers its queue pairs in order.

    The streams that one host receives share ``REGION_BYTES`` of memory. Raise InputError if the rate of each
    stream is too low, or if a message does not fit into a stream's share of the memory.
    """
    count = len(hosts) * (len(hosts) - 1) * mesh.qps
    rate = mesh.rate_bps // count
    if rate < MIN_STREAM_BPS:
        raise InputError(f"workload.rate: {mesh.rate_bps} bit/s are too few for {count} streams")
    region_bytes = REGION_BYTES // ((len(hosts) - 1) * mesh.qps)
    longest = region_bytes // MIN_SLOTS
    if mesh.message_bytes > longest:
        raise InputError(
            f"workload.message_bytes: with so many streams, messages have at most {longest} bytes"
        )
    used = dict.fromkeys(hosts, 0)
    seeds = random.Random(seed)
    found = []
    for a, b in combinations(hosts, 2):
        for _ in range(mesh.qps):
            for src, dst in ((a, b), (b, a)):
                plan = StreamPlan(
                    mesh.message_bytes, rate, seeds.getrandbits(62), mixed=True, region_bytes=region_bytes
                )
                found.append(MeshStream(src, dst, (used[src], used[dst]), plan))
            used[a] += 1
            used[b] += 1
    return found
