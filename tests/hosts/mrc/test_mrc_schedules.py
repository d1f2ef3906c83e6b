"""Random traffic under random faults. Afterwards every byte must be in its place, written once.

MRC_SCHEDULES=10000 makes a long run of each kind. A failing schedule is printed in its smallest form. To run
it alone, paste it into `test_a_schedule_of_everything`.
"""

import os
from collections import Counter

import pytest
from hypothesis import given, settings

from tests.support.fault_schedules import (
    ACTIONS,
    DEPLOYED_SCHEDULES,
    SCHEDULES,
    Action,
    Burst,
    Schedule,
    run,
)

COUNT = int(os.environ.get("MRC_SCHEDULES", "60"))


@pytest.mark.slow
@pytest.mark.timeout(300 + COUNT // 5)
@settings(max_examples=COUNT, deadline=None, print_blob=True)
@given(schedule=SCHEDULES)
def test_everything_arrives_once_and_in_order(schedule: Schedule) -> None:
    run(schedule)


@pytest.mark.slow
@pytest.mark.timeout(300 + COUNT // 5)
@settings(max_examples=COUNT, deadline=None, print_blob=True)
@given(schedule=DEPLOYED_SCHEDULES)
def test_mrc_as_deployed_places_every_byte_once(schedule: Schedule) -> None:
    """The endpoints use NSCC, 128 EVs, 32 backups, timestamps, transport ACKs, and extra EVs for answers."""
    run(schedule)


EVERYTHING = Schedule(
    seed=5,
    connections=3,
    wrap=True,
    bursts=tuple(
        Burst(at_ns, connection, source, ((70_001, True), (0, True), (4097, False), (70_001, False)) * 4)
        for at_ns in (0, 5_000_000)
        for connection in range(3)
        for source in (0, 1)
    ),
    actions=tuple(
        Action(kind, 200_000 * n, 5_000_000, end=n % 2, plane=n % 3, path=n % 5, amount=100_000)
        for n, kind in enumerate(ACTIONS)
    ),
    network={
        "loss": 0.05, "duplicate": 0.05, "corrupt": 0.05, "ce": 0.05, "trim": 0.05, "trim_last_hop": 0.05,
        "control_loss": 0.05, "jitter_ns": 60_000, "port_rate_bps": 200_000_000,
    },
    config={"mpr": 128, "dynamic_mpr": True, "transport_ack": True, "timestamps": True, "max_wimm": 4},
)  # fmt: skip


def test_a_schedule_of_everything() -> None:
    """In this schedule every possible event and action happens at least once."""
    sim = run(EVERYTHING)
    seen = Counter(type(event).__name__ for events in sim.events for event in events)
    for kind in (
        "EvRetired", "EvRestored", "EvSkipped", "PacketLost", "Retransmitted", "PlaneDown", "PlaneUp",
        "ProbeSent", "ProbeAnswered", "EvProbed", "SendCompleted", "ReceiveCompleted",
    ):  # fmt: skip
        assert seen[kind], kind
    for end in sim.ends:
        assert end.drops.bad_icrc
        counters = [end.qp_counters(qpn) for qpn in end.qps]
        assert sum(c.duplicates for c in counters)
        assert sum(c.trims_received for c in counters)
        assert sum(c.nacks_sent for c in counters)
        assert sum(c.ce_received for c in counters)


@pytest.mark.slow
def test_a_schedule_replays_from_its_seed() -> None:
    first, second = run(EVERYTHING), run(EVERYTHING)
    assert first.events == second.events
    assert first.frames == second.frames
