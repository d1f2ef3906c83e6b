"""SKIP with a limit: only a part of a plane's EVs may be in SKIP at the same time."""

import random

import pytest

from mrclab.hosts.mrc import MrcConfig
from mrclab.hosts.mrc.events import RetireReason
from mrclab.hosts.mrc.evs.ev import EvInput
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.rdma.events import EvState
from tests.support.mrc_sim import remote_paths

S = EvState.SKIP


def make(planes, paths, **options):
    """Return an EV set, and the list to which the set appends its events."""
    events = []
    remote, config = remote_paths(0, 1, planes, paths), MrcConfig(**options)
    return EvSet(7, remote, config, random.Random(1), events.append), events


@pytest.mark.parametrize(
    ("cap", "paths", "most"), [(1.0, 4, 4), (0.25, 16, 4), (0.25, 7, 1), (0.25, 2, 0), (0.0, 8, 0)]
)
def test_a_cap_bounds_how_many_evs_of_a_plane_skip_at_once(cap, paths, most):
    evs, events = make(planes=2, paths=paths, skip_cap=cap)
    first = evs.planes[0]
    for number, ev in enumerate(list(first.active)):
        evs.on_acked(ev)
        evs.on_congestion(0, ev, EvInput.TRIMMED if number % 2 else EvInput.ECN)
    skipped = [ev for ev in first.active if ev.state is S]
    assert len(skipped) == len(events) == most
    assert all(ev.ecn_marked + ev.trimmed == 1 for ev in first.active), "they are counted all the same"
    evs.on_lost(0, first.active[0], 1, RetireReason.LOSS)
    assert len(evs.bad) == 1, "a loss has no cap"


def test_an_ev_that_has_sat_out_makes_room_under_the_cap():
    evs, _ = make(planes=1, paths=8, skip_cap=0.125)
    one, other = evs.planes[0].active[:2]
    evs.on_congestion(0, one, EvInput.TRIMMED)
    evs.on_congestion(0, other, EvInput.TRIMMED)
    assert (one.state, other.state) == (S, EvState.UNKNOWN)
    while one.state is S:
        evs.pick()
    evs.on_congestion(0, other, EvInput.TRIMMED)
    assert other.state is S
