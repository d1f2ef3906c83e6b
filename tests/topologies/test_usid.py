import json
from ipaddress import IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.topologies import build_fabric
from mrclab.topologies.usid import MAX_INDEX, MAX_PLANES, Role, UsidPlan

PLAN = UsidPlan(IPv6Network("fcbb:bb00::/32"))
usids = st.builds(
    UsidPlan.usid, st.integers(0, MAX_PLANES - 1), st.sampled_from(list(Role)), st.integers(0, MAX_INDEX)
)


def test_plane_stands_in_the_same_bits_of_every_usid() -> None:
    assert UsidPlan.usid(3, Role.T0, 1) == 0x3401
    assert UsidPlan.usid(3, Role.T1, 2) == 0x3802
    assert UsidPlan.usid(3, Role.NIC, 5) == 0x3C05


def test_container_is_written_as_in_the_paper() -> None:
    segments = (0x1400, 0x1803, 0x1401, 0x1C03)
    assert PLAN.container(segments) == IPv6Address("fcbb:bb00:1400:1803:1401:1c03::")


@given(st.lists(usids, max_size=6))
def test_container_round_trip(segments: list[int]) -> None:
    assert PLAN.usids(PLAN.container(segments)) == tuple(segments)


@given(st.lists(usids, min_size=1, max_size=6))
def test_shift_consumes_the_active_usid_and_nothing_else(segments: list[int]) -> None:
    assert PLAN.shift(PLAN.container(segments)) == PLAN.container(segments[1:])


@given(usids)
def test_fields_round_trip_and_no_usid_ends_a_container(usid: int) -> None:
    assert UsidPlan.usid(*UsidPlan.fields(usid)) == usid
    assert usid != 0


@pytest.mark.parametrize(("plane", "index"), [(MAX_PLANES, 0), (-1, 0), (0, MAX_INDEX + 1), (0, -1)])
def test_overflow_is_refused(plane: int, index: int) -> None:
    with pytest.raises(ValueError, match="does not fit a uSID"):
        UsidPlan.usid(plane, Role.T0, index)


def test_a_seventh_usid_is_refused() -> None:
    with pytest.raises(ValueError, match="holds 6 uSIDs"):
        PLAN.container([1] * 7)


def test_in_a_fabric_of_more_than_1024_hosts_a_rack_numbers_its_nics() -> None:
    spec = {"name": "large", "planes": 1, "t0": 3, "t1": 2, "hosts": 1500}
    fabric = build_fabric(json.dumps(spec), "large")
    for rack in range(3):
        usids = [host.ports[0].usid for host in fabric.hosts if host.rack == rack]
        assert len(set(usids)) == len(usids) == 500
    assert len({host.ports[0].address for host in fabric.hosts}) == 1500
    path = fabric.paths("h0", "h1499")[1]
    assert path.nodes == ("h0", "p0-t0-0", "p0-t1-1", "p0-t0-2", "h1499")
    assert path.segments[-1] == fabric.host("h1499").ports[0].usid
    with pytest.raises(KeyError, match="a NIC of each rack"):
        fabric.node_of(path.segments[-1])
    assert fabric.node_of(path.segments[1]) == "p0-t1-1"
