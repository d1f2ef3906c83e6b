"""Two NICs in a small model: no order of events breaks a property, for any reading of the specification."""

import pytest

from mrclab.hosts.mrc import SpecReading
from mrclab.hosts.mrc.config import NsccConfig
from tests.support.small_model import World, explore

UEC = NsccConfig(rcvd_bytes_clock=True, nack_rtt=True, delay_weight=0.0, fast_ends_by_marks=False)
READINGS = {
    "as read": {},
    "SKIP by timer": {"reading": SpecReading(skip_ns=5_000)},
    "SKIP with a cap": {"skip_cap": 0.5},
    "marked probe: GOOD at once": {"reading": SpecReading(skip_after_marked_probe=False)},
    "out of window: silence": {"reading": SpecReading(oor_nack=False)},
    "retransmission's timer at base": {"reading": SpecReading(retransmission_timer_at_base=True)},
    "service time": {"reading": SpecReading(service_time=True)},
    "completion by SACK": {"transport_ack": False},
    "answers by the reverse set": {"reverse_evs": "set"},
    "one EV is kept": {"ev_min_active": 1},
    "NSCC": {"congestion": "nscc", "timestamps": True},
    "NSCC as UEC has it": {"congestion": "nscc", "timestamps": True, "nscc": UEC},
}
"""Options that change the behaviour of the cores, by name."""


@pytest.mark.parametrize("name", READINGS)
def test_no_short_schedule_breaks_a_property(name):
    found = explore(READINGS[name], 2)
    assert found.failures == []
    assert found.states > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", READINGS)
def test_no_schedule_breaks_a_property(name):
    found = explore(READINGS[name], 5)
    print(f"{name}: {found.schedules} schedules, {found.states} states")
    assert found.failures == []


def test_a_state_is_known_by_all_that_it_holds():
    one, same, other = World({}), World({}), World({})
    assert one.digest() == same.digest()
    other.take(("lose", 0))
    assert one.digest() != other.digest()
    one.take(("arrive", 0))
    same.take(("arrive", 0))
    assert one.digest() == same.digest()


def test_the_model_notices_what_is_broken():
    world = World({})
    assert world.finish() is None
    world.memory[0][3] ^= 1
    assert world.broken() == "bytes are missing or wrong"
    silent = World({"exponential_retries": 0, "linear_retries": 0})
    silent.ends[1].destroy_qp(silent.pairs[1][1])
    assert silent.finish() == "a queue pair failed"
    half = World({})
    half.events[0].clear()
    assert "not done" in (half.broken() or "")
