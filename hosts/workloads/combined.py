"""Graphs made of little: one collective, or several jobs on one fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mrclab.hosts.workloads.graph import MAX_RANKS, Graph, Op
from mrclab.linux.errors import InputError


def collective_graph(operation: str, ranks: int, size_bytes: int) -> Graph:
    """Return a graph of one collective of all ranks; each contributes ``size_bytes``."""
    if not 2 <= ranks <= MAX_RANKS:
        raise InputError(f"collective: {ranks} ranks: 2 to {MAX_RANKS}")
    op = Op(
        0, "collective", operation, size_bytes=size_bytes, collective=operation, group=tuple(range(ranks))
    )
    return Graph(operation, ((op,),) * ranks)


def together(jobs: Mapping[str, Graph]) -> Graph:
    """Return several jobs as one graph: the ranks of the first, then those of the second, and so on.

    Nothing of one job waits for another.
    """
    ranks: list[tuple[Op, ...]] = []
    for graph in jobs.values():
        first = len(ranks)
        ranks += (tuple(_moved(op, first) for op in listed) for listed in graph.ranks)
    return Graph(" and ".join(jobs), tuple(ranks), tuple((name, graph.size) for name, graph in jobs.items()))


def _moved(op: Op, by: int) -> Op:
    """Return an operation whose ranks have numbers that much higher."""
    peer = op.peer + by if op.peer >= 0 else op.peer
    return replace(op, peer=peer, group=tuple(rank + by for rank in op.group))


def job_of(jobs: Sequence[tuple[str, int]], rank: int) -> int:
    """Return the number of a rank's job; 0 if there is only one."""
    last = 0
    for number, (_, size) in enumerate(jobs):
        last += size
        if rank < last:
            return number
    return 0
