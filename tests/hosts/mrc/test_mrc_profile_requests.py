"""Requests that read or change profiles, and their answers, in types of JSON."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint, MrcConfig
from mrclab.hosts.mrc.events import EvRetired
from mrclab.hosts.mrc.evs.ev_modes import EvEntry
from mrclab.hosts.mrc.profiles.nic_profiles import NicProfiles
from mrclab.hosts.mrc.profiles.requests import (
    DEFAULT_ID,
    ProfileRequests,
    default_profiles,
    entry_of,
    text_of,
)
from mrclab.hosts.rdma.events import PacketLost
from tests.support.mrc_sim import Sim, ev_value, is_data, port_addresses, remote_paths, stream


class Served(Sim):
    """Two NICs. End 0 has the profiles with which a NIC starts, and handles requests about them."""

    def __init__(self, **options):
        super().__init__(seed=5, planes=3, paths=4, config=MrcConfig(**options), keep_frames=True)
        self.profiles = NicProfiles(self.ends[0])
        default_profiles(self.profiles)
        self.requests = ProfileRequests(self.profiles, "h0", lambda: self.now_ns)
        self.join()

    def join(self, ev_profile=DEFAULT_ID, cc_profile=DEFAULT_ID):
        self.qpns = [end.create_qp() for end in self.ends]
        for me in (0, 1):
            remote = self.ends[1 - me].local_attributes(self.qpns[1 - me])
            paths = remote_paths(me, 1 - me, self.planes, self.paths)
            if me:
                self.ends[1].connect(self.qpns[1], remote, paths)
            else:
                self.profiles.connect(self.qpns[0], remote, paths, ev_profile, cc_profile)

    def ask(self, do, **arguments):
        return json.loads(json.dumps(self.requests.carry_out({"do": do, **arguments})))

    def ports(self, since_ns):
        return {s.port for s in self.sightings if s.t_ns > since_ns and not s.source and is_data(s.frame)}


def test_a_plane_is_denied_and_allowed_by_requests():
    sim = Served()
    stream(sim, [50_000] * 100)
    sim.run(300_000)
    answer = sim.ask("set", state="DENIED", ports=[2])
    assert answer["done"] == 4
    assert answer["results"] == {f"{ev_value(1, path):#x}@2": "ok" for path in range(4)}
    since = sim.now_ns
    sim.run(200_000)
    assert sim.ports(since) == {0, 2}
    retired = [e.t_ns for e in sim.of(0, EvRetired)]
    assert retired == [since] * 4, "changes have the time of the request"
    shown = sim.ask("show", evs=True)["evs"][0]
    assert shown["states"] == {"GOOD": 8, "DENIED": 4}
    assert shown["evs"][f"{ev_value(1, 0):#x}@2"] == "DENIED"
    assert sim.ask("set", state="GOOD", ports=[2])["done"] == 4
    since = sim.now_ns
    sim.run(until=lambda: sim.completed[0] == 100)
    assert sim.ports(since) == {0, 1, 2}
    assert not sim.of(0, PacketLost)


def test_each_entry_of_a_batch_has_an_outcome():
    sim = Served()
    good, wrong, other = f"{ev_value(0, 1):#x}@1", f"{ev_value(0, 1):#x}@2", f"{ev_value(0, 2):#x}@1"
    answer = sim.ask("set", state="DENIED", evs=[good, wrong, other])
    assert answer["done"] == 1
    assert answer["results"] == {
        good: "ok",
        wrong: f"ENOENT: EV {ev_value(0, 1):#x} on port 2",
        other: "not tried",
    }


def test_mistakes_have_the_names_of_the_api():
    sim = Served()
    for errno, do, arguments in (
        ("EINVAL", "set", {"state": "ASSUMED_BAD", "ports": [1]}),
        ("EINVAL", "set", {"state": "DENIED"}),
        ("EINVAL", "set", {"state": "DENIED", "evs": ["12"]}),
        ("ENOENT", "set", {"state": "DENIED", "ports": [9]}),
        ("ENOENT", "set", {"state": "DENIED", "ports": [1], "profile": 7}),
        ("EINVAL", "replace", {"old": f"{ev_value(0, 0):#x}@1", "new": "0x1@1"}),
        ("EINVAL", "create", {"kind": "cc", "id": 5, "parameters": {"beta": 1}}),
        ("EINVAL", "create", {"kind": "cc", "id": DEFAULT_ID}),
        ("E2BIG", "create", {"kind": "ev", "id": 5, "count": 1 << 20}),
        ("EBUSY", "remove", {"kind": "ev", "id": DEFAULT_ID}),
        ("ENOENT", "remove", {"kind": "cc", "id": 77}),
        ("EINVAL", "dance", {}),
    ):
        answer = sim.ask(do, **arguments)
        assert answer["errno"] == errno, (do, arguments, answer)
        assert answer["error"].startswith(f"{errno}: ")
    assert sorted(sim.profiles.ccs) == sorted(sim.profiles.evs) == [DEFAULT_ID], "nothing is left behind"


def test_queue_pairs_to_come_have_the_profiles_that_they_name():
    sim = Served(congestion="nscc")
    assert sim.ask("create", kind="cc", id=2, parameters={"max_cwnd": 40_000}) == {"host": "h0", "id": 2}
    assert sim.ask("create", kind="ev", id=2, count=4, min_active=2) == {"host": "h0", "id": 2}
    sim.join(ev_profile=2, cc_profile=2)
    assert sim.ends[0].qps[sim.qpns[0]].requester.congestion.cwnd_bytes == 40_000
    shown = sim.ask("show")
    assert [(p["id"], p["queue_pairs"]) for p in shown["evs"]] == [(1, 1), (2, 1)]
    assert shown["ccs"][1]["parameters"]["max_cwnd"] == 40_000
    assert sim.ask("remove", kind="cc", id=2)["errno"] == "EBUSY"
    sim.profiles.forget(sim.qpns[0])
    assert sim.ask("remove", kind="cc", id=2) == {"host": "h0", "id": 2}


def test_events_are_taken_once():
    sim = Served(probe_interval_ns=10_000_000_000)
    sim.network.dead.add(ev_value(0, 0))
    stream(sim, [50_000] * 20)
    sim.run(until=lambda: sim.completed[0] == 20)
    for event in sim.events[0]:
        sim.profiles.observe(event)
    assert sim.ask("events")["events"] == [
        {"ev": f"{ev_value(0, 0):#x}@1", "state": "ASSUMED_BAD", "dropped": 0}
    ]
    assert sim.ask("events")["events"] == []


def test_without_congestion_control_or_with_ones_own_there_is_no_algorithm():
    fixed = NicProfiles(Endpoint(port_addresses(0, 2), MrcConfig()))
    default_profiles(fixed)
    assert fixed.ccs[DEFAULT_ID].algorithm is None
    own = NicProfiles(Endpoint(port_addresses(0, 2), MrcConfig(congestion="aimd")))
    default_profiles(own)
    assert not own.ccs


def test_an_ev_reads_as_it_is_written():
    assert text_of(EvEntry(0x28000, 3)) == "0x28000@3"
    assert entry_of("0x28000@3") == entry_of("163840@3") == EvEntry(0x28000, 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        "state",
        "ports",
        "evs",
        "profile",
        "old",
        "new",
        "all",
        "kind",
        "id",
        "parameters",
        "algorithm",
        "count",
    ]
)
WORDS = st.sampled_from(["DENIED", "GOOD", "ev", "cc", "format", "0x4000@1", 1, 2, [1], ["0x4000@1"]])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        JSON
        | st.builds(
            lambda do, rest: {**rest, "do": do},
            st.sampled_from(["show", "set", "replace", "events", "create", "remove"]),
            st.dictionaries(KEYS, WORDS | JSON, max_size=5),
        ),
        max_size=4,
    )
)
def test_no_request_breaks_a_nic(requests):
    profiles = NicProfiles(Endpoint(port_addresses(0, 2), MrcConfig()))
    default_profiles(profiles)
    served = ProfileRequests(profiles, "h0", lambda: 5)
    for request in requests:
        answer = served.carry_out(request)
        assert "host" in answer or answer["error"].startswith(answer["errno"])
        json.dumps(answer)
