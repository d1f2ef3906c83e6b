"""Both targets, compared with the interpreter on random frames and entries over real interfaces.

The comparison with `bmv2` shows that the interpreter is right. The comparison with `ebpf` shows that our
target is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrclab.switches.p4_model import Between, Exact, Interpreter, Masked, Prefix, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import (
    DATA,
    JSON,
    P4INFO,
    Names,
    Namespace,
    compare_frames,
    insert,
    ipv6_frame,
    ipv6_packet,
    list_frame,
    mrc_frame,
    probe_frame,
    read_p4info,
    sid,
    srh,
    three_ports,
    without_times,
)

pytestmark = [pytest.mark.root, pytest.mark.parallel]


def bits(values: list[tuple[int, int]], tail: bytes) -> bytes:
    number = size = 0
    for value, width in values:
        number, size = number << width | value & ((1 << width) - 1), size + width
    return number.to_bytes(size // 8, "big") + tail


def arith_frames(rng: random.Random) -> list[bytes]:
    widths = (48, 48, 9, 20, 3, 16, 16, 128, 128)
    out = []
    for _ in range(600):
        values = [
            (rng.choice([rng.getrandbits(w), (1 << w) - 1, 1 << (w - 1), 0, rng.getrandbits(5)]), w)
            for w in widths
        ]
        head = [(rng.randrange(18), 8), (rng.choice([rng.randrange(140), rng.randrange(20)]), 8)]
        out.append(bits(head + values, bytes(rng.randrange(40))))
    return out


def stacks_frames(rng: random.Random) -> list[bytes]:
    out = []
    for _ in range(500):
        frame = b"\x02" * 5 + bytes([rng.randrange(9)]) + b"\x04" * 5 + bytes([4 | rng.randrange(2)])
        kind = rng.choice([0x8847, 0x8847, 0x88AA, 0x1234])
        if rng.random() < 0.5:
            frame += b"\x81\x00" + (0xE000 | rng.choice([5, rng.randrange(4096)])).to_bytes(2, "big")
            kind = rng.choice([0x8847, 0x0800, 0x08FF, 0x1234])
        frame += kind.to_bytes(2, "big")
        labels = rng.randrange(6)
        for i in range(labels):
            last = i == labels - 1 and rng.random() < 0.9
            label = rng.choice([0, 13, 77, 0xFFFFF]) if rng.random() < 0.3 else 500 + i
            frame += (label << 12 | last << 8 | 64 - i).to_bytes(4, "big")
        out.append(frame + bytes(i * 11 & 0xFF for i in range(rng.choice([30, 41, 50, 1400, 4000]))))
    return out


def match_frames(rng: random.Random) -> list[bytes]:
    out = []
    for _ in range(500):
        values = [
            (rng.randrange(8), 8),
            (rng.choice([rng.randrange(512), rng.getrandbits(16)]), 16),
            (rng.choice([rng.randrange(16), rng.randrange(16) << 28, rng.getrandbits(32)]), 32),
            (rng.choice([rng.randrange(6), rng.randrange(512)]), 9),
            (rng.randrange(3), 7),
            (rng.choice([0, rng.getrandbits(64)]), 64),
            (rng.getrandbits(32), 32),
        ]
        out.append(bits(values, b"payload" * rng.randrange(4)))
    return out


def index_of(frame: bytes) -> int:
    """Return the index into the 2,000 counters `seen`. With a larger index, BMv2 crashes."""
    return 4 * (int.from_bytes(frame[7:9], "big") >> 7)


def registers_frames(rng: random.Random) -> list[bytes]:
    out = []
    for _ in range(300):
        values = [(rng.randrange(6), 8), (rng.randrange(64), 32), (rng.getrandbits(64), 64)]
        out.append(bits([*values, (rng.getrandbits(100), 100), (0, 4)], b"tail"))
    return out


def mrc_frames(rng: random.Random) -> list[bytes]:
    out = []
    for _ in range(300):
        usids = [rng.choice([0, 1, 1, 1, 2, 3, 9]) for _ in range(rng.randrange(7))]
        frame = ipv6_frame(
            sid(*usids), rng.choice([55, 60, 300, 1500, 4200, 8900]), rng.choice([0, 1, 2, 64])
        )
        cut = rng.choice([len(frame), len(frame), 33, 20])
        out.append(frame[:cut])
    return out


ACTIONS: list[tuple[str, Any]] = [
    ("I.mark", lambda r: (r.randrange(4), r.randrange(256))),
    ("I.note", lambda r: ()),
    ("I.wide", lambda r: (r.getrandbits(64), r.getrandbits(7))),
    ("I.leave", lambda r: ()),
]


def match_rules(rng: random.Random) -> dict[str, list[Rule]]:
    def action(count: int) -> tuple[str, tuple[int, ...]]:
        name, args = rng.choice(ACTIONS[:count])
        return name, args(rng)

    def masked(value: int, width: int) -> Masked:
        mask = rng.choice([0, 1, 3, 0xFF, (1 << width) - 1, 0xF << (width - 4)])
        return Masked(value & mask, mask)

    def span() -> Between:
        low, high = sorted((rng.randrange(512), rng.getrandbits(16)))
        return Between(low, high)

    def lpm() -> Prefix:
        length = rng.randrange(33)
        return Prefix((rng.randrange(16) << 28 | rng.randrange(16)) >> (32 - length) << (32 - length), length)

    out: dict[str, list[Rule]] = {"I.pair": [], "I.prefix": [], "I.scan": [], "I.span": []}
    for i in range(16):
        exact = (Exact(rng.randrange(8)), Exact(rng.randrange(6)))
        scan = (masked(rng.randrange(512), 16), masked(rng.randrange(16) << 28, 32), Exact(rng.randrange(8)))
        for name, key, count in (
            ("I.pair", exact, 4),
            ("I.prefix", (Exact(rng.randrange(3)), lpm()), 2),
            ("I.scan", scan, 3),
            ("I.span", (span(), rng.choice([Masked(0, 0), Masked(rng.randrange(8), 0xFF)])), 2),
        ):
            rule = Rule(key, *action(count), i + 1 if name in ("I.scan", "I.span") else 0)
            if all(r.key != rule.key for r in out[name]):
                out[name].append(rule)
    return out


def stacks_rules(rng: random.Random) -> dict[str, list[Rule]]:
    actions = ("I.untag", "I.pop", "I.pop_two", "I.copy", "I.stop")
    rules = [Rule((Exact(i + 1),), a) for i, a in enumerate(actions)]
    return {"I.act": [*rules, Rule((Exact(6),), "I.tag", (0x123,)), Rule((Exact(7),), "I.push", (0xABCDE,))]}


def mrc_rules(rng: random.Random) -> dict[str, list[Rule]]:
    control = "MrcIngress.micro_segment"
    hops = [
        Rule((Prefix(sid(u), 48),), f"{control}.forward", (p, 0x0A0000000000 + p, 0x0B0000000000 + p))
        for u, p in ((2, 2), (3, 3))
    ]
    fault = Rule((Exact(3),), "MrcEgress.egress_fault.blackhole")
    return {
        f"{control}.my_sid": [Rule((Prefix(sid(1), 48),), f"{control}.un")],
        f"{control}.next_hop": hops,
        "MrcEgress.egress_fault.fault": [fault],
    }


def queue_rules(rng: random.Random) -> dict[str, list[Rule]]:
    """Return rules with which the first frame makes a port busy for longer than the test (64 us per byte)."""
    queue, top = "MrcIngress.port_queue", 2**32 - 1
    classes = [(4, "trimmable"), (8, "trimmable"), (12, "cut"), (46, "urgent")]
    return {
        **mrc_rules(rng),
        "MrcEgress.egress_fault.fault": [],
        f"{queue}.traffic_class": [Rule((Exact(dscp),), f"{queue}.{name}") for dscp, name in classes],
        f"{queue}.port_queue": [
            Rule((Exact(port),), f"{queue}.send_at", (top, top, 0, top, dscp))
            for port, dscp in ((2, 12), (3, 16))
        ],
        "MrcIngress.ecn_mark.marking": [Rule((Exact(2),), "MrcIngress.ecn_mark.red", (0, 1))],
    }


def queue_frames(rng: random.Random) -> list[bytes]:
    """Return frames of all classes. The first frames keep both ports busy for 3.4 s, the limit of the test.

    Frames that are not trimmed must be short, because a frame's wait in a queue is at most 4.3 s.
    """
    first = [mrc_frame(sid(1, port), 8800, dscp=46, ecn=2) for port in (2, 3)] * 6
    return first + [_queue_frame(rng, rng.choice([4, 8, 12, 46])) for _ in range(150)]


def _queue_frame(rng: random.Random, dscp: int) -> bytes:
    return mrc_frame(
        sid(1, rng.choice([2, 3])),
        rng.choice([0, 1, 4, 8, 500, 1300, 4096] if dscp in (4, 8) else [0, 1, 4, 8, 100]),
        dscp=dscp,
        ecn=rng.randrange(4),
        stamped=rng.random() < 0.5,
        imm=rng.random() < 0.5,
    )


def list_rules(rng: random.Random) -> dict[str, list[Rule]]:
    """Return rules for every kind of segment with every flavour."""
    control = "MrcIngress.micro_segment"
    rules = mrc_rules(rng)
    for flavours in range(4):
        args = (flavours & 1, flavours >> 1)
        rules[f"{control}.my_sid"] += [
            Rule((Prefix(sid(0x10 + flavours), 48),), f"{control}.un_flavored", args),
            Rule((Prefix(sid(9, 0xE0 + flavours), 128),), f"{control}.end", args),
            Rule((Prefix(sid(9, 0xD0 + flavours), 128),), f"{control}.end_x", (*args, 3, 10, 20)),
        ]
    rules["MrcEgress.egress_fault.fault"] = []
    return rules


def list_frames(rng: random.Random) -> list[bytes]:
    ends = [(1,), *((0x10 + f,) for f in range(4)), *((9, k + f) for k in (0xD0, 0xE0) for f in range(4))]
    out = []
    for _ in range(250):
        segments = [sid(rng.choice([2, 3])) | rng.getrandbits(16) for _ in range(rng.randrange(10))]
        carries = rng.choice([41, 41, 17])
        carried = bytes(rng.randrange(8, 900))
        if carries == 41:
            carried = ipv6_packet(sid(rng.choice([2, 3])), carried, ecn=rng.randrange(4))
        left = rng.choice([0, 1, 1, len(segments), rng.randrange(11)])
        tlvs = rng.choice([b"", b"", b"", b"\4\6" + bytes(6), b"\4\16" + bytes(14)])
        header = srh(segments, left, carries, tlvs) if rng.random() < 0.9 else b""
        next_hdr = 43 if header else carries
        frame = list_frame(sid(*rng.choice(ends)), header, carried, next_hdr, ecn=rng.randrange(4))
        out.append(frame[: rng.choice([len(frame), len(frame), len(frame), max(60, len(frame) - 70)])])
    return out


def probe_rules(rng: random.Random) -> dict[str, list[Rule]]:
    record = Rule((Exact(1),), "MrcIngress.probe.record", (0x1801,))
    return {**mrc_rules(rng), "MrcIngress.probe.probe_version": [record]}


def probe_frames(rng: random.Random) -> list[bytes]:
    return [
        probe_frame(
            sid(1, rng.choice([2, 3])),
            capacity=rng.randrange(10),
            used=rng.randrange(9),
            version=rng.choice([1, 1, 1, 0]),
            encapsulated=rng.random() < 0.7,
        )[: rng.choice([1000, 1000, 150])]
        for _ in range(150)
    ]


PROGRAMS: dict[str, tuple[Path, Path, Any, Any]] = {
    "arith": (DATA / "arith.json", DATA / "arith.p4info.txtpb", lambda r: {}, arith_frames),
    "stacks": (DATA / "stacks.json", DATA / "stacks.p4info.txtpb", stacks_rules, stacks_frames),
    "match": (DATA / "match.json", DATA / "match.p4info.txtpb", match_rules, match_frames),
    "registers": (DATA / "registers.json", DATA / "registers.p4info.txtpb", lambda r: {}, registers_frames),
    "mrc": (JSON, P4INFO, mrc_rules, mrc_frames),
    "queue": (JSON, P4INFO, queue_rules, queue_frames),
    "lists": (JSON, P4INFO, list_rules, list_frames),
    "probe": (JSON, P4INFO, probe_rules, probe_frames),
}
# Functions that remove allowed differences between a target and the interpreter: the times in a probe.
VIEWS: dict[str, Callable[[bytes], bytes]] = {"probe": without_times}


def as_match(m: Exact | Prefix | Masked | Between, kind: int) -> Any:
    """Return a key element for `Names.entry`, or None if P4Runtime forbids the field."""
    match m:
        case Exact(value):
            return value
        case Prefix(value, length):
            return (value, length) if length else None
        case Masked(value, mask) if kind == 6:  # an optional match
            return ("?", value) if mask else None
        case Masked(value, mask):
            return (value, "&", mask) if mask else None
        case Between(low, high):
            return None if (low, high) == (0, 0xFFFF) else (low, "..", high)


@pytest.mark.slow
@pytest.mark.parametrize("choice", TARGETS)
@pytest.mark.parametrize("program", list(PROGRAMS))
@pytest.mark.parametrize("seed", [1, 2])
def test_random_frames(choice: str, program: str, seed: int, namespace: Namespace, tmp_path: Path) -> None:
    json, info_path, make_rules, make_frames = PROGRAMS[program]
    view = VIEWS.get(program, bytes)
    rng = random.Random(seed)
    rules, frames = make_rules(rng), make_frames(rng)
    if (choice, program) == ("bmv2", "match"):
        frames = [frame for frame in frames if index_of(frame) < 2000]
    model = Interpreter(read_program(json.read_bytes()), rules)
    info = read_p4info(info_path)
    names = Names(info)
    with three_ports(choice, namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline(json.read_bytes(), info)
        for table, entries in rules.items():
            fields = names.tables[table].match_fields
            for r in entries:
                key = {f.name: as_match(m, f.match_type) for f, m in zip(fields, r.key, strict=True)}
                key = {k: v for k, v in key.items() if v is not None}
                client.write(insert(names.entry(table, key, r.action, *r.args, priority=r.priority)))
        compare_frames(namespace, model, frames, view)
