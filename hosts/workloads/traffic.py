"""Flows that start at given times: traffic matrices of htsim, and random arrivals at a given load.

htsim's files (`.cm`) have lines like `0->1 id 1 start 0 size 2000000 send_done_trigger 1`. Start times are in
picoseconds. A trigger starts a flow when other flows have ended. Random arrivals are a Poisson process at
every host. The sizes of these flows have a given distribution.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from mrclab.hosts.workloads.graph import MAX_BYTES, MAX_DURATION_NS, MAX_RANKS, WAIT, Graph, Op
from mrclab.linux.errors import InputError

MAX_FLOWS: Final = 200_000
_PS_PER_NS: Final = 1000
OPS_PER_FLOW: Final = 3

Distribution = tuple[tuple[int, float], ...]
"""Points of a cumulative distribution: a size in bytes, and the share of flows with at most that size."""

DISTRIBUTIONS: Final[Mapping[str, Distribution]] = {
    # Source: Alizadeh et al., Data Center TCP, SIGCOMM 2010; the points are from HPCC's evaluation.
    "web-search": (
        *((0, 0.0), (10_000, 0.15), (20_000, 0.20), (30_000, 0.30), (50_000, 0.40), (80_000, 0.53)),
        *((200_000, 0.60), (1_000_000, 0.70), (2_000_000, 0.80), (5_000_000, 0.90), (10_000_000, 0.97)),
        (30_000_000, 1.0),
    ),
    # Source: Roy et al., Inside the Social Network's (Datacenter) Network, SIGCOMM 2015; points from HPCC.
    "hadoop": (
        *((0, 0.0), (100, 0.01), (200, 0.02), (300, 0.05), (350, 0.15), (400, 0.20), (500, 0.30)),
        *((600, 0.40), (700, 0.50), (1_000, 0.60), (2_000, 0.67), (7_000, 0.70), (30_000, 0.72)),
        *((50_000, 0.82), (80_000, 0.87), (120_000, 0.90), (300_000, 0.95), (1_000_000, 0.975)),
        *((2_000_000, 0.99), (10_000_000, 1.0)),
    ),
}


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow. It starts ``start_ns`` after the step begins, but only after the flows ``after`` have ended."""

    src: int
    dst: int
    size_bytes: int
    start_ns: int = 0
    after: tuple[int, ...] = ()


def flows_graph(name: str, hosts: int, flows: Sequence[Flow]) -> Graph:
    """Return flows as a graph. The send of flow k has number 3 k + 1. Raise InputError for too many flows."""
    if not 0 < len(flows) <= MAX_FLOWS:
        raise InputError(f"{name}: {len(flows)} flows: 1 to {MAX_FLOWS}")
    ranks: list[list[Op]] = [[] for _ in range(hosts)]
    for k, flow in enumerate(flows):
        first = OPS_PER_FLOW * k
        after = tuple(OPS_PER_FLOW * number + 1 for number in flow.after)
        if flow.start_ns:
            ranks[flow.src].append(Op(first, "compute", "start", duration_ns=flow.start_ns, stream=WAIT))
            after = (*after, first)
        size = flow.size_bytes
        ranks[flow.src].append(
            Op(first + 1, "send", f"flow {k}", after, size_bytes=size, peer=flow.dst, tag=k)
        )
        ranks[flow.dst].append(Op(first + 2, "receive", f"flow {k}", size_bytes=size, peer=flow.src, tag=k))
    return Graph(name, tuple(map(tuple, ranks)))


def read_matrix(text: str, where: str) -> Graph:
    """Return the graph of a traffic matrix. Raise InputError, with the line number, for invalid text."""
    nodes = 0
    flows: list[Flow] = []
    starts: dict[int, list[int]] = defaultdict(list)
    triggered: list[tuple[int, int, int]] = []
    counts: dict[int, tuple[str, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            if words[0] == "Nodes":
                nodes = _whole(words[1], "Nodes")
            elif words[0] in ("Connections", "Triggers", "Failures"):
                _whole(words[1], words[0])
            elif words[0] == "trigger":
                trigger, kind, count = _trigger(words[1:])
                counts[trigger] = (kind, count)
            elif "->" in words[0]:
                flow, given = _connection(words)
                if "trigger" in given:
                    triggered.append((len(flows), given["trigger"], number))
                if "recv_done_trigger" in given:
                    raise ValueError("recv_done_trigger: only send_done_trigger can be played")
                if "send_done_trigger" in given:
                    starts[given["send_done_trigger"]].append(len(flows))
                flows.append(flow)
                if len(flows) > MAX_FLOWS:
                    raise ValueError(f"more than {MAX_FLOWS} flows")
            elif words[0] == "failure":
                raise ValueError("failures belong into the scenario's faults (docs/faults.md)")
            else:
                raise ValueError(f"no line of a traffic matrix: '{words[0][:40]}'")
        except IndexError:
            raise InputError(f"'{words[-1][:40]}' has no value", where=where, line=number) from None
        except ValueError as error:
            raise InputError(str(error), where=where, line=number) from None
    if not 2 <= nodes <= MAX_RANKS:
        raise InputError(f"Nodes {nodes}: 2 to {MAX_RANKS}", where=where)
    for at, trigger, number in triggered:
        after = tuple(starts.get(trigger, ()))
        kind, count = counts.get(trigger, ("oneshot", 0))
        if not after:
            raise InputError(f"nothing sets off trigger {trigger}", where=where, line=number)
        if any(flows[k].src != flows[at].src for k in after):
            raise InputError(f"trigger {trigger} is set off by another node", where=where, line=number)
        if len(after) > 1 and (kind, count) != ("barrier", len(after)):
            raise InputError(
                f"trigger {trigger} ({kind} {count}) is set off by {len(after)} flows: "
                "only a barrier of as many can be played",
                where=where,
                line=number,
            )
        flows[at] = replace(flows[at], after=after)
    for k, flow in enumerate(flows):
        if max(flow.src, flow.dst) >= nodes:
            raise InputError(f"flow {k + 1}: {flow.src}->{flow.dst} of {nodes} nodes", where=where)
    return flows_graph(where, nodes, flows)


def _whole(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ValueError(f"{name} is '{text[:40]}': a whole number")
    return int(text)


def _trigger(words: Sequence[str]) -> tuple[int, str, int]:
    found: dict[str, int] = {}
    kind = ""
    rest = iter(words)
    for word in rest:
        if word in ("oneshot", "multishot", "barrier"):
            kind = word
        elif word in ("id", "count"):
            found[word] = _whole(next(rest, ""), word)
        else:
            raise ValueError(f"a trigger has no '{word[:40]}'")
    if "id" not in found or not kind:
        raise ValueError("a trigger needs an id, and oneshot, multishot or barrier")
    return found["id"], kind, found.get("count", 0)


_KEYS = ("id", "start", "size", "trigger", "send_done_trigger", "recv_done_trigger", "prio", "msg")


def _connection(words: Sequence[str]) -> tuple[Flow, dict[str, int]]:
    src, _, dst = words[0].partition("->")
    given: dict[str, int] = {}
    rest = deque(words[1:])
    while rest:
        key = rest.popleft()
        if key not in _KEYS:
            raise ValueError(f"a connection has no '{key[:40]}'")
        if key == "msg" and not (rest and rest[0].isdecimal()):
            continue  # htsim also accepts "msg" without a number
        value = rest.popleft()
        given[key] = _whole(value.removesuffix(".0") if key == "start" else value, key)
    if "size" not in given:
        raise ValueError("a connection needs a size: htsim's endless flows have no end to wait for")
    if ("start" in given) == ("trigger" in given):
        raise ValueError("a connection needs either start or trigger")
    start_ns = given.get("start", 0) // _PS_PER_NS
    flow = Flow(_whole(src, "the sender"), _whole(dst, "the receiver"), given["size"], start_ns)
    if flow.src == flow.dst:
        raise ValueError(f"{words[0]}: a flow needs two nodes")
    if not 0 < flow.size_bytes <= MAX_BYTES or start_ns > MAX_DURATION_NS:
        raise ValueError(f"size 1 to {MAX_BYTES} bytes, start at most an hour")
    return flow, given


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Random flows from every host to any other host. ``load`` is the mean load of each NIC (0 to 1)."""

    hosts: int
    rate_bps: int
    """The rate of a NIC, over all its ports."""
    load: float
    sizes: Distribution
    duration_ns: int
    seed: int


def mean_bytes(sizes: Distribution) -> float:
    """Return the mean of a distribution. Between its points the cumulative distribution is linear."""
    return sum((b - a) * (low + high) / 2 for (low, a), (high, b) in pairwise(sizes))


def drawn_bytes(sizes: Distribution, share: float) -> int:
    """Return the quantile of a distribution for a share (0 to 1): a size in bytes, at least 1."""
    at = min(bisect_right([point[1] for point in sizes], share), len(sizes) - 1)
    (low, a), (high, b) = sizes[at - 1], sizes[at]
    return max(1, round(low + (high - low) * (share - a) / (b - a)))


def arrivals_graph(a: Arrivals) -> Graph:
    """Return a graph of random flows. Raise InputError if there are too many flows or no flow."""
    rng = random.Random(a.seed)
    gap_ns = 8e9 * mean_bytes(a.sizes) / (a.load * a.rate_bps)
    expected = a.hosts * a.duration_ns / gap_ns
    if expected > MAX_FLOWS:
        raise InputError(f"arrivals: {expected:,.0f} flows: {MAX_FLOWS} at most: a shorter duration")
    flows = []
    for src in range(a.hosts):
        now = rng.expovariate(1) * gap_ns
        while now < a.duration_ns:
            dst = rng.randrange(a.hosts - 1)
            size = drawn_bytes(a.sizes, rng.random())
            flows.append(Flow(src, dst + (dst >= src), size, max(1, round(now))))
            now += rng.expovariate(1) * gap_ns
    if not flows:
        raise InputError("arrivals: no flow begins in that time: a longer duration")
    return flows_graph("arrivals", a.hosts, flows)


def read_distribution(text: str, where: str) -> Distribution:
    """Return a distribution from lines of bytes and percent, the format of HPCC and pFabric.

    Raise InputError if the text is invalid.
    """
    points: list[tuple[int, float]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            size, share = float(words[0]), float(words[-1]) / 100
        except ValueError:
            raise InputError("bytes and percent, such as '10000 15'", where=where, line=number) from None
        if not 0 <= size <= MAX_BYTES or not 0 <= share <= 1:
            raise InputError(f"bytes 0 to {MAX_BYTES}, percent 0 to 100", where=where, line=number)
        points.append((round(size), share))
    return checked(points, where)


def checked(points: Iterable[tuple[int, float]], where: str) -> Distribution:
    """Return the points as a distribution. Raise InputError if the shares do not rise from 0 to 1."""
    found = tuple(points)
    if len(found) < 2 or found[0][1] != 0 or abs(found[-1][1] - 1) > 1e-9:
        raise InputError("a distribution rises from 0 to 100 percent", where=where)
    for (low, a), (high, b) in pairwise(found):
        if high < low or b <= a:
            raise InputError(f"a distribution rises: {high} bytes at {b * 100:g} percent", where=where)
    return found
