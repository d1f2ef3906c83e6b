"""A fabric derived from another fabric, and a fabric written as text and read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric, build_fabric, fabric_from_text, fabric_text, load_fabric, one_plane
from mrclab.topologies.build import build, spec_of

ODD = """\
name: odd
planes: 2
t0: 2
t1: 3
hosts: [{name: a, rack: 1}, {name: b, rack: 0}, {name: c, rack: 1}]
block: fcbb:cc00::/32
links:
  host: {rate: 2 Gbit/s}
  fabric: {rate: 500 Mbit/s, delay: 5 us}
  except:
  - {link: [p0-t0-0, p0-t1-2], rate: 100 Mbit/s}
  - {link: [p0-t1-1, p0-t0-1], absent: true}
  - {link: [p1-t0-1, p1-t1-1], absent: true}
  - {link: [p1-t0-0, p1-t1-0], mtu: 9000}
  - {link: [a, p1-t0-1], delay: 1 ms}
"""


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    planes, t0s, t1s = (draw(st.integers(1, 3)) for _ in range(3))
    links = st.tuples(st.integers(0, planes - 1), st.integers(0, t0s - 1), st.integers(0, t1s - 1))
    changed = draw(st.lists(links, unique=True, max_size=4))
    lines = "".join(
        f"  - {{link: [p{p}-t0-{a}, p{p}-t1-{b}], rate: {draw(st.integers(1, 900))} Mbit/s}}\n"
        for p, a, b in changed
    )
    extra = f"links:\n  except:\n{lines}" if lines else ""
    hosts = draw(st.integers(1, 6))
    return build_fabric(f"name: any\nplanes: {planes}\nt0: {t0s}\nt1: {t1s}\nhosts: {hosts}\n{extra}", "any")


@pytest.mark.slow
@given(fabrics())
def test_a_fabric_survives_its_definition_and_its_text(fabric: Fabric) -> None:
    assert build(spec_of(fabric)) == fabric
    assert fabric_from_text(fabric_text(fabric)) == fabric


@pytest.mark.parametrize("name", ["tiny", "lab", "wide"])
def test_shipped_fabrics_survive_their_text(name: str) -> None:
    fabric = load_fabric(name)
    assert fabric_from_text(fabric_text(fabric)) == fabric


def test_an_odd_fabric_survives_its_text() -> None:
    fabric = build_fabric(ODD, "odd.yaml")
    assert fabric_from_text(fabric_text(fabric)) == fabric


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}', "name: x", '{"hosts": [1]}'])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="describes no fabric"):
        fabric_from_text(text)


@given(fabrics())
def test_one_plane_has_the_bandwidth_of_all(fabric: Fabric) -> None:
    one = one_plane(fabric)
    assert one.planes == 1
    assert [host.name for host in one.hosts] == [host.name for host in fabric.hosts]
    for link in one.links:
        there = fabric.link(link.a.node, link.b.node)
        assert link.profile.rate_bps == there.profile.rate_bps * fabric.planes
        assert link.profile.delay_ns == there.profile.delay_ns
    assert {link.name for link in one.links} == {link.name for link in fabric.links if link.plane == 0}
    assert one_plane(one) is one


def test_one_plane_of_an_odd_fabric() -> None:
    one = one_plane(build_fabric(ODD, "odd.yaml"))
    assert one.name == "odd-1plane"
    assert one.link("p0-t0-0", "p0-t1-2").profile.rate_bps == 200 * 10**6
    assert not one.has_link("p0-t0-1", "p0-t1-1")
    assert one.link("a", "p0-t0-1").profile.delay_ns == 0


def test_nodes_know_their_tier() -> None:
    fabric = build_fabric(ODD, "odd.yaml")
    assert [fabric.tier(node) for node in ("a", "p0-t0-1", "p1-t1-2")] == [None, "t0", "t1"]
    with pytest.raises(KeyError):
        fabric.tier("p9-t0-0")
