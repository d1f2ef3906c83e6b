"""A workload as a graph: the computations and messages of each rank, and their dependencies.

A graph comes from an execution trace (`chakra`) or a generator (`training_steps`); `player` runs it.
`matched` pairs the ends of every communication and checks that all operations can complete. This module also
makes simple graphs: one collective, or several jobs on one fabric.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from mrclab.linux.errors import InputError

Kind = Literal["compute", "send", "receive", "collective"]
COLLECTIVES: Final = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "barrier",
)
MAX_RANKS: Final = 16_384
MAX_OPS: Final = 1_000_000
MAX_BYTES: Final = 1 << 36
"""Largest size of one operation, bytes (64 GiB)."""
MAX_DURATION_NS: Final = 3600 * 10**9
CPU, GPU, WAIT, AFTER = 0, 1, -1, -2
"""The streams of a rank. CPU and GPU each compute one operation at a time. WAIT and AFTER only wait.

Any number of waits may run in parallel. The time of a WAIT counts from the beginning of the step. The time of
an AFTER counts from the end of the operations in its ``after``.
"""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a rank. It begins when all operations whose numbers are in ``after`` have ended."""

    number: int
    kind: Kind
    name: str = ""
    after: tuple[int, ...] = ()
    duration_ns: int = 0
    """Duration of an operation of kind "compute", ns."""
    stream: int = GPU
    """The stream of an operation that computes."""
    size_bytes: int = 0
    """Size of a message, or of a rank's contribution to a collective."""
    peer: int = -1
    """The other rank of a send or a receive."""
    tag: int = 0
    """Between two ranks, sends and receives with the same tag match in order."""
    collective: str = ""
    """The kind of a collective: one of ``COLLECTIVES``."""
    group: tuple[int, ...] = ()
    """The ranks of a collective, in order."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The operations of all ranks."""

    name: str
    ranks: tuple[tuple[Op, ...], ...]
    jobs: tuple[tuple[str, int], ...] = ()
    """Name and number of ranks of each job, in order. Empty if there is only one job."""

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)


Key = tuple[int, int]
"""A rank and the number of one of its operations."""


@dataclass(frozen=True, slots=True)
class Matched:
    """A graph whose communications are paired.

    ``instance`` numbers the communications from 0: all ends of a communication have the same number. ``ops``
    has one operation of each communication, in the order of these numbers.
    """

    graph: Graph
    instance: Mapping[Key, int]
    ops: tuple[Op, ...] = field(repr=False)


def matched(graph: Graph) -> Matched:
    """Pair the ends of every communication.

    Collectives of a group match in the order in which each rank lists them, like calls on a communicator.
    Sends and receives match by pair of ranks and tag. Raise InputError if an end has no partner, if sizes
    differ, or if operations wait for one another in a cycle.
    """
    _check_size(graph)
    found: dict[Key, int] = {}
    ops: list[Op] = []
    by_group: dict[tuple[tuple[int, ...], int], list[Key]] = defaultdict(list)
    ends: dict[tuple[int, int, int], tuple[list[Key], list[Key]]] = defaultdict(lambda: ([], []))
    table: dict[Key, Op] = {}
    for rank, listed in enumerate(graph.ranks):
        met: dict[tuple[int, ...], int] = defaultdict(int)
        for op in listed:
            key = (rank, op.number)
            if key in table:
                raise _wrong(graph, rank, op, "its number is not unique")
            table[key] = op
            if op.kind == "collective":
                _check_group(graph, rank, op)
                by_group[op.group, met[op.group]].append(key)
                met[op.group] += 1
            elif op.kind in ("send", "receive"):
                if not 0 <= op.peer < graph.size or op.peer == rank:
                    raise _wrong(graph, rank, op, f"its peer is {op.peer}: 0 to {graph.size - 1}, another")
                pair = (rank, op.peer) if op.kind == "send" else (op.peer, rank)
                ends[(*pair, op.tag)][op.kind == "receive"].append(key)
    for (group, order), keys in by_group.items():
        first = table[keys[0]]
        if len(keys) != len(group):
            missing = min(set(group) - {rank for rank, _ in keys})
            raise _wrong(graph, keys[0][0], first, f"rank {missing} has no collective {order} of this group")
        for key in keys[1:]:
            other = table[key]
            if (other.collective, other.size_bytes) != (first.collective, first.size_bytes):
                raise _wrong(
                    graph,
                    key[0],
                    other,
                    f"it is {other.collective} of {other.size_bytes} bytes, on rank {keys[0][0]} "
                    f"{first.collective} of {first.size_bytes}",
                )
        found |= dict.fromkeys(keys, len(ops))
        ops.append(first)
    for (src, dst, tag), (sent, received) in ends.items():
        if len(sent) != len(received):
            key = max(sent, received, key=len)[-1]
            raise _wrong(
                graph,
                key[0],
                table[key],
                f"{len(sent)} sends from rank {src} to {dst} with tag {tag} meet {len(received)} receives",
            )
        for a, b in zip(sent, received, strict=True):
            if table[a].size_bytes != table[b].size_bytes:
                raise _wrong(
                    graph,
                    dst,
                    table[b],
                    f"it receives {table[b].size_bytes} bytes, rank {src} sends {table[a].size_bytes}",
                )
            found[a] = found[b] = len(ops)
            ops.append(table[a])
    _check_order(graph, found)
    return Matched(graph, found, tuple(ops))


def _check_size(graph: Graph) -> None:
    if not 2 <= graph.size <= MAX_RANKS:
        raise InputError(f"{graph.name}: {graph.size} ranks: 2 to {MAX_RANKS}")
    count = sum(len(listed) for listed in graph.ranks)
    if count > MAX_OPS:
        raise InputError(f"{graph.name}: {count} operations: {MAX_OPS} at most")
    for rank, listed in enumerate(graph.ranks):
        for op in listed:
            if not 0 <= op.size_bytes <= MAX_BYTES:
                raise _wrong(graph, rank, op, f"{op.size_bytes} bytes: 0 to {MAX_BYTES}")
            if not 0 <= op.duration_ns <= MAX_DURATION_NS:
                raise _wrong(graph, rank, op, f"it takes {op.duration_ns / 1e9:g} s: an hour at most")


def _check_group(graph: Graph, rank: int, op: Op) -> None:
    if op.collective not in COLLECTIVES:
        raise _wrong(graph, rank, op, f"no collective '{op.collective}'")
    outside = [member for member in op.group if not 0 <= member < graph.size]
    if outside or len(set(op.group)) != len(op.group):
        what = f"rank {outside[0]} of its group is not in the trace" if outside else "a rank twice in a group"
        raise _wrong(graph, rank, op, what)
    if rank not in op.group:
        raise _wrong(graph, rank, op, f"rank {rank} is not in its group")


def chains(
    graph: Graph, instance: Mapping[Key, int]
) -> tuple[dict[Key, Hashable], dict[Hashable, list[Hashable]]]:
    """Return a node for each operation, and for each node the nodes for which it waits.

    A collective is one node for all its ranks. It waits for all operations for which any of its ranks waits.
    A receive waits for its send. A send does not wait for its receive, as with a put. Raise InputError for an
    operation that waits for an operation that does not exist.
    """
    node: dict[Key, Hashable] = {}
    before: dict[Hashable, list[Hashable]] = {}
    for rank, listed in enumerate(graph.ranks):
        for op in listed:
            key = (rank, op.number)
            node[key] = key if op.kind in ("compute", "receive") else instance[key]
            if op.kind == "receive":
                before.setdefault(key, []).append(instance[key])
    for rank, listed in enumerate(graph.ranks):
        for op in listed:
            waits = before.setdefault(node[rank, op.number], [])
            for number in op.after:
                if (rank, number) not in node:
                    raise _wrong(graph, rank, op, f"it waits for {number}, which does not exist")
                waits.append(node[rank, number])
    return node, before


def in_order(before: Mapping[Hashable, list[Hashable]]) -> list[Hashable]:
    """Return the nodes in an order in which they can run.

    Leave out nodes that are in a cycle, and nodes that wait for a cycle.
    """
    waits = {item: len(listed) for item, listed in before.items()}
    then: dict[Hashable, list[Hashable]] = defaultdict(list)
    for item, listed in before.items():
        for earlier in listed:
            then[earlier].append(item)
    found = [item for item, count in waits.items() if not count]
    for item in found:  # the loop appends to this list
        for later in then[item]:
            waits[later] -= 1
            if not waits[later]:
                found.append(later)
    return found


def _check_order(graph: Graph, instance: Mapping[Key, int]) -> None:
    """Raise InputError if operations wait for one another in a cycle."""
    node, before = chains(graph, instance)
    found = set(in_order(before))
    for rank, listed in enumerate(graph.ranks):
        for op in listed:
            if node[rank, op.number] not in found:
                raise _wrong(graph, rank, op, "it never begins: operations wait for one another in a circle")


def _wrong(graph: Graph, rank: int, op: Op, what: str) -> InputError:
    name = f" ({op.name[:60]})" if op.name else ""
    return InputError(f"{graph.name}: rank {rank}, operation {op.number}{name}: {what}")


def groups_of(ops: Iterable[Op]) -> dict[tuple[int, ...], int]:
    """Return the groups of collectives, and the number of collectives of each group."""
    found: dict[tuple[int, ...], int] = defaultdict(int)
    for op in ops:
        if op.kind == "collective":
            found[op.group] += 1
    return dict(found)


def collective_graph(operation: str, ranks: int, size_bytes: int) -> Graph:
    """Return a graph of one collective of all ranks. Each rank contributes ``size_bytes``."""
    if not 2 <= ranks <= MAX_RANKS:
        raise InputError(f"collective: {ranks} ranks: 2 to {MAX_RANKS}")
    op = Op(
        0, "collective", operation, size_bytes=size_bytes, collective=operation, group=tuple(range(ranks))
    )
    return Graph(operation, ((op,),) * ranks)


def together(jobs: Mapping[str, Graph]) -> Graph:
    """Return several jobs as one graph: the ranks of the first job, the ranks of the second job, and so on.

    No operation of one job waits for another job.
    """
    ranks: list[tuple[Op, ...]] = []
    for graph in jobs.values():
        first = len(ranks)
        ranks += (tuple(_moved(op, first) for op in listed) for listed in graph.ranks)
    return Graph(" and ".join(jobs), tuple(ranks), tuple((name, graph.size) for name, graph in jobs.items()))


def _moved(op: Op, by: int) -> Op:
    """Return an operation whose rank numbers are increased by ``by``."""
    peer = op.peer + by if op.peer >= 0 else op.peer
    return replace(op, peer=peer, group=tuple(rank + by for rank in op.group))


def job_of(jobs: Sequence[tuple[str, int]], rank: int) -> int:
    """Return the number of a rank's job, which is 0 if there is only one job."""
    last = 0
    for number, (_, size) in enumerate(jobs):
        last += size
        if rank < last:
            return number
    return 0
