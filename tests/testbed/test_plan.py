"""The plan of a testbed: links, rates, the Mininet topology, and the fabric's text."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from mrclab.controller.queues import shape_of
from mrclab.linux import rtnetlink
from mrclab.testbed.links import FIRST_INDEX, cables
from mrclab.testbed.mininet_classes import FabricTopo
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric, LinkProfile, build_fabric, fabric_from_text, fabric_text, load_fabric

ODD = """
name: odd
planes: 2
t0: 2
t1: 3
block: fcbb:cc00::/32
hosts: [{name: alpha, rack: 1}, {name: beta, rack: 0}, {name: gamma, rack: 1}]
links:
  host: {rate: 2 Gbit/s, delay: 5 us}
  except:
    - {link: [p0-t0-0, p0-t1-2], rate: 100 Mbit/s, mtu: 9000}
    - {link: [p1-t0-1, p1-t1-0], absent: true}
    - {link: [alpha, p1-t0-1], delay: 1500 ns}
"""


@pytest.mark.parametrize("name", ["tiny", "lab", "wide"])
def test_a_shipped_fabric_survives_being_written_down(name: str) -> None:
    fabric = load_fabric(name)
    assert fabric_from_text(fabric_text(fabric)) == fabric


def test_an_odd_fabric_survives_being_written_down() -> None:
    fabric = build_fabric(ODD, "odd.yaml")
    assert fabric_from_text(fabric_text(fabric)) == fabric


def test_a_fabric_of_one_rack_survives_being_written_down() -> None:
    fabric = build_fabric("name: rack\nplanes: 1\nt0: 1\nt1: 0\nhosts: 2\n", "rack.yaml")
    assert fabric_from_text(fabric_text(fabric)) == fabric


def test_every_end_has_a_place_of_its_own() -> None:
    fabric = load_fabric("lab")
    plan = cables(fabric, Names("x"))
    ends = [end for cable in plan for end in (cable.a, cable.b)]
    assert [cable.link for cable in plan] == list(fabric.links)
    assert len({(end.namespace, end.index) for end in ends}) == len(ends)
    assert len({end.ifname for end in ends}) == len(ends)
    assert len({end.mac for end in ends}) == len(ends)
    assert min(end.index for end in ends) == FIRST_INDEX
    assert {end.namespace for end in ends} == set(Names("x").of(fabric))


@pytest.mark.parametrize("rate_bps", [10**6, 10**8, 10**9, 2 * 10**9, 10**11])
@pytest.mark.parametrize("mtu", [4228, 9202])
def test_a_shape_lets_every_frame_through_and_bounds_the_queue(rate_bps: int, mtu: int) -> None:
    shape = shape_of(LinkProfile(rate_bps, 0, mtu))
    assert shape.burst_bytes >= mtu + 14
    assert shape.burst_bytes <= max(2 * (mtu + 14), rate_bps // 8 // 10_000)
    assert 32 * (mtu + 14) <= shape.limit_bytes < 2**31


def test_rates_above_32_bits_go_into_their_own_attribute() -> None:
    check_buckets()


def check_buckets() -> None:
    slow = _encoded(rtnetlink.tbf(7, rate_bps=10**9, burst_bytes=10_000, limit_bytes=10**6))
    fast = _encoded(rtnetlink.tbf(7, rate_bps=10**11, burst_bytes=10**6, limit_bytes=10**7))
    assert struct.pack("=HHI", 8, 6, 10_000) in slow  # TCA_TBF_BURST, exact to the byte
    assert struct.pack("=I", 10**9 // 8) in slow
    assert struct.pack("=HHQ", 12, 4, 10**11 // 8) in fast  # the attribute TCA_TBF_RATE64
    assert len(fast) == len(slow) + 12


def test_a_bucket_is_whole_though_pyroute2s_own_was_used_before() -> None:
    theirs = {"attrs": [("TCA_KIND", "tbf"), ("TCA_OPTIONS", {"attrs": [("TCA_TBF_PARMS", {"rate": 1})]})]}
    own = tcmsg()
    own.update(theirs, header={"type": 36, "flags": 1})
    own.encode()
    check_buckets()


def test_a_delay_is_kept_to_the_schedulers_tick() -> None:
    found = _encoded(rtnetlink.netem(7, delay_ns=5_000, limit_packets=99))
    assert struct.pack("=HHIIIIII", 28, 2, 78, 99, 0, 0, 0, 0) in found  # struct tc_netem_qopt


def _encoded(request: Any) -> bytes:
    request.encode()
    return bytes(request.data)


def test_the_mininet_topology_is_the_fabric(tiny: Fabric) -> None:
    topo = FabricTopo(fabric=tiny, names=Names("x"), run_id="x.1")
    assert sorted(topo.hosts()) == sorted(host.name for host in tiny.hosts)
    assert sorted(topo.switches()) == sorted(switch.name for switch in tiny.switches)
    made = {
        (info["node1"], info["port1"], info["node2"], info["port2"]) for *_, info in topo.links(withInfo=True)
    }
    assert made == {(link.a.node, link.a.port, link.b.node, link.b.port) for link in tiny.links}
