"""Collective operations on a ring or between all pairs, as NCCL does them on one channel.

Each is a generator (see ``communicator``). All ranks call the same one with the same arguments. The data is
in region ``DATA``; region ``SCRATCH``, of the same size, receives data that must not overwrite ``DATA`` yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.hosts.collectives.communicator import Communicator, Steps

DATA, SCRATCH, FLAGS = 0, 1, 2
"""The numbers of a rank's regions."""
FLAG_BYTES = 8
MAX_ROUNDS = 32  # of a barrier: 2^32 ranks

Array = npt.NDArray[Any]


def split(count: int, parts: int) -> list[slice]:
    """Divide ``count`` elements into ``parts`` runs. Lengths differ by one at most, longer runs first."""
    short, longer = divmod(count, parts)
    ends = [short * (i + 1) + min(i + 1, longer) for i in range(parts)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def barrier(comm: Communicator) -> Steps[None]:
    """Wait until every rank has called this: the dissemination barrier, in log2(n) rounds.

    Source: Hensgen, Finkel, Manber, Two Algorithms for Barrier Synchronization, 1988.
    """
    tag = comm.tags(MAX_ROUNDS)
    flag = memoryview(bytes(FLAG_BYTES))
    distance, number = 1, 0
    while distance < comm.size:
        to, back = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        comm.put(to, FLAGS, number * FLAG_BYTES, flag, tag + number)
        yield from comm.arrival(back, tag + number)
        distance, number = distance * 2, number + 1
    yield from comm.all_put()


def all_reduce(comm: Communicator, count: int, dtype: npt.DTypeLike) -> Steps[None]:
    """Sum ``count`` elements over all ranks, element by element; every rank's DATA then holds the sums.

    This is the ring algorithm: a reduce-scatter through SCRATCH, in which each chunk is summed on its way
    around the ring, then an all-gather into DATA. Each rank sends 2 (n - 1) / n of the buffer.
    """
    n, rank = comm.size, comm.rank
    item = np.dtype(dtype).itemsize
    after, before = (rank + 1) % n, (rank - 1) % n
    chunks = split(count, n)
    tag = comm.tags(2 * n)
    mine = np.frombuffer(comm.regions[DATA], dtype, count)
    theirs = np.frombuffer(comm.regions[SCRATCH], dtype, count)
    for step in range(n - 1):
        # Each chunk has its own place in SCRATCH, so no step waits until the chunk before it is read.
        _put(comm, after, SCRATCH, chunks[(rank - step) % n], item, tag + step)
        yield from comm.arrival(before, tag + step)
        chunk = chunks[(rank - step - 1) % n]
        mine[chunk] += theirs[chunk]
    for step in range(n - 1):
        _put(comm, after, DATA, chunks[(rank + 1 - step) % n], item, tag + n + step)
        yield from comm.arrival(before, tag + n + step)
    yield from comm.all_put()


def ring_sum(parts: Sequence[Array]) -> Array:
    """Return the sum that ``all_reduce`` leaves on every rank, bit for bit, given each rank's elements.

    A chunk is summed on its way around the ring, from the rank of its number on: with float32 that order
    decides the last bits.
    """
    n = len(parts)
    total = np.array(parts[0])
    for number, chunk in enumerate(split(len(total), n)):
        total[chunk] = parts[number][chunk]
        for step in range(1, n):
            total[chunk] += parts[(number + step) % n][chunk]
    return total


def all_gather(comm: Communicator, count: int, dtype: npt.DTypeLike) -> Steps[None]:
    """Copy each rank's part of DATA (``count`` elements over all ranks) to every rank, around a ring."""
    n, rank = comm.size, comm.rank
    item = np.dtype(dtype).itemsize
    chunks = split(count, n)
    tag = comm.tags(n)
    for step in range(n - 1):
        _put(comm, (rank + 1) % n, DATA, chunks[(rank - step) % n], item, tag + step)
        yield from comm.arrival((rank - 1) % n, tag + step)
    yield from comm.all_put()


def all_to_all(comm: Communicator, count: int, dtype: npt.DTypeLike, send: Array) -> Steps[None]:
    """Put part j of ``send`` into rank j's DATA, at the part of our rank.

    Parts have the same length, so ``count`` must be divisible by the number of ranks. All puts start at once.
    Each rank begins with its next neighbour, so that ranks do not all send to the same one first.
    """
    n, rank = comm.size, comm.rank
    parts = split(count, n)
    tag = comm.tags(1)
    mine = np.frombuffer(comm.regions[DATA], dtype, count)
    mine[parts[rank]] = send[parts[rank]]
    item = np.dtype(dtype).itemsize
    for distance in range(1, n):
        peer = (rank + distance) % n
        comm.put(peer, DATA, parts[rank].start * item, send[parts[peer]].data.cast("B"), tag)
    for distance in range(1, n):
        yield from comm.arrival((rank - distance) % n, tag)
    yield from comm.all_put()


def _put(comm: Communicator, peer: int, region: int, chunk: slice, item: int, tag: int) -> None:
    start, end = chunk.start * item, chunk.stop * item
    comm.put(peer, region, start, comm.regions[DATA][start:end], tag)
