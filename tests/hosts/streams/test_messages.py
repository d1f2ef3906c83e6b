import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.streams.messages import OVERHEAD_BYTES, MessageFactory
from mrclab.hosts.streams.stream import StreamPlan


def filled(factory: MessageFactory, number: int) -> bytearray:
    buffer = bytearray(factory.length_bytes)
    factory.fill(number, memoryview(buffer))
    return buffer


@pytest.mark.slow
@given(st.integers(0, 1 << 40), st.integers(OVERHEAD_BYTES + 1, 5000))
def test_a_message_proves_itself(number: int, length: int) -> None:
    factory = MessageFactory(length, seed=1)
    assert factory.problem(number, memoryview(filled(factory, number))) is None


@pytest.mark.slow
@given(st.integers(0, 4095), st.integers(1, 255))
def test_any_changed_byte_is_noticed(place: int, change: int) -> None:
    factory = MessageFactory(4096, seed=1)
    message = filled(factory, 7)
    message[place] ^= change
    said = str(factory.problem(7, memoryview(message)))
    assert said.startswith(
        "message 7: holds number " if place < 8 else f"message 7: byte {place} of 4096 is not"
    )


def test_a_message_in_the_wrong_place_is_noticed() -> None:
    factory = MessageFactory(4096, seed=1)
    assert factory.problem(8, memoryview(filled(factory, 7))) == "message 8: holds number 7"


def test_another_seed_is_noticed() -> None:
    message = filled(MessageFactory(4096, seed=1), 7)
    assert "byte 8 of 4096 is not" in str(MessageFactory(4096, seed=2).problem(7, memoryview(message)))


def test_messages_longer_than_the_pool() -> None:
    factory = MessageFactory(3 << 20, seed=1)
    assert factory.problem(5, memoryview(filled(factory, 5))) is None


def test_a_length_without_body_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 8 bytes"):
        MessageFactory(8, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 1, OVERHEAD_BYTES, OVERHEAD_BYTES + 1, 4000])
def test_one_factory_makes_messages_of_all_lengths(length: int) -> None:
    factory = MessageFactory(4000, seed=3)
    message = memoryview(bytearray(length))
    factory.fill(9, message)
    assert factory.problem(9, message) is None
    for n in range(length):
        message[n] ^= 1
        assert factory.problem(9, message) is not None
        message[n] ^= 1


def test_a_mixed_plan_draws_all_lengths_and_ends_no_row_without_an_immediate() -> None:
    plan = StreamPlan(20_000, 10**8, seed=5, mixed=True)
    lengths = [plan.length_of(n) for n in range(4000)]
    assert min(lengths) == 0
    assert 19_900 < max(lengths) <= 20_000
    assert 1000 < sum(length < 1000 for length in lengths) < 3000
    immediate = [plan.has_immediate(n) for n in range(4000)]
    assert all(immediate[1::2])
    assert 200 < sum(immediate[::2]) < 1000
    assert lengths == [StreamPlan(20_000, 1, seed=5, mixed=True).length_of(n) for n in range(4000)]
    assert lengths != [StreamPlan(20_000, 1, seed=6, mixed=True).length_of(n) for n in range(4000)]
