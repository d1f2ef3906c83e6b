"""ECMP: a flow keeps one path, flows spread by weight, and targets choose paths as the interpreter does."""

from __future__ import annotations

import random
import struct
from collections import Counter
from pathlib import Path

import pytest

from mrclab.switches.p4_model import Exact, Interpreter, Prefix, Profile, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.selector_switch import Switch, change, put_in
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    JSON,
    P4INFO,
    Namespace,
    compare_frames,
    insert,
    read_p4info,
    sid,
    three_ports,
)

pytestmark = pytest.mark.parallel

ROUTE, WAYS, SEND = "MrcIngress.ecmp.route", "MrcIngress.ecmp.ways", "MrcIngress.ecmp.send_to"
READ, UPLINK = "MrcIngress.ecmp.read_ev", "MrcIngress.ecmp.uplink"
SEGMENTS = "MrcIngress.micro_segment"
KINDS = ("udp", "udp", "udp", "inner", "other")
NET = 0xFD00 << 112
NEAR = NET | 5 << 64 | 1


def plain_frame(dst: int, source: int, label: int, hops: int = 64, kind: str = "udp") -> bytes:
    """Return a frame of a flow: UDP in IPv6, or in IPv6 in IPv6, or a protocol without ports."""
    data = struct.pack("!HHHH", source, 4791, 8 + 12 + 40, 0) + bytes(12) + b"payload!" * 5
    addresses = (NET | 77).to_bytes(16, "big") + dst.to_bytes(16, "big")
    next_hdr = {"udp": 17, "inner": 41, "other": 59}[kind]
    if kind == "inner":
        data = struct.pack("!IHBB", 6 << 28 | 3, len(data), 17, 60) + addresses + data
    head = struct.pack("!IHBB", 6 << 28 | label, len(data), next_hdr, hops)
    return b"\x02" * 6 + b"\x04" * 6 + b"\x86\xdd" + head + addresses + data


def model_of(group: list[int]) -> Interpreter:
    rules = {
        ROUTE: [Rule((Prefix(NET, 16),), group=1), Rule((Prefix(NEAR, 128),), member=2)],
        f"{SEGMENTS}.my_sid": [Rule((Prefix(sid(1), 48),), f"{SEGMENTS}.un")],
        f"{SEGMENTS}.next_hop": [Rule((Prefix(sid(2), 48),), f"{SEGMENTS}.forward", (2, 10, 20))],
    }
    model = Interpreter(read_program(JSON.read_bytes()), rules)
    model.profiles[WAYS] = Profile({p: (SEND, (p, 100 + p, 200 + p)) for p in (1, 2, 3)}, {1: group})
    return model


@pytest.mark.slow
def test_a_flow_keeps_its_way_and_flows_spread_by_weight() -> None:
    model, rng, seen = model_of([2, 3, 3]), random.Random(1), Counter[int]()
    for _ in range(3000):
        frame = plain_frame(NET | rng.getrandbits(60), 0xC000 | rng.getrandbits(14), rng.getrandbits(20))
        ((port, out),) = model.run(1, frame)
        assert model.run(1, frame) == [(port, out)]
        assert out[21] == 63
        seen[port] += 1
    assert set(seen) == {2, 3}
    assert abs(seen[3] / 3000 - 2 / 3) < 0.05


@pytest.mark.parametrize("what", ["source", "label", "dst", "kind"])
def test_every_part_of_a_flow_counts(what: str) -> None:
    model, ports = model_of([1, 2, 3]), set()
    for i in range(40):
        flow = {"dst": NET | 9, "source": 0xC000, "label": 7, "kind": "inner"}
        if what != "kind":
            flow[what] = {"dst": NET | i, "source": 0xC000 + i, "label": i}[what]
        else:
            flow["source"] = 0xC000 + i  # the port of the inner UDP header
        ((port, _),) = model.run(1, plain_frame(**flow))  # type: ignore[arg-type]
        ports.add(port)
    assert ports == {1, 2, 3}


def test_without_a_route_frames_are_dropped_and_counted() -> None:
    model = model_of([3])
    assert model.run(1, plain_frame(0x20 << 120, 1, 1)) == []
    assert model.counters["MrcIngress.drops", 3].packets == 1
    ((port, _),) = model.run(1, plain_frame(NEAR, 1, 1))
    assert port == 2


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("choice", TARGETS)
@pytest.mark.parametrize(("shift", "mask"), [(18, 0x3FF), (0, 0xF), (31, 0xFFFF), (9, 0x1FF)])
def test_targets_read_the_bits_of_an_ev_as_the_interpreter(
    choice: str, shift: int, mask: int, namespace: Namespace, tmp_path: Path
) -> None:
    rng = random.Random(shift)
    with three_ports(choice, namespace, tmp_path) as client:
        s = Switch(client, read_p4info(P4INFO), JSON.read_bytes())
        s.model.rules[ROUTE] = [Rule((Prefix(NET, 16),), member=512)]
        s.model.profiles[WAYS] = Profile()
        client.write(put_in(s.member(WAYS, 512, READ, shift, mask)))
        client.write(insert(s.entry(ROUTE, {"hdr.ipv6.dst_addr": (NET, 16)}, member=512)))
        numbers = [n for n in (0, 1, 2, 3, 7, 250, 0x1FE, 1023) if n & mask == n]
        for number in numbers:
            args = (1 + number % 3, 100 + number, 200 + number)
            s.model.rules.setdefault(UPLINK, []).append(Rule((Exact(number),), SEND, args))
            client.write(insert(s.names.entry(UPLINK, {"uplink": number}, SEND, *args)))
        evs = [rng.getrandbits(32) for _ in range(30)]
        wide = 0xFFFFFFFF
        evs += [
            rng.getrandbits(32) & ~(mask << shift) & wide | (rng.choice(numbers) << shift) & wide
            for _ in range(50)
        ]
        frames = [
            plain_frame(NET | 9, ev & 0xFFFF, ev >> 16 | rng.getrandbits(4) << 16, kind=rng.choice(KINDS))
            for ev in evs
        ]
        compare_frames(namespace, s.model, frames)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("choice", TARGETS)
def test_targets_choose_as_the_interpreter(choice: str, namespace: Namespace, tmp_path: Path) -> None:
    rng = random.Random(5)

    def frames(count: int) -> list[bytes]:
        return [
            plain_frame(
                rng.choice(
                    [NET | rng.getrandbits(70), NET | 9, NEAR, 1 << 127, sid(1, 2), sid(1, 7), sid(1, 0xFD00)]
                ),
                rng.choice([0xC000, rng.getrandbits(16)]),
                rng.choice([0, rng.getrandbits(20)]),
                rng.choice([64, 64, 2, 1, 0]),
                rng.choice(["udp", "inner", "other"]),
            )
            for _ in range(count)
        ]

    with three_ports(choice, namespace, tmp_path) as client:
        s = Switch(client, read_p4info(P4INFO), JSON.read_bytes())
        s.model = model_of([1, 2, 3])
        for port in (1, 2, 3):
            client.write(put_in(s.member(WAYS, port, SEND, port, 100 + port, 200 + port)))
        client.write(put_in(s.group(WAYS, 1, {1: 1, 2: 1, 3: 1})))
        client.write(insert(s.entry(ROUTE, {"hdr.ipv6.dst_addr": (NET, 16)}, group=1)))
        client.write(insert(s.entry(ROUTE, {"hdr.ipv6.dst_addr": (NEAR, 128)}, member=2)))
        for table in (f"{SEGMENTS}.my_sid", f"{SEGMENTS}.next_hop"):
            for r in s.model.rules[table]:
                (prefix,) = r.key
                assert isinstance(prefix, Prefix)
                key = {"hdr.ipv6.dst_addr": (prefix.value, prefix.length)}
                client.write(insert(s.names.entry(table, key, r.action, *r.args)))
        compare_frames(namespace, s.model, frames(60))
        client.write(change(s.group(WAYS, 1, {1: 1, 3: 1})))  # port 2 is withdrawn
        s.model.profiles[WAYS].groups[1] = [1, 3]
        compare_frames(namespace, s.model, frames(40))
        client.write(change(s.group(WAYS, 1, {1: 1, 2: 1, 3: 2})))  # port 2 is back, with other weights
        s.model.profiles[WAYS].groups[1] = [1, 2, 3, 3]
        compare_frames(namespace, s.model, frames(60))
