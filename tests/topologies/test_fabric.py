from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric, build_fabric, load_fabric, shipped_topologies
from mrclab.topologies.model import ev_fields


def fabric_of(planes: int = 2, t0: int = 2, t1: int = 2, hosts: int = 4, extra: str = "") -> Fabric:
    text = f"name: test\nplanes: {planes}\nt0: {t0}\nt1: {t1}\nhosts: {hosts}\n{extra}"
    return build_fabric(text, "test.yaml")


@pytest.mark.parametrize(
    ("name", "switches", "links", "paths"),
    [("tiny", 8, 16, 4), ("lab", 32, 96, 16), ("two-racks", 168, 336, 160), ("wide", 272, 544, 256)],
)
def test_shipped(name: str, switches: int, links: int, paths: int) -> None:
    fabric = load_fabric(name)
    assert len(fabric.switches) == switches
    assert len(fabric.links) == links
    assert len(fabric.paths(fabric.hosts[0].name, fabric.hosts[-1].name)) == paths


def test_all_shipped_topologies_are_known() -> None:
    assert shipped_topologies() == ("lab", "paper-b", "paper-c", "pod", "thin", "tiny", "two-racks", "wide")


def test_two_loads_are_equal() -> None:
    assert load_fabric("lab") == load_fabric("lab")


fabrics = st.builds(fabric_of, st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(2, 9))


@settings(max_examples=40, deadline=None)
@given(fabrics, st.data())
def test_following_the_segment_list_ends_at_the_destination(fabric: Fabric, data: st.DataObject) -> None:
    """Follow the path as switches do: match the own SID, shift, and look up the next /48."""
    src, dst = data.draw(st.permutations([h.name for h in fabric.hosts]))[:2]
    for path in fabric.paths(src, dst):
        container, node = path.outer_dst, fabric.host(src).ports[path.plane].t0
        visited = [src]
        while node not in (dst, None):
            switch = fabric.switch(node)
            assert container in fabric.sid(switch.usid)
            visited.append(node)
            container = fabric.plan.shift(container)
            node = next(
                p.peer.node
                for p in switch.ports
                if container in fabric.sid(fabric.usid_of(p.peer.node, switch.plane))
            )
        assert (*visited, node) == path.nodes
        assert all(fabric.has_link(a, b) for a, b in pairwise(path.nodes))
        assert all(fabric.switch(n).plane == path.plane for n in path.nodes[1:-1])


@settings(max_examples=40, deadline=None)
@given(fabrics)
def test_what_must_be_unique_is_unique(fabric: Fabric) -> None:
    ports = [p for s in fabric.switches for p in s.ports] + [p for h in fabric.hosts for p in h.ports]
    for what in ("ifname", "mac"):
        values = [getattr(p, what) for p in ports]
        assert len(set(values)) == len(values)
    assert len({s.device_id for s in fabric.switches}) == len(fabric.switches)
    assert len({p.address for h in fabric.hosts for p in h.ports}) == len(fabric.hosts) * fabric.planes


@settings(max_examples=40, deadline=None)
@given(fabrics, st.data())
def test_ev_names_one_path(fabric: Fabric, data: st.DataObject) -> None:
    src, dst = data.draw(st.permutations([h.name for h in fabric.hosts]))[:2]
    paths = fabric.paths(src, dst)
    assert len({p.ev for p in paths}) == len(paths)
    for path in paths:
        assert ev_fields(path.ev) == (path.plane, path.t1 or 0)


def test_every_nic_has_one_port_per_plane_in_order() -> None:
    for host in load_fabric("lab").hosts:
        assert [p.plane for p in host.ports] == [0, 1, 2, 3]
        assert [p.ifname for p in host.ports] == [f"{host.name}-eth{p}" for p in range(4)]


def test_an_absent_link_takes_its_paths_away() -> None:
    fabric = fabric_of(extra="links: {except: [{link: [p0-t0-0, p0-t1-1], absent: true}]}")
    assert not fabric.has_link("p0-t0-0", "p0-t1-1")
    assert [(p.plane, p.t1) for p in fabric.paths("h0", "h3")] == [(0, 0), (1, 0), (1, 1)]


def test_an_exception_changes_one_link() -> None:
    fabric = fabric_of(extra="links: {except: [{link: [p0-t1-1, p0-t0-0], rate: 100 Mbit/s}]}")
    rates = {link.name: link.profile.rate_bps for link in fabric.links}
    assert rates.pop("p0-t0-0:p0-t1-1") == 10**8
    assert set(rates.values()) == {10**9}


BAD = {
    "t0 without uplinks": ("planes: 1\nt0: 2\nt1: 0\nhosts: 2", 4, "no T0 has an uplink"),
    "t0 stripped of its uplinks": (
        "planes: 1\nt0: 2\nt1: 1\nhosts: 2\nlinks:\n  except:\n  - {link: [p0-t0-0, p0-t1-0], absent: true}",
        8,
        "p0-t0-0 is left without uplinks",
    ),
    "duplicate host": (
        "planes: 1\nt0: 1\nt1: 1\nhosts:\n- {name: a, rack: 0}\n- {name: a, rack: 0}",
        7,
        "two hosts are called 'a'",
    ),
    "host named as a switch": (
        "planes: 1\nt0: 1\nt1: 1\nhosts:\n- {name: p0-t0-0, rack: 0}",
        6,
        "is no host name",
    ),
    "rack that is not": (
        "planes: 1\nt0: 1\nt1: 1\nhosts:\n- {name: a, rack: 1}",
        6,
        "rack must be from 0 to 0",
    ),
    "too many planes": ("planes: 17\nt0: 1\nt1: 1\nhosts: 1", 2, "overflow the uSID's plane field"),
    "too many t0": ("planes: 1\nt0: 1025\nt1: 1\nhosts: 1", 3, "overflow the uSID's index"),
    "too many hosts": ("planes: 1\nt0: 1\nt1: 1\nhosts: 1025", 5, "overflows the uSID's index"),
    "name too long": (
        "planes: 1\nt0: 1\nt1: 1\nhosts:\n- {name: a-rather-long-name, rack: 0}",
        6,
        "would have 23 characters",
    ),
    "unknown key": ("planes: 1\nt0: 1\nt1: 1\nhosts: 1\nspines: 4", 6, "has no key 'spines'"),
    "key twice": ("planes: 1\nplanes: 2\nt0: 1\nt1: 1\nhosts: 1", 3, "'planes' is given twice"),
    "no number": ("planes: two\nt0: 1\nt1: 1\nhosts: 1", 2, "planes must be a whole number"),
    "missing key": ("planes: 1\nt0: 1\nt1: 1", 1, "needs 'hosts'"),
    "bad rate": ("planes: 1\nt0: 1\nt1: 1\nhosts: 1\nlinks:\n  host: {rate: fast}", 7, "must be a rate"),
    "small mtu": ("planes: 1\nt0: 1\nt1: 1\nhosts: 1\nlinks:\n  host: {mtu: 1500}", 7, "mtu must be from"),
    "unknown link": (
        "planes: 1\nt0: 1\nt1: 1\nhosts: 1\nlinks:\n  except:\n  - {link: [p0-t0-0, p0-t1-7], rate: 1 Mbps}",
        8,
        "no link p0-t0-0:p0-t1-7",
    ),
    "block no /32": ("planes: 1\nt0: 1\nt1: 1\nhosts: 1\nblock: fcbb::/48", 6, "block must be a /32"),
    "not yaml": ("planes: [", 2, "not YAML"),
}


@pytest.mark.parametrize("case", BAD)
def test_nonsense_is_refused_with_its_line(case: str) -> None:
    body, line, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        build_fabric(f"name: bad\n{body}\n", "bad.yaml")
    assert "\n" not in str(caught.value)
    if case != "not yaml":  # PyYAML reports the end of the text there
        assert caught.value.line == line


@given(st.text(max_size=200))
def test_any_text_is_a_fabric_or_an_input_error(text: str) -> None:
    try:
        build_fabric(text, "fuzz.yaml")
    except InputError as error:
        message = str(error)
    else:
        return
    assert "\n" not in message


def test_unknown_topology_names_the_shipped_ones() -> None:
    with pytest.raises(InputError, match="one of lab, paper-b, paper-c, pod, thin, tiny, two-racks, wide"):
        load_fabric("no-such-topology")
