"""Numbers of queue pairs use the whole range, are never equal, and cannot be guessed from one another."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint as MrcEndpoint
from mrclab.hosts.rdma.endpoint import FIRST_QPN, LAST_QPN
from mrclab.hosts.roce import Endpoint as RoceEndpoint
from mrclab.hosts.roce import RoceConfig
from tests.support.mrc_sim import port_addresses


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20)
def test_numbers_are_drawn_from_the_whole_range(seed: int) -> None:
    """Consecutive numbers, or numbers from a small range, could be guessed."""
    end = MrcEndpoint(port_addresses(0, 1), rng=random.Random(seed))
    numbers = [end.create_qp() for _ in range(64)]
    assert len(set(numbers)) == 64
    assert all(FIRST_QPN <= number <= LAST_QPN for number in numbers)
    assert max(numbers) - min(numbers) > 1 << 20


@given(seed=st.integers(0, 2**32))
@settings(max_examples=20)
def test_the_queue_pairs_of_a_connection_follow_one_another_and_never_meet_others(seed: int) -> None:
    end = RoceEndpoint(port_addresses(0, 1), RoceConfig(qps=8), random.Random(seed))
    firsts = [end.create_qp() for _ in range(16)]
    assert len({first + i for first in firsts for i in range(8)}) == 128


def test_a_number_in_use_is_not_drawn_again() -> None:
    class Taken:
        """A set that contains all numbers except the last eight."""

        def __contains__(self, number: object) -> bool:
            return not isinstance(number, int) or number <= LAST_QPN - 8

    class Draws(random.Random):
        """A generator that draws the middle of the range twice, then its end."""

        drawn = 0

        def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
            self.drawn += 1
            assert stop is not None
            return (start + stop) // 2 if self.drawn < 3 else stop - 1

    end = MrcEndpoint(port_addresses(0, 1), rng=random.Random(1))
    end.rng = Draws()
    assert end.draw_qpn(Taken(), 4) == LAST_QPN - 3
