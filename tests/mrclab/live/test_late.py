"""Packets that are sent again without a fault are counted separately from packets lost to a fault."""

from mrclab.live.health import GRACE_NS, LatePackets

S = 1_000_000_000


def test_what_is_sent_again_before_the_first_reading_counts_as_well() -> None:
    late = LatePackets()
    assert late.take("rocev2", 98, S, broken=False) == 98
    assert late.take("rocev2", 100, 2 * S, broken=False) == 100


def test_what_a_fault_may_explain_does_not_count() -> None:
    late = LatePackets()
    late.take("rocev2", 5, S, broken=False)
    assert late.take("rocev2", 900, 2 * S, broken=True) == 5
    assert late.take("rocev2", 950, 3 * S, broken=False) == 5  # the repair was only a moment ago
    assert late.take("rocev2", 957, 2 * S + GRACE_NS + 1, broken=False) == 12


def test_counters_of_a_new_connection_begin_at_zero() -> None:
    late = LatePackets()
    late.take("rocev2", 50, S, broken=False)
    late.connect("rocev2")
    assert late.take("rocev2", 3, 2 * S, broken=False) == 53
    assert late.total("rocev2") == 53
    late.begin()
    assert late.take("rocev2", 4, 3 * S, broken=False) == 4
    assert late.total("rocev2") == 4


def test_no_more_packets_are_late_than_were_sent_again() -> None:
    late = LatePackets()
    late.take("rocev2", 500, S, broken=False)
    late.take("rocev2", 620, 2 * S, broken=True)  # then the connection gives up
    late.connect("rocev2")
    assert late.take("rocev2", 0, 3 * S, broken=False) == 500
    assert late.total("rocev2") == 620
