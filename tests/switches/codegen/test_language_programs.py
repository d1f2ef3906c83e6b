"""Programs with value sets, unions, fields of variable length and computed indices, as p4c compiles them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from finsy.proto import p4r

from mrclab.switches.ebpf.runtime.value_sets import Ends
from mrclab.switches.hashes import HASHES
from mrclab.switches.p4_model import Exact, Interpreter, Rule
from mrclab.switches.v1model.bmv2_json import read_program
from tests.support.switch_bench import Bench, bench_of
from tests.support.switch_fixtures import TARGETS
from tests.support.switch_kit import DATA, Namespace, compare_frames, read_p4info, three_ports

pytestmark = [pytest.mark.root, pytest.mark.parallel]
Frames = Callable[[random.Random], bytes]


def ipv4(rng: random.Random, words: int, protocol: int) -> bytes:
    """Return a header with this many words of options. Three of four have a correct checksum."""
    fixed = struct.pack(
        "!BBHHHBB", 0x40 | 5 + words, 0, 999, rng.randrange(65536), 0, rng.randrange(3), protocol
    )
    rest = rng.randbytes(8) + rng.randbytes(4 * words)
    right = HASHES["csum16"](fixed + rest) ^ (rng.random() < 0.25)
    return fixed + right.to_bytes(2, "big") + rest


def tlv(rng: random.Random) -> bytes:
    bits = rng.choice([0, 8, 16, 40, 72, 72, 80, 12])
    return bytes([rng.choice([1, 200]), bits]) + rng.randbytes(bits // 8) + bytes([rng.choice([0, 1, 1, 2])])


def varbits(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    head = struct.pack("!BBHB", rng.randrange(10), kind, rng.choice([0, 8, 80, 400, 13, 2000]), 0)
    body = b""
    if kind == 1:
        body = ipv4(rng, rng.randrange(11), rng.choice([6, 7, 8]))
    body += b"".join(tlv(rng) for _ in range(rng.randrange(5)))
    return head + body + rng.randbytes(rng.choice([60, 61, 90]))


def unions(rng: random.Random) -> bytes:
    return bytes([rng.randrange(8), rng.randrange(6)]) + rng.choice([bytes(4), rng.randbytes(5)]) + bytes(58)


def indices(rng: random.Random) -> bytes:
    head = bytes([rng.randrange(9), rng.randrange(256), rng.randrange(256)]) + bytes(4)
    cells = rng.randrange(4)
    body = b"".join(
        bytes([rng.randrange(6)]) + rng.randbytes(2) + bytes([rng.randrange(128) * 2 + (i < cells)])
        for i in range(cells + 1)
    )
    return head + body + bytes(60)


def valuesets(rng: random.Random) -> bytes:
    kind = rng.choice([0x0800, 0x0801, 0x0802, 0x0803])
    pair = rng.randrange(3) << 40 | rng.randrange(3) << 16 | rng.randrange(3) << 7 | rng.randrange(3)
    return struct.pack("!H", kind) + pair.to_bytes(6, "big") + rng.randbytes(60)


PROGRAMS: dict[str, Frames] = {
    "varbits": varbits,
    "unions": unions,
    "indices": indices,
    "valuesets": valuesets,
}


@pytest.fixture(scope="module", params=PROGRAMS)
def bench(request: pytest.FixtureRequest) -> Iterator[tuple[str, Bench]]:
    for made in bench_of(DATA / f"{request.param}.json"):
        yield request.param, made


def test_they_do_what_the_interpreter_does(bench: tuple[str, Bench]) -> None:
    name, both = bench
    rng = random.Random(11)
    if name == "indices":
        both.add("I.act", Rule((Exact(7),), "I.put", (2, 0xABCDE)))
        both.add("I.act", Rule((Exact(8),), "I.wide"))
    if name == "valuesets":
        members = [(Exact(0x0801),), (Exact(0x0803),)]
        both.model.value_sets["P.types"] = members
        ends = tuple((Ends(0xFFFF, m.value, m.value),) for (m,) in members)
        both.do(lambda tx: both.running.value_sets["P.types"].set(ends, tx))
    answered = sum(bool(both.compare(PROGRAMS[name](rng))) for _ in range(500))
    assert answered == 500


@pytest.mark.parametrize("choice", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_do_it_on_real_ports(name: str, choice: str, namespace: Namespace, tmp_path: Path) -> None:
    rng, model = random.Random(12), Interpreter(read_program((DATA / f"{name}.json").read_bytes()))
    info = read_p4info(DATA / f"{name}.p4info.txtpb")
    with three_ports(choice, namespace, tmp_path) as client:
        client.become_primary()
        client.set_pipeline((DATA / f"{name}.json").read_bytes(), info)
        if name == "valuesets" and choice == "ebpf":  # BMv2 cannot write value sets over P4Runtime yet
            update = p4r.Update(type=p4r.Update.MODIFY)
            entry = update.entity.value_set_entry
            entry.value_set_id = next(v.preamble.id for v in info.value_sets if v.preamble.name == "P.types")
            entry.members.add().match.add(field_id=1).exact.value = b"\x08\x01"
            client.write(update)
            model.value_sets["P.types"] = [(Exact(0x0801),)]
        frames = [PROGRAMS[name](rng) for _ in range(60)]
        if name == "indices":  # the content of an invalid header is undefined, and differs
            frames = [f for f in frames if len(f) == 83]
        compare_frames(namespace, model, frames)
