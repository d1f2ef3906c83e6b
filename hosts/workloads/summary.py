"""A graph in numbers: operations, bytes, groups, and the time of computing alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from typing import Any

from mrclab.hosts.workloads.graph import CPU, GPU, Matched, chains, in_order
from mrclab.hosts.workloads.player import Plan, move_bytes


def summary_of(matched: Matched, algorithms: Mapping[str, str], ranks_per_host: int = 1) -> dict[str, Any]:
    """Return a graph's numbers, in JSON's types. Bytes on the wire follow the algorithms."""
    graph = matched.graph
    plan = Plan(matched, algorithms, ranks_per_host)
    kinds = Counter(op.kind for listed in graph.ranks for op in listed)
    rows: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    sent = [0] * graph.size
    for op in matched.ops:
        what = op.collective or "message"
        members = op.group if op.kind == "collective" else ()
        row = rows[what, len(members) or 2]
        row[0] += 1
        row[1] += op.size_bytes
        wire = op.size_bytes if not members else 0
        for rank in members:
            schedule = plan.schedule_on(op, rank)
            out = sum(move_bytes(op, schedule, move) for r in schedule.rounds for move in r.sends)
            sent[rank] += out
            wire += out
        row[2] += wire
    for rank, listed in enumerate(graph.ranks):
        sent[rank] += sum(op.size_bytes for op in listed if op.kind == "send")
    computing = [sum(op.duration_ns for op in listed if op.stream == GPU) for listed in graph.ranks]
    return {
        "name": graph.name,
        "ranks": graph.size,
        "operations": dict(sorted(kinds.items())),
        "communication": [
            {"what": what, "ranks": size, "count": count, "bytes": total, "wire_bytes": wire}
            for (what, size), (count, total, wire) in sorted(rows.items())
        ],
        "sent_bytes": {"least": min(sent), "most": max(sent), "all": sum(sent)},
        "computing_us": {"least": min(computing) / 1e3, "most": max(computing) / 1e3},
        "step_us": step_ns(matched) / 1e3,
        "messages": plan.tags,
    }


def step_ns(matched: Matched) -> int:
    """Return the least time of the computations: the longest chain, or the busiest stream of a rank."""
    graph = matched.graph
    node, before = chains(graph, matched.instance)
    own: dict[Hashable, int] = defaultdict(int)
    busiest = 0
    for rank, listed in enumerate(graph.ranks):
        streams = {CPU: 0, GPU: 0}
        for op in listed:
            place = node[rank, op.number]
            own[place] = max(own[place], op.duration_ns)
            streams[op.stream] += op.duration_ns
        busiest = max(busiest, *streams.values())
    end: dict[Hashable, int] = {}
    for item in in_order(before):
        end[item] = own[item] + max((end[earlier] for earlier in before[item]), default=0)
    return max(busiest, *end.values())
