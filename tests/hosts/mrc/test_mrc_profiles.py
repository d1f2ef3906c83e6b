"""Profiles: the conditions of each state transition, errors, and changes of EVs while queue pairs run."""

import pytest

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.config import NsccConfig
from mrclab.hosts.mrc.congestion import FixedWindow
from mrclab.hosts.mrc.evs.ev_modes import EvEntry, EvField, EvFormat, EvMode
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.profile import (
    EVENTS_KEPT,
    MOST_EVS,
    MOST_PROFILES,
    NSCC,
    PARAMETERS,
    CcProfile,
    EvFormatProfile,
    EvProfile,
    EvStates,
    ProfileErrno,
    ProfileError,
    ProfileState,
)
from mrclab.hosts.rdma.events import PacketLost, SendCompleted, Status
from tests.support.endpoint_state import allowed
from tests.support.mrc_sim import Sim, ev_value, is_data, port_addresses, remote_paths, stream

WIDTHS = (16, 16)
FIELDS = (EvField.counter(8), EvField(8, 0x40, 0, 15, 0x0F))


def online_format(mode=EvFormat.STEV, widths=WIDTHS):
    made = EvFormatProfile(1)
    made.configure(mode, widths)
    made.go_online()
    return made


def explicit(entries, **online):
    changes = []
    profile = EvProfile(7, lambda _, entry, state: changes.append((entry, state)))
    profile.configure(EvMode.EXPLICIT, len(entries), online_format(), FIELDS)
    profile.set_entries(0, entries)
    profile.put_online(**online)
    return profile, changes


def fails(errno, action, *arguments, **named):
    with pytest.raises(ProfileError, match=errno) as caught:
        action(*arguments, **named)
    assert caught.value.errno is ProfileErrno[errno]


A, B, C = EvEntry(1, 1), EvEntry(2, 1), EvEntry(3, 2)


def test_a_profile_goes_from_init_over_offline_to_online_and_back():
    profile = EvProfile(1, print)
    fails("EINVAL", profile.put_online)
    fails("EINVAL", profile.go_offline)
    fails("EINVAL", profile.reset)
    profile.configure(EvMode.AUTO, 4)
    fails("EINVAL", profile.configure, EvMode.AUTO, 4)
    profile.put_online()
    fails("EINVAL", profile.reset)
    profile.users.add(("QP", 5))
    fails("EBUSY", profile.go_offline)
    profile.users.clear()
    profile.go_offline()
    profile.reset()
    assert profile.state is ProfileState.INIT


def test_a_format_has_room_for_its_fields():
    for mode, widths in ((EvFormat.STEV, (16, 17)), (EvFormat.UDP, (17,)), (EvFormat.STEV, ())):
        fails("EINVAL", EvFormatProfile(1).configure, mode, widths)
    EvFormatProfile(1).configure(EvFormat.SRV6_SRH, (32, *[16] * 6, 32, *[16] * 4))
    EvFormatProfile(1).configure(EvFormat.SRV6, (32, *[16] * 6))


def test_what_an_ev_profile_needs_to_go_offline_and_online():
    profile = EvProfile(1, print)
    fails("E2BIG", profile.configure, EvMode.AUTO, MOST_EVS + 1)
    fails("EINVAL", profile.configure, EvMode.AUTO, 0)
    fails("ENOENT", profile.configure, EvMode.EXPLICIT, 2, EvFormatProfile(3), FIELDS)
    fails("EINVAL", profile.configure, EvMode.EXPLICIT, 2)
    fails("EINVAL", profile.configure, EvMode.EXPLICIT, 2, online_format(), (EvField(17),))
    layout = online_format()
    profile.configure(EvMode.EXPLICIT, 2, layout, FIELDS)
    fails("EBUSY", layout.go_offline)
    fails("E2BIG", profile.set_entries, 1, [A, B])
    fails("EINVAL", profile.set_entries, 0, [EvEntry(1 << 12, 1)])
    profile.set_entries(0, [A])
    fails("EINVAL", profile.put_online)
    profile.set_entries(1, [B])
    fails("EINVAL", profile.put_online, min_active=3)
    fails("EINVAL", profile.put_online, event_mask=EvStates.DENIED)
    profile.put_online(min_active=2, event_mask=EvStates.GOOD | EvStates.ASSUMED_BAD)
    profile.go_offline()
    profile.reset()
    layout.go_offline()


def test_a_batch_of_states_ends_at_the_first_entry_that_fails():
    profile, changes = explicit([A, B, C])
    denied = EvStates.DENIED
    batch = profile.set_states([(A, denied), (EvEntry(2, 2), denied), (C, denied)])
    assert (batch.done, batch.error.errno) == (1, ProfileErrno.ENOENT), "value and port have to match"
    assert changes == [(A, denied)]
    assert profile.set_states([(A, EvStates.ASSUMED_BAD)]).error.errno is ProfileErrno.EINVAL
    assert profile.set_states([(A, denied), (A, EvStates.GOOD)]).done == 2
    assert changes == [(A, denied), (A, EvStates.GOOD)], "only changes are passed on"


def test_one_copy_of_an_ev_or_all_are_replaced():
    profile, changes = explicit([A, B, A, C])
    assert profile.replace(A, EvEntry(9, 1)) == 1
    assert profile.entries == [EvEntry(9, 1), B, A, C]
    assert changes == [], "a copy is left"
    assert profile.replace(A, EvEntry(8, 1), all_copies=True) == 1
    assert changes == [(A, EvStates.DENIED)]
    fails("ENOENT", profile.replace, A, B)
    fails("EINVAL", profile.replace, B, EvEntry())
    fails("EINVAL", profile.replace, B, EvEntry(1 << 12, 1))


def test_events_have_a_mask_and_count_those_that_were_dropped():
    profile, _ = explicit([A, B], event_mask=EvStates.ASSUMED_BAD)
    profile.note(A, EvStates.GOOD)
    assert profile.next_event() is None
    for _ in range(EVENTS_KEPT + 3):
        profile.note(A, EvStates.ASSUMED_BAD)
    assert profile.next_event().dropped == 0
    profile.note(B, EvStates.ASSUMED_BAD)
    events = []
    while (event := profile.next_event()) is not None:
        events.append(event)
    assert len(events) == EVENTS_KEPT
    assert (events[-1].entry, events[-1].dropped) == (B, 3)


def test_a_cc_profile_takes_the_parameters_of_the_api_or_none():
    values = {"base_rtt": 5000, "gamma": 0.5, "max_cwnd": 99_000, "disable_qa": 1, "qa_gate": 2}
    profile = CcProfile(1)
    fails("EINVAL", profile.configure, "cubic")
    fails("EINVAL", profile.configure, NSCC, {"beta": 1})
    fails("EINVAL", profile.configure, None, {"gamma": 1})
    fails("EINVAL", profile.configure, NSCC, {"gamma": -1})
    profile.configure(NSCC, values)
    nscc = profile.nscc
    assert (nscc.base_rtt_ns, nscc.gamma, nscc.max_cwnd_bytes, nscc.disable_qa, nscc.qa_gate) == (
        *(5000, 0.5, 99_000, True, 2),
    )
    assert len(PARAMETERS) == 13
    assert all(hasattr(NsccConfig(), ours) for ours, _ in PARAMETERS.values())
    off = CcProfile(2)
    off.configure(None)
    assert off.algorithm is None


def test_ids_are_unique_and_their_number_is_bounded():
    profiles = NicProfiles(Endpoint(port_addresses(0, 1)))
    for number in range(MOST_PROFILES):
        profiles.create_evs(number)
    fails("E2BIG", profiles.create_evs, 1 << 40)
    fails("EINVAL", profiles.create_evs, 3)
    profiles.destroy(profiles.evs[3])
    profiles.create_evs(1 << 40)


class Profiled(Sim):
    """Two NICs with one queue pair each. End 0 connects with profiles."""

    def __init__(self, ev_profile=None, cc_profile=None, **options):
        super().__init__(seed=3, planes=4, paths=4, config=MrcConfig(**options), keep_frames=True)
        self.profiles = NicProfiles(self.ends[0])
        self.pair = [end.create_qp() for end in self.ends]
        self.qpns = self.pair

    def join(self, **ids):
        for me in (0, 1):
            remote = self.ends[1 - me].local_attributes(self.pair[1 - me])
            paths = remote_paths(me, 1 - me, self.planes, self.paths)
            if me:
                self.ends[me].connect(self.pair[me], remote, paths)
            else:
                self.profiles.connect(self.pair[me], remote, paths, **ids)

    def data_ports(self, since_ns):
        return {s.port for s in self.sightings if s.t_ns > since_ns and not s.source and is_data(s.frame)}


def auto_profile(sim, **online):
    evs = sim.profiles.create_evs(5)
    evs.configure(EvMode.AUTO, 16)
    evs.put_online(**online)
    return evs


def test_a_plane_is_drained_by_denying_its_evs_and_comes_back():
    """An operator drains a plane while a queue pair streams. No packet is lost, and the plane comes back."""
    sim = Profiled()
    auto_profile(sim)
    sim.join(ev_profile=5)
    stream(sim, [50_000] * 200)
    sim.run(300_000)
    assert sim.data_ports(0) == {0, 1, 2, 3}
    assert sim.profiles.set_ports(5, [2], EvStates.DENIED).done == 4
    denied_ns = sim.now_ns
    sim.run(300_000)
    assert sim.data_ports(denied_ns) == {0, 2, 3}
    assert [e for e, s in sim.profiles.states(5).items() if s is EvStates.DENIED] == [
        EvEntry(ev_value(1, path), 2) for path in range(4)
    ]
    assert sim.profiles.set_ports(5, [2], EvStates.GOOD).done == 4
    allowed_ns = sim.now_ns
    sim.run(10_000_000_000, until=lambda: sim.completed[0] == 200)
    assert sim.data_ports(allowed_ns) == {0, 1, 2, 3}
    assert {e.status for e in sim.of(0, SendCompleted)} == {Status.SUCCESS}
    assert not sim.of(0, PacketLost)


def test_what_a_profile_denies_holds_for_queue_pairs_that_come_later():
    sim = Profiled()
    auto_profile(sim)
    sim.join(ev_profile=5)
    sim.profiles.set_ports(5, [1], EvStates.DENIED)
    sim.pair = sim.qpns = [end.create_qp() for end in sim.ends]
    sim.join(ev_profile=5)
    stream(sim, [50_000])
    sim.run(until=lambda: bool(sim.completed[0]))
    assert sim.data_ports(0) == {1, 2, 3}


def test_a_profile_in_use_stays_online_until_its_queue_pairs_are_gone():
    sim = Profiled()
    evs = auto_profile(sim)
    sim.join(ev_profile=5)
    fails("EBUSY", evs.go_offline)
    sim.profiles.forget(sim.pair[0])
    with allowed():
        evs.go_offline()
    fails("ENOENT", sim.profiles.set_ports, 5, [1], EvStates.GOOD)
    fails("ENOENT", sim.profiles.states, 6)


def test_explicit_evs_of_a_profile_are_those_that_are_sent():
    sim = Profiled(ev_mode="ecmp")
    layout = sim.profiles.create_format(1)
    layout.configure(EvFormat.STEV, WIDTHS)
    layout.go_online()
    evs = sim.profiles.create_evs(5)
    evs.configure(EvMode.EXPLICIT, 3, layout, FIELDS)
    evs.set_entries(0, [EvEntry(0x123, 1), EvEntry(0x456, 3), EvEntry(0x456, 3)])
    evs.put_online()
    sim.join(ev_profile=5)
    end, qpn = sim.ends[0], sim.pair[0]
    values = {(c.ev, c.plane) for c in end.ev_counters(qpn)}
    assert values == {(0x0012_0043, 0), (0x0045_0046, 2)}, "ports are counted from 1"
    assert sim.profiles.set_ports(5, [3], EvStates.DENIED).done == 1
    assert sim.profiles.states(5)[EvEntry(0x456, 3)] is EvStates.DENIED
    sim.pair = [other.create_qp() for other in sim.ends]
    other = Profiled()
    other.profiles.formats[1] = layout
    other.profiles.evs[5] = evs
    fails("EINVAL", other.join, ev_profile=5)


def test_events_of_a_profile_follow_its_queue_pairs():
    sim = Profiled(probe_interval_ns=500_000)
    evs = auto_profile(sim, event_mask=EvStates.GOOD | EvStates.ASSUMED_BAD)
    sim.join(ev_profile=5)
    bad = ev_value(0, 0)
    sim.network.dead.add(bad)
    stream(sim, [50_000] * 20)
    sim.run(5_000_000)
    sim.network.dead.discard(bad)
    sim.run(50_000_000)
    for event in sim.events[0]:
        sim.profiles.observe(event)
    seen = []
    while (event := evs.next_event()) is not None:
        seen.append((event.entry, event.state))
    assert seen == [(EvEntry(bad, 1), EvStates.ASSUMED_BAD), (EvEntry(bad, 1), EvStates.GOOD)]


def test_queue_pairs_that_share_evs_share_those_of_their_profile_only():
    sim = Profiled(ev_mode="ecmp", ev_sets="peer")
    layout = sim.profiles.create_format(1)
    layout.configure(EvFormat.STEV, WIDTHS)
    layout.go_online()
    found = []
    for number, entry in ((5, EvEntry(0x123, 1)), (6, EvEntry(0x456, 1)), (5, EvEntry(0x123, 1))):
        if number not in sim.profiles.evs:
            evs = sim.profiles.create_evs(number)
            evs.configure(EvMode.EXPLICIT, 1, layout, FIELDS)
            evs.set_entries(0, [entry])
            evs.put_online()
        sim.pair = [end.create_qp() for end in sim.ends]
        sim.join(ev_profile=number)
        found.append(sim.ends[0].qps[sim.pair[0]].evs)
    assert [list(evs.by_value) for evs in found] == [[0x0012_0043], [0x0045_0046], [0x0012_0043]]
    assert found[0] is found[2]


def test_a_floor_of_evs_is_the_profiles():
    sim = Profiled()
    auto_profile(sim, min_active=15)
    sim.join(ev_profile=5)
    sim.network.dead.update(ev_value(plane, 0) for plane in range(4))
    stream(sim, [50_000] * 20)
    sim.run(20_000_000)
    assert sum(s is EvStates.ASSUMED_BAD for s in sim.profiles.states(5).values()) == 1


def test_congestion_control_is_that_of_the_queue_pairs_profile():
    sim = Profiled(congestion="nscc")
    slow = sim.profiles.create_cc(1)
    slow.configure(NSCC, {"max_cwnd": 40_000})
    slow.go_online()
    off = sim.profiles.create_cc(2)
    off.configure(None)
    off.go_online()
    windows = []
    for number in (1, 2, None):
        sim.pair = [end.create_qp() for end in sim.ends]
        sim.join(cc_profile=number)
        windows.append(sim.ends[0].qps[sim.pair[0]].requester.congestion)
    assert windows[0].cwnd_bytes == 40_000
    assert isinstance(windows[1], FixedWindow)
    assert windows[2] is not windows[0], "queue pairs share a window only with those of one control"
    fails("EBUSY", slow.go_offline)
