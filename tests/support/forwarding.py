"""Send frames along one path of a running fabric, and listen with sockets at every port."""

import socket
from contextlib import ExitStack

from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from mrclab.linux.namespaces import inside
from mrclab.topologies import Path
from tests.support.command import Up

ETH_P_ALL = 3
ETH_P_IPV6 = 0x86DD
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
PATIENCE_S = 5.0
SRC, DST = "h0", "h3"


class Ears:
    """A socket on every port of the fabric, which receives all incoming frames."""

    def __init__(self, up: Up, stack: ExitStack) -> None:
        self._sockets: dict[str, socket.socket] = {}
        for switch in up.fabric.switches:
            for port in switch.ports:
                self._open(up.switch_namespace(), port.ifname, stack)
        for host in up.fabric.hosts:
            for nic in host.ports:
                self._open(up.host_namespace(host.name), nic.ifname, stack)

    def _open(self, namespace: str, ifname: str, stack: ExitStack) -> None:
        with inside(namespace):
            ear = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        ear.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        with inside(namespace):
            ear.bind((ifname, ETH_P_ALL))  # a packet socket gets a frame before the switch program does
        self._sockets[ifname] = ear

    def wait(self, ifname: str) -> Ether:
        self._sockets[ifname].settimeout(PATIENCE_S)
        return Ether(self._sockets[ifname].recv(9216))

    def heard(self) -> set[str]:
        """Return the ports that have received frames since the last call."""
        found = set()
        for ifname, ear in self._sockets.items():
            ear.setblocking(False)
            while True:
                try:
                    ear.recv(9216)
                except BlockingIOError:
                    break
                found.add(ifname)
        return found


def frame(up: Up, path: Path, payload: bytes = b"x" * 4096) -> bytes:
    source = up.fabric.host(path.src).ports[path.plane]
    destination = up.fabric.host(path.dst).ports[path.plane]
    return bytes(
        Ether(src=source.mac.hex(":"), dst=source.t0_mac.hex(":"))
        / IPv6(src=str(source.address), dst=str(path.outer_dst), hlim=64, nh=41)
        / IPv6(src=str(source.address), dst=str(destination.address))
        / UDP(sport=0xC000, dport=4791)
        / payload
    )


def send(up: Up, path: Path, data: bytes) -> None:
    with inside(up.host_namespace(path.src)), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as out:
        out.bind((up.fabric.host(path.src).ports[path.plane].ifname, ETH_P_IPV6))
        out.send(data)


def arrivals(up: Up, path: Path) -> list[str]:
    """Return the interfaces at which a frame comes in on its way along a path."""
    names = []
    for before, node in zip(path.nodes, path.nodes[1:], strict=False):
        if node == path.dst:
            names.append(up.fabric.host(node).ports[path.plane].ifname)
        else:
            names.append(up.fabric.switch(node).port_to(before).ifname)
    return names
