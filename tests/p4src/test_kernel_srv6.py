"""Our switches and Linux routers in one SRv6 path, both ways: seg6 encapsulates, seg6local unpacks.

    a ---- k1 ---- s1 ---- k2 ---- s2 ---- b

a and b are hosts, k1 and k2 are routers of the Linux kernel, and s1 and s2 are our switches. So k2 is between
two of our switches, and s1 is between two kernel routers.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address

import pytest
from finsy.proto import p4r

from mrclab.linux.rtnetlink import opened_ethtool, switch_off
from mrclab.switches.spec import SwitchSpec
from mrclab.switches.target import select_target
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    JSON,
    MY_SID,
    NEXT_HOP,
    P4INFO,
    Client,
    Names,
    Namespace,
    forwarded,
    insert,
    ip,
    read_p4info,
)

pytestmark = [pytest.mark.root, pytest.mark.parallel]

CONTROL = "MrcIngress.micro_segment"
A, B, K1, K2, S1, S2 = (
    "fcbb:bb00:a",
    "fcbb:bb00:b",
    "fcbb:bb00:11",
    "fcbb:bb00:12",
    "fcbb:bb00:1",
    "fcbb:bb00:2",
)
# SIDs of each locator: e0 is End, e1 End with PSP, e2 End with USD, and d0 (only ours) End.X to the right.
HOST_A, HOST_B = "fd00:a::1", "fd00:b::1"
MACS = {
    "a-r": 0x0200000000A1, "k1-l": 0x020000001101, "k1-r": 0x020000001102, "s1-l": 0x020000000101,
    "s1-r": 0x020000000102, "k2-l": 0x020000001201, "k2-r": 0x020000001202, "s2-l": 0x020000000201,
    "s2-r": 0x020000000202, "b-l": 0x0200000000B1,
}  # fmt: skip
KERNELS = {"a": ["a-r"], "b": ["b-l"], "k1": ["k1-l", "k1-r"], "k2": ["k2-l", "k2-r"]}
CHAIN = [("a-r", "k1-l"), ("k1-r", "s1-l"), ("s1-r", "k2-l"), ("k2-r", "s2-l"), ("s2-r", "b-l")]
PORTS = {"l": 1, "r": 2}


@dataclass
class Chain:
    """The namespace of each node of the chain. s1 and s2 share a namespace."""

    of: dict[str, Namespace]

    def route(self, node: str, *words: str) -> None:
        ip("-n", self.of[node].name, "-6", "route", "replace", *words)

    def send(self, origin: str, segments: list[str], mode: str = "encap") -> None:
        """Send to the other host over these segments, and wait for the packet there."""
        to, here, there = (HOST_B, HOST_A, "b") if origin == "a" else (HOST_A, HOST_B, "a")
        dev = "a-r" if origin == "a" else "b-l"
        self.route(origin, f"{to}/128", "encap", "seg6", "mode", mode, "segs", ",".join(segments), "dev", dev)

        def opened_at(address: str) -> socket.socket:
            opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            opened.bind((address, 0))
            opened.settimeout(5)
            return opened

        with (
            self.of[there].run(lambda: opened_at(to)) as far,
            self.of[origin].run(lambda: opened_at(here)) as near,
        ):
            text = f"{origin} {mode} {segments}".encode()
            near.sendto(text, far.getsockname()[:2])
            got, (sender, *_) = far.recvfrom(2000)
            assert (got, sender) == (text, here)

    def last_header(self, origin: str, segments: list[str], mode: str = "encap") -> int:
        """Send as `send` does. Return the type of the header that then follows the outer IPv6 header."""
        there, ifname = ("b", "b-l") if origin == "a" else ("a", "a-r")
        with self.of[there].packet_socket(ifname) as ear:
            self.send(origin, segments, mode)
            while True:
                frame = ear.recv(2000)
                if frame[12:14] == b"\x86\xdd" and b"encap" in frame:
                    return frame[20]


def plug(of: dict[str, Namespace]) -> None:
    for left, right in CHAIN:
        one, two = of[left.split("-")[0]].name, of[right.split("-")[0]].name
        ip("-n", one, "link", "add", left, "type", "veth", "peer", "name", right, "netns", two)
    for end, mac in MACS.items():
        ns = of[end.split("-")[0]]
        ip("-n", ns.name, "link", "set", end, "address", mac.to_bytes(6, "big").hex(":"), "up")


def kernel(ns: Namespace, ends: list[str], forwarding: bool) -> None:
    """Switch SRv6 on for interfaces of a namespace, and set its neighbours' MAC addresses."""
    here = "/proc/sys/net/ipv6/conf"
    settings = [f"echo {int(forwarding)} > {here}/all/forwarding", f"echo 1 > {here}/all/seg6_enabled"]
    settings += [f"echo 1 > {here}/{end}/seg6_enabled" for end in ends]
    ns.run(lambda: subprocess.run(["sh", "-c", "; ".join(settings)], check=True))
    peers = dict(CHAIN) | {right: left for left, right in CHAIN}
    for end in ends:
        mac = MACS[peers[end]].to_bytes(6, "big").hex(":")
        gateway = "fe80::1" if end.endswith("-l") else "fe80::2"
        ip("-n", ns.name, "neigh", "add", gateway, "lladdr", mac, "dev", end, "nud", "permanent")


def behind(chain: Chain, node: str, end: str, *prefixes: str) -> None:
    gateway = "fe80::1" if end.endswith("-l") else "fe80::2"
    for prefix in prefixes:
        chain.route(node, prefix, "via", gateway, "dev", end)


def configure(chain: Chain) -> None:
    def slash(*locators: str) -> list[str]:
        return [f"{locator}::/48" for locator in locators]

    for node, ends in KERNELS.items():
        kernel(chain.of[node], ends, forwarding=node.startswith("k"))
    for node, locator, host, end in (("a", A, HOST_A, "a-r"), ("b", B, HOST_B, "b-l")):
        name = chain.of[node].name
        ip("-n", name, "addr", "add", f"{host}/128", "dev", "lo")
        chain.of[node].run(lambda h=host: subprocess.run(["ip", "sr", "tunsrc", "set", h], check=True))  # type: ignore[misc]
        local = f"{locator}::/48"
        chain.route(node, local, "encap", "seg6local", "action", "End.DT6", "table", "255", "dev", end)
        behind(chain, node, end, *slash(*{A, B, K1, K2, S1, S2} - {locator}))
    for node, locator, left, right in (("k1", K1, [A], [S1, S2, K2, B]), ("k2", K2, [A, K1, S1], [S2, B])):
        behind(chain, node, f"{node}-l", *slash(*left))
        behind(chain, node, f"{node}-r", *slash(*right))
        dev = ("dev", f"{node}-r")
        seg6local = ("encap", "seg6local", "action", "End")
        shift = ("flavors", "next-csid", "lblen", "32", "nflen", "16")
        chain.route(node, f"{locator}::/48", *seg6local, *shift, *dev)
        chain.route(node, f"{locator}:e0::/128", *seg6local, *dev)
        chain.route(node, f"{locator}:e1::/128", *seg6local, "flavors", "psp", *dev)


def program(client: Client, names: Names, node: str) -> None:
    """Write the SIDs of one of our switches, and its neighbours."""
    locator = {"s1": S1, "s2": S2}[node]
    peers = {"s1": {"l": "k1-r", "r": "k2-l"}, "s2": {"l": "k2-r", "r": "b-l"}}[node]

    left, right = {"s1": ([A, K1], [B, K2, S2]), "s2": ([A, K1, S1, K2], [B])}[node]

    def way(side: str) -> tuple[int, int, int]:
        return PORTS[side], MACS[f"{node}-{side}"], MACS[peers[side]]

    def entry(table: str, prefix: str, action: str, *args: int) -> p4r.Update:
        address, _, length = prefix.partition("/")
        key = {"hdr.ipv6.dst_addr": (int(IPv6Address(address)), int(length))}
        return insert(names.entry(table, key, f"{CONTROL}.{action}", *args))

    client.write(
        entry(MY_SID, f"{locator}::/48", "un"),
        entry(MY_SID, f"{locator}:e0::/128", "end", 0, 0),
        entry(MY_SID, f"{locator}:e1::/128", "end", 1, 0),
        entry(MY_SID, f"{locator}:e2::/128", "end", 0, 1),
        entry(MY_SID, f"{locator}:d0::/128", "end_x", 0, 0, *way("r")),
        *(entry(NEXT_HOP, f"{x}::/48", "forward", *way("l")) for x in left),
        *(entry(NEXT_HOP, f"{x}::/48", "forward", *way("r")) for x in right),
        entry(NEXT_HOP, f"{HOST_A}/128", "forward", *way("l")),
        entry(NEXT_HOP, f"{HOST_B}/128", "forward", *way("r")),
    )


def missing(ns: Namespace) -> str | None:
    """Return the part of SRv6 that this kernel or its `ip` lacks, or None if no part is missing."""
    shift = ("flavors", "next-csid", "lblen", "32", "nflen", "16")
    for words in (
        ("fd01::/64", "encap", "seg6", "mode", "encap.red", "segs", "fd00::2"),
        ("fd02::/48", "encap", "seg6local", "action", "End", *shift),
        ("fd03::/48", "encap", "seg6local", "action", "End", "flavors", "psp"),
        ("fd04::/48", "encap", "seg6local", "action", "End.DT6", "table", "255"),
    ):
        command = ["ip", "-n", ns.name, "-6", "route", "add", *words, "dev", "lo"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{' '.join(words[1:])}: {done.stderr.strip().splitlines()[0]}"
    return None


@pytest.fixture(scope="module", params=TARGETS)
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    ours = Namespace()
    of = {"s1": ours, "s2": ours, **{node: Namespace() for node in ("a", "k1", "k2", "b")}}
    target = select_target(request.param)
    try:
        lacks = missing(of["a"])
        if lacks is not None:
            pytest.skip(f"no SRv6 in this kernel or iproute2: {lacks}")
        made = Chain(of)
        plug(of)
        for node, ends in (
            ("a", ["a-r"]),
            ("b", ["b-l"]),
            ("k1", ["k1-l", "k1-r"]),
            ("k2", ["k2-l", "k2-r"]),
        ):

            def no_offloads(ends: list[str] = ends) -> None:
                with opened_ethtool() as ethtool:
                    switch_off(ethtool, ends)

            of[node].run(no_offloads)
        configure(made)
        specs = [
            SwitchSpec(s, i, {p: f"{s}-{side}" for side, p in PORTS.items()})
            for i, s in ((1, "s1"), (2, "s2"))
        ]
        info, json = read_p4info(P4INFO), JSON.read_bytes()
        logs = tmp_path_factory.mktemp("switches")
        for running in target.start(specs, netns=ours.name, log_dir=logs):
            with forwarded(ours, running.grpc_address) as address:
                client = Client(address, running.device_id)
                client.become_primary()
                client.set_pipeline(json, info)
                program(client, Names(info), running.name)
                client.close()
        yield made
    finally:
        target.stop()
        for ns in set(of.values()):
            ns.delete()


@pytest.mark.parametrize("mode", ["encap", "encap.red"])
def test_a_container_visits_kernels_and_ours_in_turn(chain: Chain, mode: str) -> None:
    """The test runs with and without a routing header next to the container."""
    chain.send("a", ["fcbb:bb00:11:1:12:2:b::"], mode)
    chain.send("b", ["fcbb:bb00:2:12:1:11:a::"], mode)


def test_a_list_of_containers_goes_on_where_one_is_used_up(chain: Chain) -> None:
    """The first container is used up at one of our switches, or at a router that is a Linux kernel."""
    for mode in ("encap", "encap.red"):
        chain.send("a", ["fcbb:bb00:11:1::", "fcbb:bb00:12:2:b::"], mode)
        chain.send("b", ["fcbb:bb00:2::", "fcbb:bb00:12::", "fcbb:bb00:1:11:a::"], mode)


def test_a_classic_list_with_an_end_at_every_node(chain: Chain) -> None:
    for mode in ("encap", "encap.red"):
        chain.send("a", [f"{K1}:e0::", f"{S1}:e0::", f"{K2}:e0::", f"{S2}:d0::", f"{B}::"], mode)
        chain.send("b", [f"{S2}:e0::", f"{K2}:e0::", f"{S1}:e0::", f"{K1}:e0::", f"{A}::"], mode)


def test_the_last_but_one_takes_the_list_out(chain: Chain) -> None:
    """The routing header is removed (PSP) by our switch in one direction, by the kernel in the other."""
    assert chain.last_header("a", [f"{S1}:e0::", f"{S2}:e1::", f"{B}::"]) == 41
    assert chain.last_header("a", [f"{S1}:e1::", f"{S2}:e0::", f"{B}::"]) == 43
    assert chain.last_header("b", [f"{S2}:e0::", f"{K2}:e0::", f"{S1}:e0::", f"{K1}:e1::", f"{A}::"]) == 41


def test_ours_unpack_for_a_host_that_knows_no_segments(chain: Chain) -> None:
    """Our switch unpacks the inner packet (USD), with or without a segment list in the outer packet."""
    assert chain.last_header("a", [f"{K1}:e0::", f"{S1}:e0::", f"{K2}:e0::", f"{S2}:e2::"]) == 17
    assert chain.last_header("a", [f"{S1}:e0::", f"{K2}:e1::", f"{S2}:e2::"], "encap.red") == 17
