"""Messages between ranks, over channels that deliver in any order."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import pytest

from mrclab.hosts.collectives import point_to_point
from mrclab.hosts.collectives.communicator import Communicator, PutError
from mrclab.hosts.collectives.point_to_point import PIECE_BYTES, SLOTS, PointToPoint
from tests.support.memory_network import MemoryNetwork


class Ranks:
    """All ranks of a group, in one process."""

    def __init__(self, size: int, seed: int) -> None:
        self.network = MemoryNetwork(size, seed)
        self.messages = []
        for rank, channel in enumerate(self.network.channels):
            comm = Communicator(channel, rank, size)
            for _ in range(3):  # the regions that the collectives register
                comm.expose(8)
            self.messages.append(PointToPoint(comm))

    def send(self, src: int, dst: int, data: bytes, tag: int = 0) -> Future[None]:
        done: Future[None] = Future()
        self.messages[src].send(dst, tag, memoryview(bytearray(data)), done)
        return done

    def receive(self, dst: int, src: int | None, size: int, tag: int = 0) -> tuple[Future[int], bytearray]:
        done: Future[int] = Future()
        place = bytearray(size)
        self.messages[dst].receive(src, tag, memoryview(place), done)
        return done, place

    def move(self, most: int = 1_000_000) -> None:
        """Deliver puts until no put is left. Fail after ``most`` puts."""
        for _ in range(most):
            if not self.network.move():
                return
            for messages, channel in zip(self.messages, self.network.channels, strict=True):
                for event in channel.events():
                    assert messages.take(event)
        raise AssertionError("puts without end")


def _data(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("early", [True, False])
def test_messages_of_all_sizes_arrive_in_order(seed: int, early: bool) -> None:
    """The program may receive before or after the messages come, and both ranks may send."""
    sizes = [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 0, 3 * SLOTS * PIECE_BYTES, 8]
    sent = [_data(size, seed + at) for at, size in enumerate(sizes)]
    ranks = Ranks(2, seed)
    wanted = [ranks.receive(0, 1, size) for size in sizes] if early else []
    others = [ranks.receive(1, 0, size) for size in sizes] if early else []
    sends = [ranks.send(1, 0, data) for data in sent] + [ranks.send(0, 1, data[::-1]) for data in sent]
    ranks.move()
    wanted = wanted or [ranks.receive(0, 1, size) for size in sizes]
    others = others or [ranks.receive(1, 0, size) for size in sizes]
    ranks.move()
    assert all(done.result(0) is None for done in sends)
    assert [(done.result(0), bytes(place)) for done, place in wanted] == [(1, data) for data in sent]
    assert [(done.result(0), bytes(place)) for done, place in others] == [(0, data[::-1]) for data in sent]


def test_a_message_that_nobody_waits_for_holds_up_no_other() -> None:
    ranks = Ranks(3, 1)
    first, second = _data(5 * SLOTS * PIECE_BYTES, 1), _data(100, 2)
    for peer in (1, 2):
        ranks.send(peer, 0, first, tag=7)
        ranks.send(peer, 0, second, tag=8)
    ranks.move()
    for tag, data in ((8, second), (7, first)):
        for peer in (2, 1):
            done, place = ranks.receive(0, peer, len(data), tag)
            ranks.move()
            assert (done.result(0), bytes(place)) == (peer, data)


def test_any_rank_s_message_says_whose_it_is() -> None:
    ranks = Ranks(3, 5)
    waiting = [ranks.receive(0, None, 4) for _ in range(2)]
    for peer in (1, 2):
        ranks.send(peer, 0, bytes([peer] * 4))
    ranks.move()
    found = sorted((done.result(0), bytes(place)) for done, place in waiting)
    assert found == [(1, bytes([1] * 4)), (2, bytes([2] * 4))]


def test_a_receive_that_comes_in_the_middle_takes_the_rest_as_well() -> None:
    data = _data(4 * SLOTS * PIECE_BYTES, 3)
    ranks = Ranks(2, 3)
    ranks.send(1, 0, data)
    with pytest.raises(AssertionError, match="without end"):
        ranks.move(50)
    done, place = ranks.receive(0, 1, len(data))
    assert not done.done()
    ranks.move()
    assert (done.result(0), bytes(place)) == (1, data)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("early", [True, False])
def test_a_message_of_another_length_fails_its_receive_and_no_other(size: int, early: bool) -> None:
    ranks = Ranks(2, 1)
    waiting = [ranks.receive(0, 1, size)] if early else []
    ranks.send(1, 0, b"four")
    ranks.send(1, 0, b"next")
    ranks.move()
    ((done, _),) = waiting or [ranks.receive(0, 1, size)]
    with pytest.raises(ValueError, match=f"rank 1 sent 4 bytes with tag 0, not {size}"):
        done.result(0)
    after, place = ranks.receive(0, 1, 4)
    assert (after.result(0), bytes(place)) == (1, b"next")


def test_a_peer_is_ahead_by_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_to_point, "AHEAD_BYTES", 4 * PIECE_BYTES)
    data = _data(3 * PIECE_BYTES, 4)
    ranks = Ranks(2, 4)
    sends = [ranks.send(1, 0, data) for _ in range(20)]
    ranks.move()
    assert 0 < sum(done.done() for done in sends) <= SLOTS
    for _ in sends:
        done, place = ranks.receive(0, 1, len(data))
        ranks.move()
        assert (done.result(0), bytes(place)) == (1, data)
    assert all(done.result(0) is None for done in sends)


def test_a_dead_peer_ends_all() -> None:
    ranks = Ranks(3, 1)
    done, _ = ranks.receive(0, 1, 4)
    ranks.network.dead.add(2)
    sending = [ranks.send(0, 2, _data(3 * SLOTS * PIECE_BYTES, 1)), ranks.send(0, 2, b"more")]
    with pytest.raises(PutError, match="rank 0 gave up on rank 2: peer is dead"):
        ranks.move()
    problem = RuntimeError("over")
    ranks.messages[0].fail(problem)
    futures: list[Future[Any]] = [done, *sending]
    assert [future.exception(0) for future in futures] == [problem] * 3
