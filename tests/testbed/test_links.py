"""The links of a fabric in real namespaces."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from mrclab.linux import namespaces, rtnetlink
from mrclab.testbed import clean, links
from mrclab.testbed.links import Cable, cables
from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import Fabric, build_fabric

pytestmark = pytest.mark.root

ETHER_TYPE = 0x88B5  # the EtherType for local experiments (IEEE 802)
ATTEMPTS = 10
SLOW = "name: slow\nplanes: 1\nt0: 1\nt1: 0\nhosts: 2\nlinks: {host: {rate: 100 Mbit/s}}\n"
FAR = "name: far\nplanes: 1\nt0: 1\nt1: 0\nhosts: 2\nlinks: {host: {delay: 5 ms}}\n"


@pytest.fixture
def network(tiny: Fabric, names: Names) -> Iterator[FabricNetwork]:
    with FabricNetwork.up(tiny, names=names) as network:
        yield network


def _socket(namespace: str, ifname: str) -> socket.socket:
    with namespaces.inside(namespace):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    opened.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
    opened.settimeout(5)
    opened.bind((ifname, ETHER_TYPE))
    return opened


def _frame(cable: Cable, payload: bytes) -> bytes:
    return cable.b.mac + cable.a.mac + ETHER_TYPE.to_bytes(2, "big") + payload


def test_a_frame_crosses_every_link_both_ways_at_once(network: FabricNetwork) -> None:
    for cable in cables(network.fabric, network.names):
        largest = _frame(cable, bytes(cable.link.profile.mtu_bytes))
        with (
            _socket(cable.a.namespace, cable.a.ifname) as a,
            _socket(cable.b.namespace, cable.b.ifname) as b,
        ):
            a.send(largest)
            assert b.recv(1 << 16) == largest
            b.send(largest[:60])
            assert a.recv(1 << 16) == largest[:60]
            with pytest.raises(OSError, match="too long"):
                a.send(largest + b"x")


def test_every_interface_is_as_the_fabric_says(network: FabricNetwork) -> None:
    for cable in cables(network.fabric, network.names):
        for end in (cable.a, cable.b):
            with namespaces.inside(end.namespace), rtnetlink.opened_ethtool() as ethtool:
                assert socket.if_nametoindex(end.ifname) == end.index
                ethtool.change_ifname(end.ifname)
                features = ethtool.get_features()
                names = list(features.keys())
                assert [name for name in names if rtnetlink.OFFLOADS.match(name) and features[name]] == []
                assert rtnetlink.settle(ethtool, end.ifname)
                facts = _facts(end.ifname)
            assert facts["mtu"] == str(cable.link.profile.mtu_bytes)
            assert facts["link/ether"] == end.mac.hex(":")
            assert facts["state"] == "UP"
            assert facts["qdisc"] == ("htb" if end.namespace == network.names.fabric else "tbf")
            assert "inet" not in facts
            assert "inet6" not in facts


def _facts(ifname: str) -> dict[str, str]:
    words = subprocess.check_output(["ip", "addr", "show", "dev", ifname], text=True).split()
    return dict(pairwise(words))


def test_the_kernel_itself_sends_nothing(network: FabricNetwork) -> None:
    with namespaces.inside(network.names.fabric):
        ipv6 = subprocess.check_output(["ip", "-6", "addr"], text=True)
        with open("/proc/thread-self/net/dev") as file:
            counters = {
                line.split(":")[0].strip(): line.split(":")[1].split() for line in file if ":" in line
            }
    assert ipv6 == ""
    assert len(counters) > 20
    assert {name: found[1] for name, found in counters.items() if found[1] != "0"} == {}


def test_it_goes_up_and_down_within_an_event_loop_and_leaves_nothing_open(tiny: Fabric, names: Names) -> None:
    async def up_and_down() -> None:
        before = (os.listdir("/proc/self/fd"), threading.enumerate())
        with FabricNetwork.up(tiny, names=names) as network:
            links.set_up(names.fabric, network.ports["p0-t0-0"][1], up=False)
        assert (os.listdir("/proc/self/fd"), threading.enumerate()) == before

    asyncio.run(up_and_down())


def test_what_the_kernel_refuses_is_said_and_leaves_no_descriptor(network: FabricNetwork) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileExistsError, match="cannot make links: "):
        links.lay(network.fabric, network.names)
    assert os.listdir("/proc/self/fd") == before


def test_a_link_keeps_its_rate(names: Names) -> None:
    fabric = build_fabric(SLOW, "slow.yaml")
    with FabricNetwork.up(fabric, names=names):
        cable = cables(fabric, names)[0]
        frame = _frame(cable, bytes(4200))
        with (
            _socket(cable.a.namespace, cable.a.ifname) as a,
            _socket(cable.b.namespace, cable.b.ifname) as b,
        ):
            count = 300
            share = 0.0
            # If this process has to wait, a link seems slower, so the fastest attempt counts.
            for _ in range(ATTEMPTS):
                started = time.monotonic()
                for _ in range(count):
                    a.send(frame)
                for _ in range(count):
                    b.recv(1 << 16)
                rate = count * len(frame) * 8 / (time.monotonic() - started)
                share = max(share, rate / cable.link.profile.rate_bps)
                if share > 0.8:
                    break
    assert 0.8 < share < 1.1


@pytest.mark.parametrize("target", ["ebpf", "bmv2"])
def test_a_topology_keeps_its_delays_with_netem_and_without(target: str, names: Names) -> None:
    """If the kernel has no netem, the target delays the frames at the ends of each link."""
    fabric = build_fabric(FAR, "far.yaml")
    with FabricNetwork.up(fabric, names=names, target=target) as network:
        cable = cables(fabric, names)[0]
        assert network.ended() is None
        with (
            _socket(cable.a.namespace, cable.a.ifname) as a,
            _socket(cable.b.namespace, cable.b.ifname) as b,
        ):
            for here, there in ((a, b), (b, a)):
                waits = []
                for _ in range(ATTEMPTS):
                    started = time.monotonic()
                    here.send(_frame(cable, bytes(100)))
                    there.recv(1 << 16)
                    waits.append(time.monotonic() - started)
                assert min(waits) >= 0.005
                assert min(waits) < 0.1


@pytest.mark.skipif(links.has_netem(), reason="the kernel delays by itself")
def test_it_is_said_that_links_lost_their_delay(names: Names) -> None:
    with FabricNetwork.up(build_fabric(FAR, "far.yaml"), names=names) as network:
        (pid,) = (p.pid for p in clean.testbed_processes(names, ()) if "wire_relay" in p.what)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert network.ended() == "the process that delays the links has ended"
