"""Ranks of one host write directly into each other's memory, and use the network to reach other hosts."""

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.collectives.channel import Arrived, Channel, Done, Turn, on_one_host
from mrclab.hosts.collectives.collective_operations import (
    DATA,
    Pattern,
    all_reduce,
    all_to_all,
    barrier,
    expose_for_collectives,
)
from mrclab.hosts.collectives.communicator import Communicator, Steps
from tests.support.memory_network import MemoryNetwork, drive


def nothing(_until_ns: int | None, _others: Collection[int]) -> Collection[int]:
    return ()


def on_hosts(network: MemoryNetwork, size: int, each: int) -> list[Channel]:
    found: list[Channel] = []
    for first in range(0, size, each):
        ranks = range(first, min(first + each, size))
        channels, _ = on_one_host({rank: network.channels[rank] for rank in ranks}, nothing)
        found += channels
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 2**32))
def test_collectives_are_right_with_several_ranks_on_a_host(size: int, each: int, seed: int) -> None:
    count = 12 * size
    network = MemoryNetwork(size, seed)
    clock = lambda: network.now_ns  # noqa: E731
    comms = [Communicator(c, rank, size, clock) for rank, c in enumerate(on_hosts(network, size, each))]
    pattern = Pattern(seed, count, "int32", size)

    def rank(comm: Communicator) -> Steps[None]:
        data = np.frombuffer(comm.regions[DATA], "int32", count)
        data[:] = pattern.of(comm.rank)
        yield from all_reduce(comm, count, "int32")
        assert np.array_equal(data, pattern.sum())
        yield from barrier(comm)  # all ranks have looked
        yield from all_to_all(comm, count, "int32", pattern.of(comm.rank))
        wanted = [pattern.of(r)[pattern.part(comm.rank)] for r in range(size)]
        assert np.array_equal(data, np.concatenate(wanted))

    for comm in comms:
        expose_for_collectives(comm, count, np.dtype("int32"), scratch=True)
    drive(network, comms, [rank(comm) for comm in comms])


def test_what_is_for_a_neighbour_does_not_touch_the_network() -> None:
    network = MemoryNetwork(3, 1)
    waits: list[int | None] = []
    turn: Turn = lambda until_ns, _: waits.append(until_ns) or ()  # noqa: E731
    (a, b), turn_all = on_one_host({0: network.channels[0], 1: network.channels[1]}, turn)
    for channel in (a, b):
        channel.expose(memoryview(bytearray(8)))
    region = memoryview(bytearray(8))
    network.channels[2].expose(region)
    ticket = a.put(1, 0, 2, memoryview(b"abc"), 7)
    assert not network.puts
    turn_all(None, ())  # an event is to be delivered, so the NIC must not wait
    assert waits == [0]
    assert b.events() == [Arrived(0, 7, 3, pytest.approx(0, abs=1e20))]
    (done,) = a.events()
    assert isinstance(done, Done)
    assert (done.peer, done.ticket, done.error) == (1, ticket, None)
    assert (a.bytes_delivered(), b.bytes_delivered()) == (0, 3)
    turn_all(None, ())
    assert waits == [0, None]
    assert a.put(2, 0, 0, memoryview(b"xyz"), 8) != ticket
    assert len(network.puts) == 1
    with pytest.raises(ValueError, match="lvalue"):
        a.put(1, 0, 6, memoryview(b"abc"), 9)
