"""A group of ranks: its thread, its futures and its end, over channels that fail or have no peer."""

import select
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from mrclab.hosts.collectives.channel import ChannelEvent, Done
from mrclab.hosts.collectives.group import Group, GroupError
from tests.support.memory_network import MemoryChannel, MemoryNetwork

PATIENCE_S = 60


class Store:
    """A fake store for ranks in one thread. It never waits: it makes up a missing value."""

    def set(self, key: str, value: str) -> None:
        pass

    def get(self, key: str) -> bytes:
        return b"{}"


class Waiting(MemoryChannel):
    """A channel without a peer. Its first put fails."""

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        return select.select(list(others), [], [], 0 if self.network.puts else None)[0]

    def events(self) -> list[ChannelEvent]:
        puts, self.network.puts = self.network.puts, []
        return [Done(put.dst, put.ticket, 0, "retries exceeded") for put in puts]


@contextmanager
def group(size: int) -> Iterator[Group]:
    channel = Waiting(MemoryNetwork(size, 1), 0)
    with Group(channel, channel.turn, 0, size, 64) as made:
        made.connect(Store())
        yield made


def test_one_rank_has_its_own_sum() -> None:
    with group(1) as alone:
        values = np.arange(1000.0)
        alone.all_reduce(values).result(PATIENCE_S)
        assert values.tolist() == list(range(1000))


def test_all_sums_fail_with_the_peer() -> None:
    with group(2) as pair:
        sums = [pair.all_reduce(np.zeros(4)) for _ in range(3)]
        for done in sums:
            with pytest.raises(GroupError, match="gave up on rank 1: retries exceeded"):
                done.result(PATIENCE_S)
        with pytest.raises(GroupError, match="gave up"):
            pair.all_reduce(np.zeros(4)).result(PATIENCE_S)


def test_a_sum_after_the_end_fails() -> None:
    with group(1) as alone:
        pass
    with pytest.raises(GroupError, match="the group was closed"):
        alone.all_reduce(np.zeros(4)).result(PATIENCE_S)


def test_a_sum_cannot_be_taken_back() -> None:
    """The sum cannot be cancelled, because the other ranks need it."""
    with group(1) as alone:
        assert not alone.all_reduce(np.zeros(4)).cancel()


def test_a_sum_that_is_complete_when_the_group_closes_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with group(1) as alone:

        class ClosingLock:
            """The group's lock. The group is closed as soon as its thread has counted a sum as complete."""

            def __enter__(self) -> None:
                self.tasks = len(alone._tasks)

            def __exit__(self, *_: object) -> None:
                if len(alone._tasks) < self.tasks:
                    alone._problem = GroupError("the group was closed")

        monkeypatch.setattr(alone, "_lock", ClosingLock())
        alone.all_reduce(np.zeros(4)).result(PATIENCE_S)


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.zeros(8)[::2], np.frombuffer(bytes(8))])
def test_an_array_that_cannot_be_summed_in_place_is_refused(values: np.ndarray) -> None:
    with group(1) as alone, pytest.raises(ValueError, match="one dimension, be contiguous, and be writable"):
        alone.all_reduce(values)


def test_messages_fail_with_the_peer_and_with_the_group() -> None:
    with group(2) as pair:
        messages = [pair.receive(1, np.zeros(4)), pair.send(1, np.zeros(4)), pair.send(1, np.zeros(0))]
        for done in messages:
            with pytest.raises(GroupError, match="gave up on rank 1: retries exceeded"):
                done.result(PATIENCE_S)
    with pytest.raises(GroupError, match="gave up"):
        pair.receive(None, np.zeros(4)).result(PATIENCE_S)


def test_a_receive_that_nobody_answers_ends_with_the_group() -> None:
    channel = Waiting(MemoryNetwork(2, 1), 0)
    pair = Group(channel, channel.turn, 0, 2, 64)
    pair.connect(Store())
    waiting = pair.receive(None, np.zeros(4))
    pair.close()
    with pytest.raises(GroupError, match="the group was closed"):
        waiting.result(PATIENCE_S)


@pytest.mark.parametrize("peer", [0, 2, -1])
def test_a_message_goes_to_another_rank_of_the_group(peer: int) -> None:
    with group(2) as pair:
        for begin in (pair.send, pair.receive):
            with pytest.raises(ValueError, match=f"rank 0 of 2 has no peer {peer}"):
                begin(peer, np.zeros(4))
