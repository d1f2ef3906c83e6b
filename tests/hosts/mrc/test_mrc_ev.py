"""The EV state machine, transition by transition, and the guarantees of the rotation."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc.config import MrcConfig, SpecReading
from mrclab.hosts.mrc.events import EvReplaced, EvRestored, EvRetired, EvSkipped, RetireReason
from mrclab.hosts.mrc.evs.ev import TRANSITIONS, EvInput
from mrclab.hosts.mrc.evs.ev_diagram import diagram, renew
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.rdma.events import EvState
from mrclab.hosts.rdma.paths import RemotePaths
from tests.support.mrc_sim import ev_value, remote_paths
from tests.support.paths import ROOT

U, G, S, B, D = EvState.UNKNOWN, EvState.GOOD, EvState.SKIP, EvState.ASSUMED_BAD, EvState.DENIED

# Rows are events, columns the states UNKNOWN GOOD SKIP ASSUMED_BAD DENIED.
TABLE = {
    EvInput.ACKED: (G, G, S, B, D),
    EvInput.ECN: (S, S, S, B, D),
    EvInput.TRIMMED: (S, S, S, B, D),
    EvInput.TRIMMED_LASTHOP: (U, G, S, B, D),
    EvInput.TURN_SKIPPED: (U, G, G, B, D),
    EvInput.LOST: (B, B, B, B, D),
    EvInput.ALWAYS_SKIP: (B, B, B, B, D),
    EvInput.PROBES_PASSED: (G, G, S, G, D),
    EvInput.PROBES_PASSED_MARKED: (S, S, S, S, D),
    EvInput.DENY: (D, D, D, D, D),
    EvInput.ALLOW: (U, G, S, B, U),
}


@pytest.mark.parametrize("event", list(EvInput))
def test_every_transition(event):
    assert tuple(TRANSITIONS[state, event] for state in (U, G, S, B, D)) == TABLE[event]


def make(planes=4, paths=8, seed=1, **options):
    events = []
    config = MrcConfig(**options)
    return EvSet(7, remote_paths(0, 1, planes, paths), config, random.Random(seed), events.append), events


def active(evs):
    return {plane.port: len(plane.active) for plane in evs.planes}


def test_shares_are_equal_over_planes_and_over_evs():
    evs, _ = make()
    picked = [evs.pick() for _ in range(4 * 8 * 50)]
    assert set(Counter(ev.port for ev in picked).values()) == {8 * 50}
    assert set(Counter(ev.value for ev in picked).values()) == {50}


def test_planes_take_turns():
    evs, _ = make()
    for _ in range(40):
        assert {evs.pick().port for _ in range(4)} == {0, 1, 2, 3}


def test_order_is_shuffled_anew():
    evs, _ = make(planes=1, paths=16)
    rounds = {tuple(evs.pick().value for _ in range(16)) for _ in range(6)}
    assert len(rounds) == 6


def test_same_seed_same_order():
    one, two = make(seed=9)[0], make(seed=9)[0]
    assert [one.pick().value for _ in range(200)] == [two.pick().value for _ in range(200)]


def test_more_paths_than_evs_takes_a_random_subset_of_equal_size_per_plane():
    evs, _ = make(planes=4, paths=100, max_active_evs=30, spare_evs_per_plane=3)
    assert sorted(active(evs).values()) == [7, 7, 8, 8]
    assert [len(plane.spares) for plane in evs.planes] == [3, 3, 3, 3]
    other, _ = make(planes=4, paths=100, max_active_evs=30, spare_evs_per_plane=3, seed=2)
    for mine, theirs in zip(evs.planes, other.planes, strict=True):
        chosen, elsewhere = ({ev.value & 0xFF for ev in plane.evs} for plane in (mine, theirs))
        assert chosen != elsewhere
        assert max(chosen) > 20, "not the first ones"


def test_skip_sits_out_exactly_one_turn():
    evs, events = make(planes=2, paths=4)
    for _ in range(80):
        evs.on_acked(evs.pick())
    ev = evs.by_value[ev_value(1, 2)]
    evs.on_congestion(5, ev, EvInput.ECN)
    assert ev.state is S
    assert [type(e) for e in events] == [EvSkipped]
    picked = Counter(evs.pick().value for _ in range(8 * 40))
    assert ev.state is G
    assert 38 <= picked[ev.value] <= 40
    assert sum(n for value, n in picked.items() if value >> 16 == 1) == 4 * 40


def test_all_skipped_still_sends():
    evs, _ = make(planes=2, paths=2)
    for ev in evs.by_value.values():
        evs.on_congestion(0, ev, EvInput.TRIMMED)
    assert evs.pick() is not None


def test_loss_retires_and_a_spare_of_the_same_plane_takes_over():
    evs, events = make(max_active_evs=16, spare_evs_per_plane=4)
    ev = evs.planes[2].active[0]
    evs.on_lost(77, ev, 123, RetireReason.LOSS)
    assert ev.state is B
    retired, replaced = events
    assert retired == EvRetired(77, 7, ev.value, 2, RetireReason.LOSS, 123)
    assert isinstance(replaced, EvReplaced)
    assert replaced.new_ev >> 16 == 2
    assert active(evs) == {0: 4, 1: 4, 2: 4, 3: 4}
    assert ev.value not in {evs.pick().value for _ in range(200)}


def test_without_spares_other_planes_lay_some_aside():
    evs, events = make()
    for ev in list(evs.planes[1].active[:3]):
        evs.on_lost(0, ev, 1, RetireReason.LOSS)
    assert active(evs) == {0: 6, 1: 5, 2: 6, 3: 6}
    assert not [e for e in events if isinstance(e, EvReplaced)]
    # The next loss is in plane 0, which has a backup EV.
    evs.on_lost(0, evs.planes[0].active[0], 1, RetireReason.LOSS)
    assert isinstance(events[-1], EvReplaced)
    assert active(evs) == {0: 6, 1: 5, 2: 6, 3: 6}


def test_a_plane_without_usable_evs_does_not_starve_the_others():
    evs, _ = make(planes=3, paths=4)
    for ev in list(evs.planes[0].evs):
        evs.on_lost(0, ev, 1, RetireReason.LOSS)
    assert active(evs) == {0: 0, 1: 4, 2: 4}
    assert {evs.pick().port for _ in range(30)} == {1, 2}


def test_the_last_ev_of_a_plane_is_replaced_by_none_of_another():
    evs, events = make(planes=2, paths=3)
    first, second, last = list(evs.planes[0].active)
    evs.on_lost(0, first, 1, RetireReason.LOSS)
    evs.on_lost(0, second, 1, RetireReason.LOSS)
    assert active(evs) == {0: 1, 1: 2}
    evs.on_lost(0, last, 1, RetireReason.LOSS)
    assert active(evs) == {0: 0, 1: 3}, "the other plane takes up what it had laid aside"
    assert [type(event) for event in events] == [EvRetired] * 3


def test_probes_restore_after_enough_in_a_row():
    evs, events = make(probe_successes=2, probe_interval_ns=1000)
    ev = evs.planes[0].active[0]
    evs.on_lost(0, ev, 1, RetireReason.LOSS)
    assert evs.next_probe_ns() == 1000
    assert list(evs.due_probes(999, 0)) == []
    assert list(evs.due_probes(1000, 0)) == [ev]
    evs.on_probe_answer(1100, ev, False)
    assert ev.state is B
    assert evs.next_probe_ns() == 2100
    evs.on_probe_answer(2200, ev, False)
    assert ev.state is G
    assert isinstance(events[-1], EvRestored)
    assert active(evs) == {0: 8, 1: 8, 2: 8, 3: 8}


@pytest.mark.parametrize(("option", "state"), [(True, S), (False, G)])
def test_a_marked_probe_may_restore_an_ev_to_skip_or_to_good(option, state):
    evs, _ = make(probe_successes=1, reading=SpecReading(skip_after_marked_probe=option))
    ev = evs.planes[0].active[0]
    evs.on_lost(0, ev, 1, RetireReason.LOSS)
    evs.on_probe_answer(1100, ev, True)
    assert ev.state is state


def test_a_probe_is_given_as_long_as_its_answer_may_take():
    evs, _ = make(probe_interval_ns=1000, probe_interval_max_ns=4000)
    ev = evs.planes[0].active[0]
    evs.on_lost(0, ev, 1, RetireReason.LOSS)
    assert list(evs.due_probes(1000, 90_000)) == [ev]
    ev.probing.unanswered = 1
    assert evs.next_probe_ns() == 91_000
    evs.on_probe_answer(81_000, ev, False)
    assert evs.next_probe_ns() == 82_000


def test_unanswered_probes_back_off_and_break_the_row():
    evs, _ = make(probe_interval_ns=1000, probe_interval_max_ns=4000)
    ev = evs.planes[0].active[0]
    evs.on_lost(0, ev, 1, RetireReason.LOSS)
    times = []
    for probe_id in range(5):
        due = evs.next_probe_ns()
        times.append(due)
        assert list(evs.due_probes(due, 0)) == [ev]
        ev.probing.unanswered = probe_id
    assert times == [1000, 2000, 4000, 8000, 12000]
    # Two answers with a lost probe between them are not two answers in a row.
    for now in (20_000, 40_000, 60_000):
        assert list(evs.due_probes(now, 0)) == [ev]
        ev.probing.unanswered = now
        if now != 40_000:
            evs.on_probe_answer(now + 100, ev, False)
    assert ev.state is B
    assert list(evs.due_probes(80_000, 0)) == [ev]
    evs.on_probe_answer(80_100, ev, False)
    assert ev.state is G


@pytest.mark.parametrize("ev_health", [True, False])
def test_denied_stays_out_until_allowed(ev_health):
    evs, _ = make(ev_health=ev_health)
    ev = evs.planes[3].active[0]
    evs.deny(0, ev)
    assert ev.state is D
    assert ev.value not in {evs.pick().value for _ in range(300)}
    assert evs.next_probe_ns() is None
    evs.allow(1, ev)
    assert ev.state is U
    assert ev.value in {evs.pick().value for _ in range(300)}


def test_avoid_is_honoured_while_there_is_another():
    evs, _ = make(planes=1, paths=2)
    ev = evs.planes[0].active[0]
    assert all(evs.pick(avoid=ev) is not ev for _ in range(50))
    alone, _ = make(planes=1, paths=1)
    only = alone.planes[0].active[0]
    assert alone.pick(avoid=only) is only


def test_only_free_ports_are_used_and_none_means_wait():
    evs, _ = make()
    assert {evs.pick({2}).port for _ in range(100)} == {2}
    assert evs.pick(set()) is None


def test_with_everything_bad_the_longest_recovered_is_taken():
    evs, _ = make(planes=2, paths=2)
    for time, ev in enumerate(sorted(evs.by_value.values(), key=lambda ev: ev.value)):
        evs.on_lost(100 + time, ev, 1, RetireReason.LOSS)
    assert evs.pick().value == ev_value(0, 0)
    assert evs.pick({1}).value == ev_value(1, 0)


def test_all_denied_means_none():
    evs, _ = make(planes=1, paths=2)
    for ev in list(evs.by_value.values()):
        evs.deny(0, ev)
    assert evs.pick() is None


def test_plane_down_takes_its_evs_out_and_up_brings_them_back():
    evs, _ = make()
    evs.set_plane(0, 1, False, remote=False)
    assert {evs.pick().port for _ in range(60)} == {0, 2, 3}
    evs.set_plane(0, 1, False, remote=True)
    evs.set_plane(0, 1, True, remote=False)
    assert {evs.pick().port for _ in range(60)} == {0, 2, 3}
    evs.set_plane(0, 1, True, remote=True)
    assert {evs.pick().port for _ in range(60)} == {0, 1, 2, 3}


def test_reverse_prefers_the_same_path_then_the_same_plane():
    evs, _ = make()
    ev = evs.by_value[ev_value(2, 5)]
    assert evs.reverse(ev.value, 2) is ev
    evs.on_lost(0, ev, 1, RetireReason.LOSS)
    assert {evs.reverse(ev.value, 2).port for _ in range(20)} == {2}
    assert evs.reverse(0xFFFFFFFF, 3).port == 3
    evs.set_plane(0, 3, False, remote=False)
    assert evs.reverse(0xFFFFFFFF, 3).port != 3


def test_answers_leave_a_proven_ev_that_is_retired_or_stale():
    evs, _ = make(reverse_evs="set", reverse_probe_min_ns=1_000_000)
    came, proven, retired = (evs.by_value[ev_value(2, n)] for n in (0, 3, 5))
    evs.prove(1_000_000, proven)
    # An EV counts as fresh for eight times the interval between probes.
    for evs.now_ns, way in ((2_000_000, proven), (9_000_000, proven), (9_000_001, came)):
        assert evs.reverse(came.value, 2) is way
    evs.prove(9_000_000, retired)
    assert evs.reverse(came.value, 2) is retired
    evs.on_lost(9_000_000, retired, 1, RetireReason.LOSS)
    assert evs.reverse(came.value, 2) is came, "ASSUMED_BAD carries no answers"
    evs.prove(9_000_000, proven)
    evs.deny(9_000_000, proven)
    assert evs.reverse(came.value, 2) is came


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["lose", "ecn", "trim", "probe", "deny", "allow", "down", "up", "pick"]),
        st.integers(0, 99),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(0, 3), st.integers(0, 1000))
def test_invariants_hold_through_any_history(operations, spares, seed):
    evs, events = make(planes=3, paths=7, seed=seed, max_active_evs=12, spare_evs_per_plane=spares)
    members = sorted(evs.by_value.values(), key=lambda ev: ev.value)
    for what, which in operations:
        ev = members[which % len(members)]
        before = ev.state
        del events[:]
        if what == "lose":
            evs.on_lost(1, ev, 0, RetireReason.LOSS)
            assert ev.state in (B, D)
        elif what in ("ecn", "trim"):
            evs.on_congestion(1, ev, EvInput.ECN if what == "ecn" else EvInput.TRIMMED)
            assert ev.state is not B or before is B
        elif what == "probe":
            for _ in range(2):
                evs.on_probe_answer(1, ev, False)
            assert ev.state is not B
        elif what == "deny":
            evs.deny(1, ev)
        elif what == "allow":
            evs.allow(1, ev)
        elif what in ("down", "up"):
            evs.set_plane(1, which % 3, what == "up", remote=bool(which & 4))
        else:
            evs.pick()
        for event in events:
            if isinstance(event, EvReplaced):
                assert event.ev >> 16 == event.new_ev >> 16
        serving = [plane for plane in evs.planes if plane.up and plane.usable]
        counts = [len(plane.active) for plane in serving]
        assert not counts or max(counts) - min(counts) <= 1
        for plane in evs.planes:
            usable = [ev for ev in plane.evs if ev.state <= S]
            assert sorted(ev.value for ev in plane.active + plane.spares) == sorted(ev.value for ev in usable)
            for member in plane.evs:
                assert member.ready == (member.active and member.state <= G and plane.up)
        assert sorted(ev.value for ev in evs.bad) == sorted(ev.value for ev in members if ev.state is B)
        chosen = evs.pick()
        if any(ev.active and ev.plane.up for ev in members):
            assert chosen is not None
            assert chosen.state <= G
            assert chosen.plane.up


def test_a_skip_may_last_a_time_instead_of_a_turn():
    evs, _ = make(planes=1, paths=4, reading=SpecReading(skip_ns=5_000))
    ev = evs.planes[0].active[1]
    evs.on_acked(ev)
    evs.on_congestion(1_000, ev, EvInput.ECN)
    evs.now_ns = 5_999
    assert ev.value not in {evs.pick().value for _ in range(40)}
    evs.now_ns = 6_000
    assert ev.value in {evs.pick().value for _ in range(12)}
    assert ev.state is G


def test_the_last_resort_is_no_path_whose_probes_stay_unanswered():
    """All EVs are retired, some by mistake. The EV that is still used must not be in the dead plane."""
    evs, _ = make(planes=2, paths=2, probe_interval_ns=1000)
    dead, mistaken = evs.planes
    for ev in list(dead.evs):
        evs.on_lost(0, ev, 1, RetireReason.LOSS)
    for now_ns in (1000, 2000):
        for ev in evs.due_probes(now_ns, 0):
            ev.probing.unanswered = now_ns
    for ev in list(mistaken.evs):
        evs.on_lost(3000, ev, 2, RetireReason.LOSS)
    assert len(evs.bad) == 4
    assert {evs.pick().port for _ in range(20)} == {1}


def test_a_floor_of_usable_evs_is_kept():
    evs, _ = make(planes=2, paths=4, ev_min_active=5)
    for ev in list(evs.by_value.values()):
        evs.on_lost(0, ev, 1, RetireReason.LOSS)
        evs.on_always_skip(0, ev)
    usable = [ev for ev in evs.by_value.values() if ev.state <= S]
    assert len(usable) == 5
    evs.deny(0, usable[0])
    assert usable[0].state is D, "an administrator is not bound by it"


def test_of_spares_those_that_need_not_skip_come_first():
    """A backup in SKIP replaces a retired EV only if there is no other backup."""
    for seed in range(8):
        evs, _ = make(planes=1, paths=3, seed=seed, max_active_evs=1, spare_evs_per_plane=2)
        [plane] = evs.planes
        skipping, good = plane.spares
        evs.on_congestion(0, skipping, EvInput.ECN)
        assert skipping.state is S
        evs.on_lost(0, plane.active[0], 1, RetireReason.LOSS)
        assert plane.active == [good]


def test_an_ev_that_is_listed_twice_has_twice_the_turns_and_one_state():
    paths = remote_paths(0, 1, 1, 3)
    [plane] = paths.planes
    listed = replace(plane, paths=(*plane.paths, plane.paths[0]))
    evs = EvSet(7, RemotePaths((listed,)), MrcConfig(), random.Random(1), [].append)
    counts = Counter(evs.pick().value for _ in range(400))
    assert [counts[path.ev] for path in plane.paths] == [200, 100, 100]
    evs.on_lost(0, evs.by_value[plane.paths[0].ev], 1, RetireReason.LOSS)
    assert plane.paths[0].ev not in {evs.pick().value for _ in range(40)}, "all copies leave"


def test_the_drawing_is_drawn_from_the_table():
    lines = diagram().splitlines()
    assert "    GOOD --> ASSUMED_BAD: lost, always skip" in lines
    assert "    SKIP --> GOOD: turn skipped" in lines
    arrows = {(s, t) for (s, e), t in TRANSITIONS.items() if s is not t}
    assert len(lines) == 2 + len(arrows)


def test_the_documented_drawing_is_current():
    text = (ROOT / "docs" / "mrc-endpoint.md").read_text(encoding="utf-8")
    assert renew(text) == text
    with pytest.raises(ValueError, match="no"):
        renew("nothing to renew")


def put_into(evs, ev, state):
    """Bring an EV of a set into a state by events only."""
    if state is G:
        evs.on_acked(ev)
    elif state is S:
        evs.on_congestion(0, ev, EvInput.ECN)
    elif state is B:
        evs.on_lost(0, ev, 1, RetireReason.LOSS)
    elif state is D:
        evs.deny(0, ev)
    assert ev.state is state


def probes(marked):
    def answer(evs, ev):
        for _ in range(2):
            evs.on_probe_answer(0, ev, marked)

    return answer


HAPPENS = {
    EvInput.ACKED: lambda evs, ev: evs.on_acked(ev),
    EvInput.ECN: lambda evs, ev: evs.on_congestion(0, ev, EvInput.ECN),
    EvInput.TRIMMED: lambda evs, ev: evs.on_congestion(0, ev, EvInput.TRIMMED),
    EvInput.TURN_SKIPPED: lambda evs, ev: [evs.pick() for _ in range(2 * 4 * 8)],
    EvInput.LOST: lambda evs, ev: evs.on_lost(0, ev, 1, RetireReason.LOSS),
    EvInput.ALWAYS_SKIP: lambda evs, ev: evs.on_always_skip(0, ev),
    EvInput.PROBES_PASSED: probes(False),
    EvInput.PROBES_PASSED_MARKED: probes(True),
    EvInput.DENY: lambda evs, ev: evs.deny(0, ev),
    EvInput.ALLOW: lambda evs, ev: evs.allow(0, ev),
}


@pytest.mark.parametrize("event", list(HAPPENS))
@pytest.mark.parametrize("state", [U, G, S, B, D])
def test_each_transition_is_taken_by_a_set_in_use(state, event):
    """Each event in each state must bring an EV of a set into the state in `TABLE`.

    Only retired EVs are probed, so an answer to a probe does not change other EVs.
    """
    evs, _ = make()
    ev = evs.planes[1].active[3]
    put_into(evs, ev, state)
    HAPPENS[event](evs, ev)
    probing = event in (EvInput.PROBES_PASSED, EvInput.PROBES_PASSED_MARKED)
    expected = state if probing and state is not B else TABLE[event][(U, G, S, B, D).index(state)]
    assert ev.state is expected


def test_a_set_may_be_sized_by_the_window():
    full, _ = make(evs_per_window=1.5, cwnd_bytes=16 * 4096)
    assert active(full) == {0: 6, 1: 6, 2: 6, 3: 6}
    least, _ = make(evs_per_window=1.0, cwnd_bytes=4096)
    assert active(least) == {0: 1, 1: 1, 2: 1, 3: 1}
    most, _ = make(evs_per_window=2.0, cwnd_bytes=64 * 4096, max_active_evs=12)
    assert sum(active(most).values()) == 12
    nscc = MrcConfig(evs_per_window=1.0, congestion="nscc")
    assert nscc.active_evs() == 8, "NSCC's first window is eight packets at least"
    with pytest.raises(ValueError, match="evs_per_window"):
        MrcConfig(evs_per_window=-1)
