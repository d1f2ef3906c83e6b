"""Frames leave a long wire after its delay, unchanged and in order."""

import pytest

from mrclab.hosts.nic.ports import DelayLine


def test_what_comes_in_is_through_after_the_delay_and_not_before() -> None:
    line = DelayLine(100)
    assert line.next_ns() is None
    buffer = bytearray(b"one")
    line.put([(0, memoryview(buffer))], 1000)
    buffer[:] = b"xxx"  # the socket reuses its buffer
    line.put([(3, memoryview(b"two"))], 1040)
    assert line.next_ns() == 1100
    assert list(line.arrived(1099)) == []
    assert [(plane, bytes(frame)) for plane, frame in line.arrived(1100)] == [(0, b"one")]
    assert line.next_ns() == 1140
    assert [(plane, bytes(frame)) for plane, frame in line.arrived(2000)] == [(3, b"two")]
    assert line.next_ns() is None


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="a delay must not be negative"):
        DelayLine(-1)
