"""Collectives give exact results for any order of delivery."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.collectives.collective_operations import (
    DATA,
    Pattern,
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    expose_for_collectives,
    split,
)
from mrclab.hosts.collectives.communicator import Communicator, PutError, Steps
from tests.support.memory_network import MemoryNetwork, communicators, drive

sizes = st.integers(2, 9)
seeds = st.integers(0, 2**32)


def prepared(size: int, count: int, seed: int) -> tuple[MemoryNetwork, list[Communicator]]:
    network, comms = communicators(size, seed)
    for comm in comms:
        expose_for_collectives(comm, count, np.dtype("float32"), scratch=True)
    return network, comms


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_split_covers_all_evenly(count: int, parts: int) -> None:
    found = split(count, parts)
    assert found[0].start == 0
    assert found[-1].stop == count
    assert all(a.stop == b.start for a, b in pairwise(found))
    lengths = [s.stop - s.start for s in found]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(1, 200), seeds, st.sampled_from(["float32", "int32"]))
def test_all_reduce_sums_exactly_and_again(size: int, count: int, seed: int, dtype: str) -> None:
    count = max(count, size)
    network, comms = prepared(size, count, seed)

    def rank(comm: Communicator) -> Steps[None]:
        data = np.frombuffer(comm.regions[DATA], dtype, count)
        for operation in range(3):
            pattern = Pattern(seed + operation, count, dtype, size)
            data[:] = pattern.of(comm.rank)
            yield from all_reduce(comm, count, dtype)
            assert np.array_equal(data, pattern.sum())

    drive(network, comms, [rank(comm) for comm in comms])
    assert not network.puts


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 100), seeds)
def test_all_gather_brings_every_part_everywhere(size: int, count: int, seed: int) -> None:
    count = max(count, size)
    network, comms = prepared(size, count, seed)
    pattern = Pattern(seed, count, "float32", size)
    wanted = np.concatenate([pattern.of(r)[pattern.part(r)] for r in range(size)])

    def rank(comm: Communicator) -> Steps[None]:
        data = np.frombuffer(comm.regions[DATA], "float32", count)
        data[pattern.part(comm.rank)] = pattern.of(comm.rank)[pattern.part(comm.rank)]
        yield from all_gather(comm, count, "float32")
        assert np.array_equal(data, wanted)

    drive(network, comms, [rank(comm) for comm in comms])


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 30), seeds)
def test_all_to_all_transposes(size: int, each: int, seed: int) -> None:
    count = each * size
    network, comms = prepared(size, count, seed)
    pattern = Pattern(seed, count, "float32", size)

    def rank(comm: Communicator) -> Steps[None]:
        yield from all_to_all(comm, count, "float32", pattern.of(comm.rank))
        data = np.frombuffer(comm.regions[DATA], "float32", count)
        for peer in range(size):
            part = pattern.part(peer)
            assert np.array_equal(data[part], pattern.of(peer)[pattern.part(comm.rank)])

    drive(network, comms, [rank(comm) for comm in comms])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 17), seeds)
def test_nobody_leaves_a_barrier_before_everybody_came(size: int, seed: int) -> None:
    network, comms = prepared(size, size, seed)
    came: list[int] = []

    def rank(comm: Communicator) -> Steps[None]:
        for number in range(3):
            came.append(number)
            yield from barrier(comm)
            assert came.count(number) == size

    drive(network, comms, [rank(comm) for comm in comms])


def test_a_put_that_fails_ends_the_algorithm() -> None:
    network, comms = prepared(3, 30, 1)
    network.dead.add(2)
    with pytest.raises(PutError, match="rank 1 gave up on rank 2: peer is dead"):
        drive(network, comms, [all_reduce(comm, 30, "float32") for comm in comms])


def test_every_sum_of_a_pattern_is_exact_in_float32() -> None:
    for size in (2, 8, 16, 64):
        pattern = Pattern(3, 1000, "float32", size)
        exact = sum(pattern.of(r).astype(np.float64) for r in range(size))
        assert np.array_equal(exact, pattern.sum().astype(np.float64))
        assert pattern.sum().max() < 2**24
