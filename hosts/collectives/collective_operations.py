"""Collective operations with NCCL's algorithms, and the jobs that consist of these operations.

Operations work on a ring of ranks or between all pairs of ranks. Each operation is a generator (see
``communicator``). All ranks call the same operation with the same arguments. The data is in region ``DATA``.
Region ``SCRATCH`` has the same size; it receives data that must not overwrite ``DATA`` yet. There are two
jobs: an operation at several sizes, as in nccl-tests, and synchronous training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.hosts.collectives.communicator import Communicator, Samples, Steps, Times, columns

DATA, SCRATCH, FLAGS = 0, 1, 2
"""The numbers of a rank's memory regions: the data, scratch memory, and flags for barriers."""
FLAG_BYTES = 8
MAX_ROUNDS = 32  # largest number of rounds of a barrier, enough for 2^32 ranks

Array = npt.NDArray[Any]


def split(count: int, parts: int) -> list[slice]:
    """Divide ``count`` elements into ``parts`` slices. Their lengths differ by one at most."""
    short, longer = divmod(count, parts)
    ends = [short * (i + 1) + min(i + 1, longer) for i in range(parts)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def barrier(comm: Communicator) -> Steps[None]:
    """Wait until every rank has called this function: the dissemination barrier, in log2(n) rounds.

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
    """Sum ``count`` elements over all ranks, element by element. Every rank's DATA then holds the sums.

    This is the ring algorithm. First a reduce-scatter through SCRATCH sums each chunk on its way around the
    ring. Then an all-gather copies the sums into DATA. Each rank sends 2 (n - 1) / n of the buffer.
    """
    n, rank = comm.size, comm.rank
    item = np.dtype(dtype).itemsize
    after, before = (rank + 1) % n, (rank - 1) % n
    chunks = split(count, n)
    tag = comm.tags(2 * n)
    mine = np.frombuffer(comm.regions[DATA], dtype, count)
    theirs = np.frombuffer(comm.regions[SCRATCH], dtype, count)
    for step in range(n - 1):
        # Each chunk has a separate place in SCRATCH, so a step need not wait until an earlier chunk is read.
        _put(comm, after, SCRATCH, chunks[(rank - step) % n], item, tag + step)
        yield from comm.arrival(before, tag + step)
        chunk = chunks[(rank - step - 1) % n]
        mine[chunk] += theirs[chunk]
    for step in range(n - 1):
        _put(comm, after, DATA, chunks[(rank + 1 - step) % n], item, tag + n + step)
        yield from comm.arrival(before, tag + n + step)
    yield from comm.all_put()


def ring_sum(parts: Sequence[Array]) -> Array:
    """Return the sum of all ranks' elements (``parts``), with the same bits as ``all_reduce``.

    A chunk is summed on its way around the ring, beginning at the rank with the chunk's number. This order is
    kept here, because in float32 the order of additions changes the last bits.
    """
    n = len(parts)
    total = np.array(parts[0])
    for number, chunk in enumerate(split(len(total), n)):
        total[chunk] = parts[number][chunk]
        for step in range(1, n):
            total[chunk] += parts[(number + step) % n][chunk]
    return total


def all_gather(comm: Communicator, count: int, dtype: npt.DTypeLike) -> Steps[None]:
    """Copy each rank's part of DATA to every rank, around a ring. DATA has ``count`` elements in total."""
    n, rank = comm.size, comm.rank
    item = np.dtype(dtype).itemsize
    chunks = split(count, n)
    tag = comm.tags(n)
    for step in range(n - 1):
        _put(comm, (rank + 1) % n, DATA, chunks[(rank - step) % n], item, tag + step)
        yield from comm.arrival((rank - 1) % n, tag + step)
    yield from comm.all_put()


def all_to_all(comm: Communicator, count: int, dtype: npt.DTypeLike, send: Array) -> Steps[None]:
    """Put part j of ``send`` into the DATA of rank j, at the place of this rank's part.

    Parts have the same length, so ``count`` must be divisible by the number of ranks. All puts start at once.
    Each rank begins with its next neighbour, so that the ranks do not all send to the same rank first.
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


COLLECTIVES = ("all-reduce", "all-gather", "all-to-all")


def elements_of(size_bytes: int, size: int, *, equal: bool) -> int:
    """Return the number of 4-byte elements in a buffer of about this size, at least one for each rank.

    With ``equal`` the number is a multiple of the number of ranks.
    """
    count = max(size, size_bytes // 4)
    return count // size * size if equal else count


class CollectiveJob:
    """A collective operation at several sizes, with a barrier before and a check after each operation."""

    def __init__(self, kind: str, params: Mapping[str, Any], rank: int, size: int, seed: int) -> None:
        self.problem: str | None = None
        self._kind = kind
        self._size = size
        self._rank = rank
        self._seed = seed
        self._dtype = np.dtype(params["dtype"])
        self._counts = [elements_of(s, size, equal=kind == "all-to-all") for s in params["sizes_bytes"]]
        self._warm_up = params["warmup_iterations"]
        self._iterations = params["iterations"]
        self._notes: list[tuple[int, int, int, int]] = []

    def prepare(self, comm: Communicator) -> None:
        """See Job."""
        expose_for_collectives(comm, max(self._counts), self._dtype, scratch=self._kind == "all-reduce")

    def peers(self) -> set[int]:
        """See Job."""
        return set(range(self._size)) - {self._rank}

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """See Job."""
        yield from comm.until(times.start_ns)
        operation = 0
        for number, count in enumerate(self._counts):
            for iteration in range(-self._warm_up, self._iterations):
                if (number, iteration) == (0, 0):
                    yield from comm.until(times.measure_ns)
                pattern = Pattern(self._seed + operation, count, self._dtype, self._size)
                operation += 1
                send = self._fill(comm, pattern)
                yield from barrier(comm)
                started = comm.now()
                yield from self._operate(comm, count, send)
                ended = comm.now()
                if iteration >= 0:
                    self._notes.append((count * self._dtype.itemsize, iteration, started, ended))
                self._check(comm, pattern, f"{self._kind} {operation} of {count} elements")
                if self.problem is not None:
                    return
        yield from barrier(comm)

    def _fill(self, comm: Communicator, pattern: Pattern) -> npt.NDArray[Any]:
        data = np.frombuffer(comm.regions[DATA], self._dtype, pattern.count)
        if self._kind == "all-reduce":
            data[:] = pattern.of(self._rank)
        elif self._kind == "all-gather":
            data[:] = 0
            mine = pattern.part(self._rank)
            data[mine] = pattern.of(self._rank)[mine]
        else:
            data[:] = 0
        return pattern.of(self._rank)

    def _operate(self, comm: Communicator, count: int, send: npt.NDArray[Any]) -> Steps[None]:
        if self._kind == "all-reduce":
            return all_reduce(comm, count, self._dtype)
        if self._kind == "all-gather":
            return all_gather(comm, count, self._dtype)
        return all_to_all(comm, count, self._dtype, send)

    def _check(self, comm: Communicator, pattern: Pattern, what: str) -> None:
        data = np.frombuffer(comm.regions[DATA], self._dtype, pattern.count)
        if self._kind == "all-reduce":
            wanted = pattern.sum()
        elif self._kind == "all-gather":
            wanted = np.concatenate([pattern.of(r)[pattern.part(r)] for r in range(self._size)])
        else:
            wanted = np.concatenate([pattern.of(r)[pattern.part(self._rank)] for r in range(self._size)])
        self.problem = self.problem or difference(data, wanted, f"rank {self._rank}, {what}")

    def samples(self) -> Samples:
        """See Job. The columns are size in bytes, iteration, start and end of each operation."""
        return columns(self._notes, ("bytes", "iteration", "start_ns", "end_ns"))


class TrainingJob:
    """Steps of synchronous training: compute for a time, all-reduce the gradients, wait at a barrier."""

    def __init__(self, params: Mapping[str, Any], rank: int, size: int, seed: int) -> None:
        self.problem: str | None = None
        self._rank = rank
        self._size = size
        self._dtype = np.dtype(params["dtype"])
        self._count = elements_of(params["size_bytes"], size, equal=False)
        self._compute_ns = params["compute_ns"]
        self._steps = params["steps"]
        self._seed = seed
        self._notes: list[tuple[int, int, int, int]] = []

    def prepare(self, comm: Communicator) -> None:
        """See Job."""
        expose_for_collectives(comm, self._count, self._dtype, scratch=True)

    def peers(self) -> set[int]:
        """See Job."""
        return set(range(self._size)) - {self._rank}

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """See Job."""
        yield from comm.until(times.start_ns)
        pattern = Pattern(self._seed, self._count, self._dtype, self._size)
        gradients, wanted = pattern.of(self._rank), pattern.sum()
        data = np.frombuffer(comm.regions[DATA], self._dtype, self._count)
        data[:] = gradients
        yield from barrier(comm)
        yield from all_reduce(comm, self._count, self._dtype)
        yield from barrier(comm)
        yield from comm.until(times.measure_ns)
        yield from barrier(comm)
        for step in range(self._steps):
            started = comm.now()
            data[:] = gradients
            yield from comm.until(started + self._compute_ns)
            computed = comm.now()
            yield from all_reduce(comm, self._count, self._dtype)
            reduced = comm.now()
            self.problem = difference(data, wanted, f"rank {self._rank}, step {step}")
            if self.problem is not None:
                return
            yield from barrier(comm)
            self._notes.append((started, computed, reduced, comm.now()))

    def steps_since(self, number: int) -> list[tuple[int, int, int, int]]:
        """Return the rows of `samples`, from step ``number`` to the last completed step."""
        return self._notes[number:]

    def forget(self) -> None:
        """Delete the samples of completed steps, so that the memory of a long job does not grow."""
        self._notes.clear()

    def samples(self) -> Samples:
        """See Job: the start of each step, and the ends of its computation, all-reduce and barrier."""
        return columns(self._notes, ("start_ns", "computed_ns", "reduced_ns", "end_ns"))


class Pattern:
    """The input of one operation: small integers, so that sums in any order are exact in float32."""

    def __init__(self, seed: int, count: int, dtype: npt.DTypeLike, size: int) -> None:
        self.count = count
        self._size = size
        self._dtype = np.dtype(dtype)
        # Keep the sum over all ranks below 2^24, because float32 has all integers up to this number.
        bound = max(2, min(251, (1 << 24) // (size * (size + 1))))
        self._base = np.random.default_rng(seed).integers(1, bound, count).astype(self._dtype)

    def of(self, rank: int) -> npt.NDArray[Any]:
        """Return a rank's input: the base values times (rank + 1), so that a check notices swapped ranks."""
        return np.asarray(self._base * self._dtype.type(rank + 1))

    def sum(self) -> npt.NDArray[Any]:
        """Return the sum of all ranks' inputs."""
        return np.asarray(self._base * self._dtype.type(self._size * (self._size + 1) // 2))

    def part(self, rank: int) -> slice:
        """Return the slice of the buffer that belongs to a rank."""
        return split(self.count, self._size)[rank]


def expose_for_collectives(comm: Communicator, count: int, dtype: np.dtype[Any], *, scratch: bool) -> None:
    """Expose DATA, SCRATCH and FLAGS, in the order of their numbers."""
    comm.expose(count * dtype.itemsize)
    comm.expose(count * dtype.itemsize if scratch else FLAG_BYTES)
    comm.expose(MAX_ROUNDS * FLAG_BYTES)


def difference(found: npt.NDArray[Any], wanted: npt.NDArray[Any], what: str) -> str | None:
    """Return a text that describes the first difference between two arrays, or None if they are identical."""
    if np.array_equal(found.view(np.uint32), wanted.view(np.uint32)):
        return None
    wrong = np.flatnonzero(found != wanted)
    first = int(wrong[0])
    return f"{what}: {len(wrong)} of {len(wanted)} wrong, first [{first}] {found[first]} for {wanted[first]}"
