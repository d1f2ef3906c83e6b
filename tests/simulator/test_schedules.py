"""Random writes under random faults of a simulated fabric, with NSCC, backups and up to 128 EVs.

After each run every byte must be in its place, written once. MRC_SCHEDULES=10000 makes a long run, and
MRC_SCHEDULES_SEED=7 draws other schedules. A failing schedule is printed in its smallest form. To run it
alone, paste it into `test_a_schedule_with_every_fault`.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, seed, settings

from mrclab.hosts.rdma.events import PacketLost
from tests.support.fabric_schedules import KINDS, SCHEDULES, Burst, Fault, Schedule, run

COUNT = int(os.environ.get("MRC_SCHEDULES", "40"))


@pytest.mark.slow
@pytest.mark.timeout(300 + COUNT)
@seed(int(os.environ.get("MRC_SCHEDULES_SEED", "0")))
@settings(
    max_examples=COUNT,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(schedule=SCHEDULES)
def test_everything_arrives_once_and_in_order(schedule: Schedule) -> None:
    run(schedule)


def test_a_schedule_with_every_fault() -> None:
    """Each kind of fault happens once, one after another, during writes in both directions."""
    writes = ((70_001, True), (0, True), (4097, False), (200_000, False))
    world = run(
        Schedule(
            seed=5,
            shape=1,
            bursts=tuple(Burst(at, src, 1, writes) for at in (0, 60_000, 300_000) for src in (0, 2)),
            faults=tuple(
                Fault(kind, 30_000 * n, 150_000, where=3 * n, amount=0.1) for n, kind in enumerate(KINDS)
            ),
            options={"max_active_evs": 16, "spare_evs_per_plane": 2},
        )
    )
    assert any(isinstance(e, PacketLost) for seen in world.seen.values() for e in seen.events)
