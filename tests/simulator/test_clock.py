"""The clock of the simulator: the order of events at equal times, near and far events, and stopping."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.simulator.clock import NEVER_PS, Clock


def test_events_of_a_moment_happen_in_the_order_of_scheduling() -> None:
    clock, seen = Clock(), list[int]()
    for number in range(100):
        clock.call_at(5_000, lambda number=number: seen.append(number))
    clock.run(10_000)
    assert seen == list(range(100))
    assert clock.now_ps == 10_000


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1 << 32), width=st.sampled_from([1, 7, 1024, 1 << 20]))
def test_the_order_does_not_depend_on_the_width_of_a_slot(seed: int, width: int) -> None:
    """The clock is compared with a sorted list of (time, order). Events schedule more events."""

    def run(clock: Clock) -> list[tuple[int, int]]:
        rng, seen, count = random.Random(seed), list[tuple[int, int]](), 0

        def schedule(delay: int) -> None:
            nonlocal count
            count += 1
            number = count
            clock.call_at(clock.now_ps + delay, lambda: happen(number))

        def happen(number: int) -> None:
            seen.append((clock.now_ps, number))
            if count < 300:
                for _ in range(rng.randrange(3)):
                    schedule(rng.choice([0, 0, 1, 3, 1000, 50_000, 10**7, 10**10]))

        for _ in range(20):
            schedule(rng.randrange(10**6))
        for until in (10, 10**6, 10**6, 10**8, 10**13):
            clock.run(until)
            assert clock.now_ps == until
        return seen

    found = run(Clock(width))
    assert found == sorted(found)
    assert found == run(Clock())


def test_stop_returns_after_the_present_event() -> None:
    clock, seen = Clock(), list[int]()
    clock.call_at(10, clock.stop)
    clock.call_at(10, lambda: seen.append(clock.now_ps))
    clock.run(100)
    assert (clock.now_ps, seen) == (10, [])
    clock.run(100)
    assert (clock.now_ps, seen) == (100, [10])


def test_the_past_is_refused() -> None:
    clock = Clock()
    clock.call_at(100, lambda: None)
    clock.run(1000)
    with pytest.raises(ValueError, match="which is over"):
        clock.call_at(999, lambda: None)


def test_times_beyond_all_are_never() -> None:
    clock = Clock()
    seen: list[int] = []
    clock.call_at(10**30, lambda: seen.append(clock.now_ps))
    clock.call_at(100, lambda: seen.append(clock.now_ps))
    clock.run(NEVER_PS - 1)
    assert seen == [100]
    clock.run(10**30)
    assert clock.now_ps == NEVER_PS
