"""A step of an all-reduce ends when its last rank ends, also if the ranks report in another order."""

from hypothesis import given
from hypothesis import strategies as st

from mrclab.live.sending import Steps

MS = 1_000_000


def test_a_step_lasts_from_the_first_begin_to_the_last_end() -> None:
    steps = Steps(["h0", "h1"])
    steps.add(0, [(0, 1 * MS, 5 * MS, 9 * MS)])
    assert steps.take() == []
    steps.add(1, [(2 * MS, 3 * MS, 8 * MS, 10 * MS), (11 * MS, 12 * MS, 13 * MS, 14 * MS)])
    assert steps.take() == [(1, 10_000, "h1")]
    steps.add(0, [(10 * MS, 12 * MS, 14 * MS, 15 * MS)])
    assert steps.take() == [(2, 5_000, "h0")]
    assert steps.take() == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30))
def test_each_step_is_told_once_and_in_order(reports: list[tuple[int, int]]) -> None:
    steps, made, told = Steps(["a", "b", "c"]), [0, 0, 0], []
    for rank, count in reports:
        rows = [(n * MS, n * MS, n * MS + rank, n * MS + 9) for n in range(made[rank], made[rank] + count)]
        made[rank] += count
        steps.add(rank, rows)
        told += steps.take()
    assert [number for number, _, _ in told] == list(range(1, min(made) + 1))
    assert {host for _, _, host in told} <= {"c"}
