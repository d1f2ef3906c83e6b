"""Ranks of a user's program sum arrays over a running fabric. Each rank is a thread with a host's NIC."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mrclab.hosts.collectives.collective_operations import ring_sum
from mrclab.hosts.collectives.group import Group
from tests.support.command import Up

pytestmark = [pytest.mark.root, pytest.mark.slow]

HOSTS = ("h0", "h1", "h2", "h3")
PATIENCE_S = 120


class SharedStore:
    """The store by which the ranks of one process find each other."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, PATIENCE_S), f"nobody set {key}"
            return self._values[key].encode()


def on_all(tiny: Up, work: Callable[[Group], None]) -> None:
    """Run a function as each rank of a group, all at the same time."""
    store = SharedStore()

    def one(rank: int) -> None:
        host = HOSTS[rank]
        where = tiny.host_namespace(host)
        with Group.open(tiny.fabric, where, host, rank, len(HOSTS), store, capacity_bytes=1 << 16) as group:
            work(group)

    with ThreadPoolExecutor(len(HOSTS)) as pool:
        for done in [pool.submit(one, rank) for rank in range(len(HOSTS))]:
            done.result(PATIENCE_S)


def test_sums_have_the_bits_of_the_ring(tiny: Up) -> None:
    """The sum of an array longer than a group's memory equals `ring_sum`, also next to another sum."""
    parts = [np.random.default_rng(rank).normal(size=50_001).astype(np.float32) for rank in range(len(HOSTS))]
    counts = np.arange(5, dtype=np.int64)
    wanted = np.concatenate(
        [ring_sum([p[at : at + (1 << 14)] for p in parts]) for at in range(0, 50_001, 1 << 14)]
    )

    def work(group: Group) -> None:
        mine, numbers = parts[group.rank].copy(), counts * group.rank
        sums = [group.all_reduce(mine), group.all_reduce(numbers)]
        for done in sums:
            done.result(PATIENCE_S)
        assert mine.tobytes() == wanted.tobytes()
        assert numbers.tolist() == (counts * 6).tolist()

    on_all(tiny, work)


def test_a_link_that_dies_between_two_sums_changes_no_bit(tiny: Up) -> None:
    parts = [np.full(30_000, rank + 0.1, np.float32) for rank in range(len(HOSTS))]
    wanted = ring_sum([part[: 1 << 14] for part in parts])[0]
    barrier = threading.Barrier(len(HOSTS))

    def work(group: Group) -> None:
        for round_ in range(4):
            if barrier.wait(PATIENCE_S) == 0:
                if round_ == 1:
                    tiny.mrclab.ok("fault", "blackhole", "p0-t0-0:p0-t1-1")
                elif round_ == 3:
                    tiny.mrclab.ok("restore", "--all")
            mine = parts[group.rank].copy()
            group.all_reduce(mine).result(PATIENCE_S)
            assert (mine == wanted).all()

    on_all(tiny, work)


def test_each_rank_sends_to_each_while_sums_go_on(tiny: Up) -> None:
    ranks = range(len(HOSTS))

    def work(group: Group) -> None:
        total = np.full(100_000, group.rank, np.float32)
        summed = group.all_reduce(total)
        others = [rank for rank in ranks if rank != group.rank]
        places = {peer: np.zeros(40_000, np.int64) for peer in others}
        waiting = {peer: group.receive(peer, place, tag=3) for peer, place in places.items()}
        sends = [group.send(peer, np.arange(40_000) * group.rank + peer, tag=3) for peer in others]
        for peer, done in waiting.items():
            assert done.result(PATIENCE_S) == peer
            assert (places[peer] == np.arange(40_000) * peer + group.rank).all()
        for done_send in sends:
            done_send.result(PATIENCE_S)
        summed.result(PATIENCE_S)
        assert (total == sum(ranks)).all()

    on_all(tiny, work)
