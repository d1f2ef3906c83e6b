"""Every schedule of a collective, executed on sets: each set names the ranks whose data is in a sum."""

from __future__ import annotations

from collections import deque

import pytest

from mrclab.hosts.workloads.schedules import SCHEDULES, Schedule, schedule_of

Buffers = list[list[frozenset[int]]]
EVERY = [
    (kind, name, n, local)
    for kind, names in SCHEDULES.items()
    for name in names
    for n in range(2, 10)
    for local in (1, 2, 4)
]


def execute(schedules: list[Schedule], buffers: Buffers, sources: Buffers | None = None) -> Buffers:
    """Execute all ranks' rounds. Send the data of ``sources``, or of ``buffers`` if ``sources`` is None.

    A buffer has a set in place of each number. The set lists the terms of a sum.
    """
    n = len(schedules)
    flying: dict[tuple[int, int, int], list[frozenset[int]]] = {}
    rounds = [deque(s.rounds) for s in schedules]
    posted = [False] * n
    while any(rounds):
        moved = False
        for rank in range(n):
            if not rounds[rank]:
                continue
            now = rounds[rank][0]
            if not posted[rank]:
                for move in now.sends:
                    key = (rank, move.peer, move.step)
                    assert key not in flying, "two messages of a pair with the same step"
                    flying[key] = (sources or buffers)[rank][move.first : move.last]
                posted[rank], moved = True, True
            if all((m.peer, rank, m.step) in flying for m in now.receives):
                for move in now.receives:
                    values = flying.pop((move.peer, rank, move.step))
                    assert len(values) == move.last - move.first
                    for part, value in enumerate(values, move.first):
                        before = buffers[rank][part]
                        assert not now.reduce or not before & value, "a contribution is summed twice"
                        buffers[rank][part] = before | value if now.reduce else value
                rounds[rank].popleft()
                posted[rank], moved = False, True
        assert moved, "the ranks wait for one another"
    assert not flying, "messages that nobody receives"
    return buffers


@pytest.mark.parametrize(("kind", "name", "n", "local"), EVERY)
def test_every_rank_ends_with_the_right_parts(kind: str, name: str, n: int, local: int) -> None:
    schedules = [schedule_of(kind, name, rank, n, local) for rank in range(n)]
    parts = schedules[0].parts
    assert all(s.parts == parts for s in schedules)
    every = frozenset(range(n))
    own: Buffers = [[frozenset({rank})] * parts for rank in range(n)]
    if kind == "all-to-all":
        marks: Buffers = [[frozenset({rank * n + part}) for part in range(n)] for rank in range(n)]
        got = execute(schedules, [list(row) for row in marks], marks)
        assert all(got[r][p] == {p * n + r} for r in range(n) for p in range(n) if p != r)
        return
    if kind in ("all-gather", "gather"):
        own = [[frozenset({rank}) if part == rank else frozenset() for part in range(n)] for rank in range(n)]
    found = execute(schedules, own)
    for rank, row in enumerate(found):
        if kind == "all-reduce":
            assert row == [every] * parts
        elif kind == "reduce-scatter":
            assert row[rank] == every
        elif kind == "all-gather" or (kind == "gather" and rank == 0):
            assert row == [frozenset({part}) for part in range(n)]
        elif kind == "broadcast":
            assert row == [frozenset({0})] * parts
        elif kind == "scatter":
            assert row[rank] == {0}
        elif kind == "reduce" and rank == 0:
            assert row == [every]


@pytest.mark.parametrize("name", ["ring", "halving-doubling"])
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_an_all_reduce_sends_no_more_than_it_must(name: str, n: int) -> None:
    schedule = schedule_of("all-reduce", name, 0, n)
    sent = sum(move.last - move.first for one in schedule.rounds for move in one.sends)
    assert sent / schedule.parts == 2 * (n - 1) / n


def test_a_hierarchical_all_reduce_crosses_the_network_with_one_share_of_the_host() -> None:
    schedule = schedule_of("all-reduce", "hierarchical", 5, 16, 4)
    out = [m for r in schedule.rounds for m in r.sends if m.peer // 4 != 1]
    assert sum(m.last - m.first for m in out) / schedule.parts == 2 * 3 / 4 / 4


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(KeyError):
        schedule_of("all-reduce", "butterfly", 0, 4)
