"""Real frames over a running fabric: each hop's change of the segment list, and the effect of a cut."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from tests.support.command import Up
from tests.support.forwarding import (
    DST,
    PATIENCE_S,
    SRC,
    Ears,
    arrivals,
    frame,
    send,
)

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def ears(tiny: Up) -> Iterator[Ears]:
    with ExitStack() as stack:
        yield Ears(tiny, stack)


@pytest.mark.parametrize("number", range(4))
def test_the_segment_list_shifts_hop_by_hop(tiny: Up, ears: Ears, number: int) -> None:
    path = tiny.fabric.paths(SRC, DST)[number]
    sent = Ether(frame(tiny, path))
    send(tiny, path, bytes(sent))
    container = path.outer_dst
    for hop, ifname in enumerate(arrivals(tiny, path)):
        got = ears.wait(ifname)
        assert got[IPv6].dst == str(container), f"arriving at {ifname}"
        assert got[IPv6].hlim == 64 - hop
        assert bytes(got[IPv6].payload) == bytes(sent[IPv6].payload)
        container = tiny.fabric.plan.shift(container)
    assert got.dst == tiny.fabric.host(DST).ports[path.plane].mac.hex(":")
    assert ears.heard() == set()


def fault_drops(switch: dict[str, Any]) -> int:
    return int(switch["counters"]["drops"].get("fault_egress", {"packets": 0})["packets"])


def test_a_cut_link_drops_and_nothing_is_rerouted(tiny: Up, ears: Ears) -> None:
    path = tiny.fabric.paths(SRC, DST)[1]
    t0, t1 = path.nodes[1], path.nodes[2]
    tiny.mrclab.ok("fault", "blackhole", f"{t0}:{t1}")
    try:
        before = tiny.mrclab.status()["switches"]
        data = frame(tiny, path)
        send(tiny, path, data)
        send(tiny, path, data)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            after = tiny.mrclab.status()["switches"]
            dropped = fault_drops(after[t0]) - fault_drops(before[t0])
            if dropped >= 2:
                break
            assert time.monotonic() < deadline, "the frames were not counted as dropped"
        assert dropped == 2
        assert ears.heard() == {arrivals(tiny, path)[0]}
        for name in before:
            assert after[name]["counters"]["tx"] == before[name]["counters"]["tx"], f"{name} sent something"
            assert after[name]["drift"] is None
        other = tiny.fabric.paths(SRC, DST)[0]
        send(tiny, other, frame(tiny, other))
        assert ears.wait(arrivals(tiny, other)[-1])[IPv6].hlim == 61
    finally:
        tiny.mrclab.ok("restore", f"{t0}:{t1}")
    ears.heard()
    send(tiny, path, data)
    assert ears.wait(arrivals(tiny, path)[-1])[IPv6].hlim == 61


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("hop_limit", lambda f: f.__setitem__(IPv6, f[IPv6]) or setattr(f[IPv6], "hlim", 1)),
        ("not_our_sid", lambda f: setattr(f[IPv6], "dst", "fcbb:bb00:f400::")),
        ("no_route", lambda f: setattr(f[IPv6], "dst", "fcbb:bb00:400:ffff::")),
        ("not_ipv6", lambda f: setattr(f, "type", 0x88B5)),
    ],
)
def test_what_cannot_be_forwarded_is_counted_by_reason(tiny: Up, reason: str, change: object) -> None:
    path = tiny.fabric.paths(SRC, DST)[0]
    bad = Ether(frame(tiny, path, b"y" * 64))
    change(bad)  # type: ignore[operator]

    def count() -> int:
        drops = tiny.mrclab.status()["switches"][path.nodes[1]]["counters"]["drops"]
        return int(drops.get(reason, {"packets": 0})["packets"])

    before = count()
    send(tiny, path, bytes(bad))
    deadline = time.monotonic() + PATIENCE_S
    while count() != before + 1:
        assert time.monotonic() < deadline
