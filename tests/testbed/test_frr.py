"""Routers with FRRouting between namespaces carry TCP, notice a dead link, and leave nothing behind."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from mrclab.faults.kinds import Fault
from mrclab.linux import namespaces, rtnetlink
from mrclab.linux.errors import MachineError
from mrclab.testbed.clean import clean
from mrclab.testbed.frr.daemons import DaemonError, find_daemons
from mrclab.testbed.frr.fabric import FrrFabric, NotConvergedError, ways
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric
from mrclab.topologies.routed import Timers
from tests.support.leftovers import leftovers

pytestmark = [pytest.mark.root, pytest.mark.frr]

_SERVER = """
import socket
server = socket.create_server(("::", 9000), family=socket.AF_INET6)
print("listening", flush=True)
connection, _ = server.accept()
got = 0
while data := connection.recv(65536):
    got += len(data)
print(got, flush=True)
"""
_CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 9000), timeout=10) as connection:
    connection.sendall(bytes(1 << 20))
"""
_MANY_HASHES = """
import socket, sys
for _ in range(64):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        s.bind(("::", 7000))
        s.connect((sys.argv[1], 7001))
        s.send(bytes(100))
"""


@pytest.fixture
def names() -> Iterator[Names]:
    """Yield names as conftest.py does, but with a directory below /run, which the daemons' user can read."""
    names = Names.of_prefix(f"t{os.urandom(4).hex()}")
    yield names
    left = leftovers(names)
    clean(names)
    assert left == []


def hops(fabric: FrrFabric, router: str) -> dict[IPv6Address, int]:
    def work() -> dict[IPv6Address, int]:
        namespaces.enter(fabric.network.places[router])
        with rtnetlink.opened() as route:
            return ways(route)

    return namespaces.in_thread(work)


def until_hops(fabric: FrrFabric, router: str, count: int) -> None:
    """Wait until a router has ``count`` next hops to each host of other racks, or the test times out."""
    while set(hops(fabric, router).values()) != {count}:
        pass


def carry(fabric: FrrFabric, src: str, dst: str, plane: int) -> int:
    """Send 1 MiB by the kernel's TCP. Return the number of bytes that arrived."""
    network = fabric.network
    address = str(fabric.fabric.host(dst).ports[plane].address)
    pipe = subprocess.PIPE
    server = network.spawn(dst, [sys.executable, "-c", _SERVER], stdout=pipe, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    client = network.spawn(src, [sys.executable, "-c", _CLIENT, address])
    assert client.wait(30) == 0
    out, _ = server.communicate(timeout=30)
    return int(out)


def frames_taken_in(fabric: FrrFabric, router: str) -> int:
    command = ["ip", "-j", "-s", "-n", fabric.network.places[router], "link"]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return sum(i["stats64"]["rx"]["packets"] for i in said if i["ifname"].startswith(router))


def test_a_flow_keeps_its_path_whatever_its_sender_s_kernel_thinks(tiny: Fabric, names: Names) -> None:
    """The path depends only on addresses and ports, although each socket of the sender has a random hash."""
    with FrrFabric.up(tiny, Timers(), names=names) as fabric:
        target = str(tiny.host("h3").ports[0].address)

        def came() -> list[int]:
            t1s = [switch.name for switch in tiny.t1s(0)]
            before = {name: frames_taken_in(fabric, name) for name in t1s}
            assert fabric.network.spawn("h0", [sys.executable, "-c", _MANY_HASHES, target]).wait(30) == 0
            return sorted(frames_taken_in(fabric, name) - before[name] for name in t1s)

        fewest, most = came()
        assert most >= 64
        assert fewest < 16, "only BGP's own go over the other"
        fabric.faults.apply(Fault("loss", "h0:p0-t0-0", ratio=0.9))
        assert max(came()) < 48
        fabric.faults.undo("h0:p0-t0-0")
        assert max(came()) >= 64


@pytest.mark.slow
def test_routers_carry_tcp_and_go_round_a_dead_link(tiny: Fabric, names: Names) -> None:
    link = next(link for link in tiny.links if link.kind == "fabric")
    t0 = link.a.node
    far = {host.ports[0].address for host in tiny.hosts if host.rack == 1}
    with FrrFabric.up(tiny, Timers(bfd_interval_ms=100), names=names) as fabric:
        assert hops(fabric, t0) == dict.fromkeys(far, 2)
        assert [carry(fabric, "h0", "h3", plane) for plane in range(tiny.planes)] == [1 << 20] * tiny.planes
        moment = fabric.faults.apply(Fault("blackhole", link.name))
        assert moment.t_before_ns < moment.t_after_ns
        until_hops(fabric, t0, 1)
        assert carry(fabric, "h0", "h3", 0) == 1 << 20
        fabric.faults.undo(link.name)
        fabric.converged()
        assert hops(fabric, t0) == dict.fromkeys(far, 2)


def test_a_daemon_that_cannot_start_is_named(
    tiny: Fabric, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrclab.testbed.frr.daemons.zebra_conf", lambda _: "nonsense of ours\n")
    monkeypatch.setattr("mrclab.testbed.frr.daemons.bgpd_conf", lambda *_: "router bgp none\n")
    with pytest.raises((DaemonError, NotConvergedError), match="p0-t0-0"):
        FrrFabric.up(tiny, Timers(), names=names, timeout_s=1.0)


def test_a_machine_without_frrouting_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="apt install frr"):
        find_daemons(tmp_path)
